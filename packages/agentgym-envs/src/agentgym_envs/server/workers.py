"""The processes that run the environments of sessions: this one, or worker processes, which are replaced if they die.

Workers only count their sessions.
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
from agentgym_envs.server.models import WorkerInfo


class WorkerProcess(Protocol):
    """A process in which slots can be opened, such as `agentgym_envs.pool.process.Host`."""

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        ...

    @property
    def pid(self) -> int | None:
        """Return the process id."""
        ...

    def open(self, number: int, spec: WorldSpec) -> Slot:
        """Open a slot in the process."""
        ...

    def close(self) -> None:
        """Start ending the process, without waiting."""
        ...

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the process to end. Return whether it did."""
        ...


class InProcess:
    """The server's own process as a `WorkerProcess`."""

    @property
    def alive(self) -> bool:
        """Return True."""
        return True

    @property
    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def open(self, number: int, spec: WorldSpec) -> Slot:
        """Open a slot. Environments whose default backend is a process get a thread."""
        return open_slot(number, spec, "inline" if default_backend(spec) == "inline" else "thread")

    def close(self) -> None:
        """Do nothing, since sessions close their slots."""

    def join(self, timeout: float) -> bool:
        """Return True without waiting."""
        return True


@dataclass(slots=True, eq=False)
class Worker:
    """A process and its number of sessions."""

    process: WorkerProcess
    sessions: int = 0


class Workers:
    """The workers of a server. `open_slot` opens a slot in the one with the fewest sessions."""

    def __init__(self, count: int, restarted: Callable[[], None]) -> None:
        """Prepare the workers without starting them.

        Args:
            count: Number of processes; with 0, environments run in this process.
            restarted: Called for each replacement of a dead worker.
        """
        self._count = count
        self._restarted = restarted
        self._workers: list[Worker] = []
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start the processes. Raises OSError if that fails."""
        self._workers = [Worker(_start_process()) for _ in range(self._count)] or [Worker(InProcess())]

    def open_slot(self, spec: WorldSpec) -> tuple[Worker, Slot]:
        """Open a slot for an environment. The caller decrements the worker's `sessions` when done with it."""
        self.restart_dead()
        worker = min(self._workers, key=lambda worker: worker.sessions)
        worker.sessions += 1
        return worker, worker.process.open(next(self._numbers), spec)

    def restart_dead(self) -> None:
        """Replace dead workers. Raises OSError if no process can be started."""
        for index, worker in enumerate(self._workers):
            if not worker.process.alive:
                self._workers[index] = Worker(_start_process())
                self._restarted()

    def list_workers(self) -> list[WorkerInfo]:
        """Return the state of each worker."""
        return [
            {"pid": worker.process.pid, "alive": worker.process.alive, "sessions": worker.sessions}
            for worker in self._workers
        ]

    def close(self, timeout: float) -> None:
        """End the processes and wait at most `timeout` seconds for them."""
        for worker in self._workers:
            worker.process.close()
        until = time.monotonic() + timeout
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))


def _start_process() -> WorkerProcess:
    from agentgym_envs.pool.process import Host

    return Host()
