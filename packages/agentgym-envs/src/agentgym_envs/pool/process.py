"""Slots in other processes: `Host`, a process with many slots, and `ProcessSlot`, a slot with its own process.

The processes run host.py. A process ends with its owner, however the owner ends. An environment that crashes its
process causes an `EnvFault` for every call pending there. This module does not handle deadlines.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import weakref

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.backends import default_backend
from agentgym_envs.pool.calls import Call, Done, Result, WorldSpec
from agentgym_envs.pool.orders import Close, Open, Order, Replace, sendable, unpacked
from agentgym_envs.pool.slots import Slot

_SEND_TIMEOUT = 5  # seconds; a process that does not take a request within them hangs
_EXIT_TIMEOUT = 2.0  # seconds between the end of the connection, or a kill, and the end of the process


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
        self._connection = _Connection(alone)
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

    def __init__(self, number: int, spec: WorldSpec, key: int, connection: _Connection) -> None:
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
        self._closed = False

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        try:
            slot = self._live_slot()
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

    def _live_slot(self) -> Slot:
        """Return the slot in a live process, and start one if needed."""
        with self._lock:
            if self._closed:
                raise EnvFault("the slot is closed.")
            if self._host is None or not self._host.alive:
                self._host = Host(alone=True)
                self._slot = self._host.open(self.number, self._spec, "inline")
            return self._slot


class _Connection:
    """A process and the socket to it. The reading thread refers to this object only, so a `Host` can be collected."""

    def __init__(self, alone: bool) -> None:
        self._socket, self.process = _start()
        self._sending = threading.Lock()
        self._request_ids = itertools.count()
        self._pending: dict[int, tuple[_HostSlot, Done]] = {}
        self.closing = False
        self.ended = ""
        """How the process ended; empty while it runs."""
        self._reader = threading.Thread(target=self._listen, name=f"agentgym-host-{self.process.pid}", daemon=True)
        self._reader.start()
        _connections.add(self)
        self._send(pickle.dumps((sys.path, alone)))

    def request(self, slot: _HostSlot, order: Order, done: Done | None = None) -> None:
        """Send an order. `done` gets the response, or an `EnvFault` once none can arrive any more."""
        request_id = next(self._request_ids)
        try:
            message = pickle.dumps((request_id, slot.key, pickle.dumps(order)))
        except Exception as error:  # noqa: BLE001 - only a caller's arguments can fail, and the caller gets the error
            problem = TypeError(f"This can't be sent to another process: {error}")
            if done is not None:
                done(Result(slot.number, error=problem))
            return
        if done is not None:
            self._pending[request_id] = (slot, done)
        self._send(message)
        if self.ended:  # the process may have ended before the request was registered
            self._fail(request_id)

    def drop_pending(self, slot: _HostSlot) -> None:
        """Drop the pending requests of `slot`."""
        for request_id, (owner, _) in list(self._pending.items()):
            if owner is slot:
                self._pending.pop(request_id, None)

    def close(self) -> None:
        """Signal that there will be no more orders."""
        self.closing = True
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_WR)

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the process and the reading thread to end. Return whether they did."""
        self._reader.join(timeout)
        return not self._reader.is_alive()

    def kill(self) -> None:
        """Kill the process. The reading thread then fails the pending requests."""
        self.closing = True
        self.process.kill()

    def disown(self) -> None:
        """In a forked child, release the parent's process and socket without disturbing them."""
        self._sending = threading.Lock()  # another thread of the parent may have held it
        self._pending.clear()
        self.closing, self.ended = True, "belongs to the process that this one was forked from"
        self.process.returncode = 0  # not a child of this process, so it must not be waited for or killed
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())

    def _send(self, message: bytes) -> None:
        with self._sending:
            try:
                self._socket.sendall(message)
            except OSError:  # it is gone or hangs; the reading thread fails the pending requests
                self.kill()
            except BaseException:
                self.kill()  # Ctrl-C; half a message may have been sent
                raise

    def _listen(self) -> None:
        """Dispatch responses until the connection ends, then fail the pending requests."""
        try:
            with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError), self._socket.makefile("rb") as stream:
                while True:
                    request_id, packed = pickle.load(stream)
                    slot, done = self._pending.pop(request_id, (None, None))
                    if slot is not None and done is not None:
                        done(unpacked(slot.number, packed))
                    del slot, done, packed  # a `done` holds a reference to its waiter
        finally:
            self._finish()

    def _finish(self) -> None:
        self.closing = True
        try:
            status = self.process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        self._socket.close()
        for request_id in list(self._pending):
            self._fail(request_id)

    def _fail(self, request_id: int) -> None:
        slot, done = self._pending.pop(request_id, (None, None))
        if slot is not None and done is not None:
            subject = f"{slot.world} in slot {slot.number}: its process (pid {self.process.pid})"
            done(Result(slot.number, error=EnvFault(f"{subject} {self.ended}.")))


_connections: weakref.WeakSet[_Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_connections):
        connection.disown()
    _connections.clear()


os.register_at_fork(after_in_child=_after_fork)


def _start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a process. Return the parent's end of the socket to it, and the process."""
    parent_end, child_end = socket.socketpair()
    parent_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT, 0))
    with contextlib.ExitStack() as stack, child_end:
        stack.enter_context(parent_end)
        process = subprocess.Popen(
            # -P: files in the working directory must not shadow modules before the owner's sys.path arrives.
            [sys.executable, "-P", "-m", "agentgym_envs.pool.host", str(child_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=2,  # environments' prints must not mix with the caller's output
            pass_fds=[child_end.fileno()],
            start_new_session=True,  # Ctrl-C goes to the owner only, which may want to finish its step
        )
        stack.pop_all()
    return parent_end, process
