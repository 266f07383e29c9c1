"""Slots in other processes: `Host`, a process with many, and `ProcessSlot`, a slot with a process of its own.

What runs there is host.py. A process ends with its owner, however that ends, and a world that takes its process with it
is an `EnvFault` for every call on its way there. Knows nothing about deadlines.
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

_PATIENCE = 5  # seconds in which a process must take a request off our hands, or it hangs
_PARTING = 2.0  # seconds between the end of a connection, or a kill, and the end of the process


class Host:
    """A process with any number of slots. It starts at once and ends when closed, forgotten or killed."""

    def __init__(self, *, alone: bool = False) -> None:
        """Start the process.

        Args:
            alone: Whether one slot only will be opened. It plays in the thread that reads our requests, which is
                faster; while it hangs, nothing but `kill` helps.

        Raises:
            OSError: when no process can be started.
        """
        self._link = _Link(alone)
        self._keys = itertools.count()
        self._forgotten = weakref.finalize(self, self._link.close)

    @property
    def alive(self) -> bool:
        """Whether the process is there and was not told to end."""
        return not (self._link.closing or self._link.ended)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._link.process.pid

    def open(self, number: int, spec: WorldSpec, backend: str | None = None) -> Slot:
        """A slot in this process, whose world is made when first called. Once the process is gone, all calls of its
        slots are answered with an `EnvFault`.

        Args:
            number: What its results are marked with.
            spec: The world.
            backend: `inline` (all such slots share a thread of the process) or `thread`; by default what suits the
                world.

        Raises:
            ValueError: when the world is unknown or its options can't be sent.
        """
        backend = backend or default_backend(spec)
        slot = _HostSlot(number, spec, next(self._keys), self._link)
        order = Open(number, spec.id, sendable(spec), "inline" if backend == "inline" else "thread")
        self._link.ask(slot, order)
        return slot

    def close(self) -> None:
        """Let the process close its worlds and end; returns at once. May be called twice."""
        self._link.close()

    def join(self, patience: float) -> bool:
        """Wait for its end, at most `patience` seconds; whether it came."""
        return self._link.join(patience)

    def kill(self) -> None:
        """End it now. The calls on their way end as faults."""
        self._link.kill()


class _HostSlot:
    """A slot of a `Host`, as its owner has it."""

    def __init__(self, number: int, spec: WorldSpec, key: int, link: _Link) -> None:
        self.number = number
        self.world = spec.id
        self.key = key
        self._link = link
        self._closed: threading.Event | None = None

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        self._link.ask(self, call, done)

    def replace(self) -> None:
        """See `Slot.replace`."""
        self._link.forget(self)
        self._link.ask(self, Replace())

    def close(self) -> None:
        """See `Slot.close`."""
        if self._closed is None:
            closed = self._closed = threading.Event()
            self._link.ask(self, Close(), lambda _: closed.set())

    def join(self, patience: float) -> bool:
        """See `Slot.join`."""
        return self._closed is None or self._closed.wait(patience)


class ProcessSlot:
    """A slot with a process of its own, for worlds that compute: a core each, and none can harm another. What hangs
    is killed. The process starts at the first call, and again after it died.
    """

    def __init__(self, number: int, spec: WorldSpec) -> None:
        """Raises ValueError when the options of `spec` can't be sent."""
        sendable(spec)
        self.number = number
        self._spec = spec
        self._lock = threading.Lock()
        self._host: Host | None = None
        self._closed = False

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        try:
            slot = self._standing()
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

    def join(self, patience: float) -> bool:
        """See `Slot.join`."""
        host = self._host
        return host is None or host.join(patience)

    def _standing(self) -> Slot:
        with self._lock:
            if self._closed:
                raise EnvFault("the slot is closed.")
            if self._host is None or not self._host.alive:
                self._host = Host(alone=True)
                self._slot = self._host.open(self.number, self._spec, "inline")
            return self._slot


class _Link:
    """The process and the socket to it: what the thread that reads holds on to, so that a `Host` can be forgotten."""

    def __init__(self, alone: bool) -> None:
        self._socket, self.process = _start()
        self._sending = threading.Lock()
        self._tickets = itertools.count()
        self._waiting: dict[int, tuple[_HostSlot, Done]] = {}
        self.closing = False
        self.ended = ""
        """How the process ended, when it has."""
        self._reader = threading.Thread(target=self._listen, name=f"agentgym-host-{self.process.pid}", daemon=True)
        self._reader.start()
        _links.add(self)
        self._send(pickle.dumps((sys.path, alone)))

    def ask(self, slot: _HostSlot, order: Order, done: Done | None = None) -> None:
        """Send an order; `done` gets the answer, or a fault when none can come any more."""
        ticket = next(self._tickets)
        try:
            message = pickle.dumps((ticket, slot.key, pickle.dumps(order)))
        except Exception as error:  # noqa: BLE001 - only what a caller asks for may not be sendable, and hears of it
            problem = TypeError(f"This can't be sent to another process: {error}")
            if done is not None:
                done(Result(slot.number, error=problem))
            return
        if done is not None:
            self._waiting[ticket] = (slot, done)
        self._send(message)
        if self.ended:  # maybe before the ticket was there to be found
            self._fail(ticket)

    def forget(self, slot: _HostSlot) -> None:
        """Drop what `slot` still waits for."""
        for ticket, (waiting, _) in list(self._waiting.items()):
            if waiting is slot:
                self._waiting.pop(ticket, None)

    def close(self) -> None:
        """Say that there will be no more orders."""
        self.closing = True
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_WR)

    def join(self, patience: float) -> bool:
        """Wait for the end of the process and of the thread that reads."""
        self._reader.join(patience)
        return not self._reader.is_alive()

    def kill(self) -> None:
        """End the process; the thread that reads notices and tells."""
        self.closing = True
        self.process.kill()

    def disown(self) -> None:
        """In a forked child: let go of what is the parent's, without ending or disturbing it."""
        self._sending = threading.Lock()  # another thread of the parent may have held it
        self._waiting.clear()
        self.closing, self.ended = True, "belongs to the process that this one was forked from"
        self.process.returncode = 0  # not a child of this process: nothing to wait for, nor to kill
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())

    def _send(self, message: bytes) -> None:
        with self._sending:
            try:
                self._socket.sendall(message)
            except OSError:  # it is gone, or takes nothing any more; the thread that reads tells all who wait
                self.kill()
            except BaseException:
                self.kill()  # Ctrl-C, and half a message may have been sent
                raise

    def _listen(self) -> None:
        """Hand out answers until there can be no more, then tell those who still wait."""
        try:
            with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError), self._socket.makefile("rb") as answers:
                while True:
                    ticket, packed = pickle.load(answers)
                    slot, done = self._waiting.pop(ticket, (None, None))
                    if slot is not None and done is not None:
                        done(unpacked(slot.number, packed))
                    del slot, done, packed  # a `done` holds on to whoever waits
        finally:
            self._bury()

    def _bury(self) -> None:
        self.closing = True
        try:
            status = self.process.wait(_PARTING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        self._socket.close()
        for ticket in list(self._waiting):
            self._fail(ticket)

    def _fail(self, ticket: int) -> None:
        slot, done = self._waiting.pop(ticket, (None, None))
        if slot is not None and done is not None:
            fault = f"{slot.world} in slot {slot.number}: the process that holds it (pid {self.process.pid})"
            done(Result(slot.number, error=EnvFault(f"{fault} {self.ended}.")))


_links: weakref.WeakSet[_Link] = weakref.WeakSet()


def _after_fork() -> None:
    for link in list(_links):
        link.disown()
    _links.clear()


os.register_at_fork(after_in_child=_after_fork)


def _start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A process and our end of the socket to it."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _PATIENCE, 0))
    with contextlib.ExitStack() as stack, theirs:
        stack.enter_context(ours)
        process = subprocess.Popen(
            # -P, since what lies in the user's folder is nothing to import before our path is sent.
            [sys.executable, "-P", "-m", "agentgym_envs.pool.host", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a world prints is no output of the caller's
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the owner, which may want to play its step to the end
        )
        stack.pop_all()
    return ours, process
