"""The connection to a process that runs host.py: starting it, sending orders, and waiting for their responses.

The process ends with its owner, however the owner ends. If it ends earlier, all pending orders result in an `EnvFault`.
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
from typing import Protocol

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.calls import Done, Result
from agentgym_envs.pool.orders import Order, unpacked

_SEND_TIMEOUT = 5  # seconds; a process that does not take a request within them hangs
_EXIT_TIMEOUT = 2.0  # seconds between the end of the connection, or a kill, and the end of the process


class Requester(Protocol):
    """The owner's side of a slot in the process."""

    number: int
    """Slot number that the results carry."""
    world: str
    """The environment's id, for error messages."""
    key: int
    """Identifies the slot in the process."""


class Connection:
    """A process and the socket to it. The reading thread refers to this object only, so a `Host` can be collected."""

    def __init__(self, alone: bool) -> None:
        self._socket, self.process = _start()
        self._sending = threading.Lock()
        self._request_ids = itertools.count()
        self._pending: dict[int, tuple[Requester, Done]] = {}
        self.closing = False
        self.ended = ""
        """How the process ended; empty while it runs."""
        self._reader = threading.Thread(target=self._listen, name=f"agentgym-host-{self.process.pid}", daemon=True)
        self._reader.start()
        _connections.add(self)
        self._send(pickle.dumps((sys.path, alone)))

    def request(self, slot: Requester, order: Order, done: Done | None = None) -> None:
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

    def drop_pending(self, slot: Requester) -> None:
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


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


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
