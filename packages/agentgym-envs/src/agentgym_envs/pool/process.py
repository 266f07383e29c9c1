"""Slots in other processes: `Host`, a process with many slots, and `ProcessSlot`, a slot with its own process.

An environment that crashes its process causes an `EnvFault` for every call pending there. This module does not handle
deadlines.
"""

from __future__ import annotations

import itertools
import threading
import weakref

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.backends import default_backend
from agentgym_envs.pool.calls import Call, Done, Reset, Result, WorldSpec
from agentgym_envs.pool.connection import Connection
from agentgym_envs.pool.orders import Close, Open, Replace, sendable
from agentgym_envs.pool.slots import Slot


class Host:
    """A process with any number of slots. It ends when closed, garbage-collected or killed."""

    def __init__(self, *, alone: bool = False) -> None:
        """Start the process.

        Args:
            alone: Whether only one slot will be opened. It then runs in the thread that reads requests, which is
                faster, but if it hangs, only `kill` ends it.

        Raises:
            OSError: If no process can be started.
        """
        self._connection = Connection(alone)
        self._keys = itertools.count()
        self._finalizer = weakref.finalize(self, self._connection.close)

    @property
    def alive(self) -> bool:
        """Return whether the process runs and was not told to end."""
        return not (self._connection.closing or self._connection.ended)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._connection.process.pid

    def open(self, number: int, spec: WorldSpec, backend: str | None = None) -> Slot:
        """Open a slot in this process. Its environment is created by the first call. Once the process is gone, all
        calls to its slots result in an `EnvFault`.

        Args:
            number: Slot number that the results carry.
            spec: The environment.
            backend: `inline` (all such slots share a thread of the process) or `thread`; by default chosen by
                `default_backend`.

        Raises:
            ValueError: If the environment is unknown or its options can't be sent.
        """
        backend = backend or default_backend(spec)
        slot = _HostSlot(number, spec, next(self._keys), self._connection)
        order = Open(number, spec.id, sendable(spec), "inline" if backend == "inline" else "thread")
        self._connection.request(slot, order)
        return slot

    def close(self) -> None:
        """Let the process close its environments and end, without waiting. May be called repeatedly."""
        self._connection.close()

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the process to end. Return whether it did."""
        return self._connection.join(timeout)

    def kill(self) -> None:
        """Kill the process. Pending calls result in an `EnvFault`."""
        self._connection.kill()


class _HostSlot:
    """The owner's side of a slot in a `Host`."""

    def __init__(self, number: int, spec: WorldSpec, key: int, connection: Connection) -> None:
        self.number = number
        self.world = spec.id
        self.key = key
        self._connection = connection
        self._closed: threading.Event | None = None

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        self._connection.request(self, call, done)

    def replace(self) -> None:
        """See `Slot.replace`."""
        self._connection.drop_pending(self)
        self._connection.request(self, Replace())

    def close(self) -> None:
        """See `Slot.close`."""
        if self._closed is None:
            closed = self._closed = threading.Event()
            self._connection.request(self, Close(), lambda _: closed.set())

    def join(self, timeout: float) -> bool:
        """See `Slot.join`."""
        return self._closed is None or self._closed.wait(timeout)


class ProcessSlot:
    """A slot with its own process, for compute-bound environments: each gets a core and is isolated from the others. A
    process that hangs is killed. The process starts at the first call, and again after it died.
    """

    def __init__(self, number: int, spec: WorldSpec) -> None:
        """Prepare the slot. Raises ValueError if the options of `spec` can't be sent."""
        sendable(spec)
        self.number = number
        self._spec = spec
        self._lock = threading.Lock()
        self._host: Host | None = None
        self._replaced = False
        """Whether the owner has killed the process, and so knows that the episode is over."""
        self._closed = False

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        try:
            slot = self._live_slot(call)
        except (OSError, EnvFault) as error:
            fault = EnvFault(f"There is no process for {self._spec.id} in slot {self.number}: {error}")
            done(Result(self.number, error=fault))
            return
        slot.submit(call, done)

    def replace(self) -> None:
        """See `Slot.replace`."""
        with self._lock:
            if self._host is not None:
                self._host.kill()
                self._replaced = True

    def close(self) -> None:
        """See `Slot.close`."""
        with self._lock:
            self._closed = True
            if self._host is not None:
                self._host.close()

    def join(self, timeout: float) -> bool:
        """See `Slot.join`."""
        host = self._host
        return host is None or host.join(timeout)

    def _live_slot(self, call: Call) -> Slot:
        """Return the slot in a live process, and start one if needed.

        Raises:
            EnvFault: if the slot is closed, or the process died and the call is about the episode that was in it.
        """
        with self._lock:
            if self._closed:
                raise EnvFault("the slot is closed.")
            if self._host is None or not self._host.alive:
                if self._host is not None and not (self._replaced or isinstance(call, Reset)):
                    raise EnvFault("the process has ended, and the episode with it.")
                self._host, self._replaced = Host(alone=True), False
                self._slot = self._host.open(self.number, self._spec, "inline")
            return self._slot
