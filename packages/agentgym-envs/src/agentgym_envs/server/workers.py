"""Where the worlds of sessions live: in this process, or in worker processes of which a dead one is replaced.

Knows no sessions, only how many sit in each worker.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentgym_envs.pool import WorldSpec
from agentgym_envs.pool.backends import default_backend, open_slot
from agentgym_envs.pool.slots import Slot
from agentgym_envs.server.models import WorkerSeen


class Home(Protocol):
    """A process in which slots are opened; `agentgym_envs.pool.process.Host` is one."""

    @property
    def alive(self) -> bool:
        """Whether its slots can answer."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process."""
        ...

    def open(self, number: int, spec: WorldSpec) -> Slot:
        """A slot in it."""
        ...

    def close(self) -> None:
        """Begin to end it."""
        ...

    def join(self, patience: float) -> bool:
        """Wait for its end; whether it came."""
        ...


class Here:
    """The server's own process."""

    @property
    def alive(self) -> bool:
        """Always: who asks lives."""
        return True

    @property
    def pid(self) -> int:
        """The one we are in."""
        return os.getpid()

    def open(self, number: int, spec: WorldSpec) -> Slot:
        """A slot; a world that would have a process of its own has a thread."""
        return open_slot(number, spec, "inline" if default_backend(spec) == "inline" else "thread")

    def close(self) -> None:
        """Nothing: its slots are closed one by one."""

    def join(self, patience: float) -> bool:
        """Nothing is to be waited for."""
        return True


@dataclass(slots=True, eq=False)
class Worker:
    """A home and how many sessions live in it."""

    home: Home
    sessions: int = 0


class Workers:
    """The homes. `seat` gives a slot in the one with the fewest sessions."""

    def __init__(self, count: int, restarted: Callable[[], None]) -> None:
        """Plan the processes.

        Args:
            count: How many; with 0, worlds live in this one.
            restarted: Called for each one that took a dead one's place.
        """
        self._count = count
        self._restarted = restarted
        self._workers: list[Worker] = []
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start the processes. Raises OSError when none can be started."""
        self._workers = [Worker(_process()) for _ in range(self._count)] or [Worker(Here())]

    def seat(self, spec: WorldSpec) -> tuple[Worker, Slot]:
        """A slot for that world. Who no longer needs it takes one off the worker's `sessions`."""
        self.tend()
        worker = min(self._workers, key=lambda worker: worker.sessions)
        worker.sessions += 1
        return worker, worker.home.open(next(self._numbers), spec)

    def tend(self) -> None:
        """Put living ones in the place of the dead."""
        for index, worker in enumerate(self._workers):
            if not worker.home.alive:
                self._workers[index] = Worker(_process())
                self._restarted()

    def seen(self) -> list[WorkerSeen]:
        """How each is."""
        return [
            {"pid": worker.home.pid, "alive": worker.home.alive, "sessions": worker.sessions}
            for worker in self._workers
        ]

    def close(self, patience: float) -> None:
        """End the processes; blocks until they have, at most `patience` seconds."""
        for worker in self._workers:
            worker.home.close()
        until = time.monotonic() + patience
        for worker in self._workers:
            worker.home.join(max(0.0, until - time.monotonic()))


def _process() -> Home:
    from agentgym_envs.pool.process import Host

    return Host()
