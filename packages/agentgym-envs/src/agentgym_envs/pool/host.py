"""The child process of a `Host`, which holds the slots. connection.py runs `python -m agentgym_envs.pool.host FD`.

The main thread reads requests from a socket. Any thread may write responses to it. When the peer is gone, however it
ended, the environments are closed and the process exits even if some of them hang. This module does not handle
deadlines.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import IO

import gymnasium

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.calls import Call, Done, Result, WorldSpec
from agentgym_envs.pool.orders import Close, Open, Order, Replace, built, packed
from agentgym_envs.pool.slots import InlineSlot, Slot, ThreadSlot

CLOSE_TIMEOUT = 5.0
"""Seconds that environments have to close once the owner is gone."""


@dataclass(frozen=True)
class _SentSpec(WorldSpec):
    """A spec that is unpickled only when the environment is built, since what it refers to may be missing here."""

    sent: bytes = b""

    def build(self) -> gymnasium.Env[str, str]:
        """See `WorldSpec.build`. Also raises the errors of unpickling."""
        return built(self.sent)


class _InlineThread(threading.Thread):
    """The thread that runs the calls of all inline slots of a host."""

    def __init__(self) -> None:
        super().__init__(name="agentgym-inline", daemon=True)
        self.inbox = SimpleQueue[tuple[InlineSlot, Callable[[], None]] | None]()
        self.current: InlineSlot | None = None
        self.start()

    def run(self) -> None:
        """Run the calls in the inbox one by one until a None arrives."""
        while (item := self.inbox.get()) is not None:
            self.current, run_call = item
            run_call()
            self.current = None

    def hand_over(self) -> _InlineThread:
        """Move the waiting calls to a new thread and return it. This thread ends once its current call returns."""
        successor = _InlineThread()
        with contextlib.suppress(Empty):
            while True:
                successor.inbox.put(self.inbox.get_nowait())
        self.inbox.put(None)
        return successor


class _SharedThreadSlot:
    """An inline slot whose calls run in the inline thread of its `SlotServer`."""

    def __init__(self, number: int, spec: WorldSpec, server: SlotServer) -> None:
        self.number = number
        self._spec = spec
        self._server = server
        self._inline = InlineSlot(number, spec)

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        self._server.inline_thread.inbox.put((self._inline, partial(self._inline.submit, call, done)))

    def replace(self) -> None:
        """See `Slot.replace`."""
        self.close()
        self._inline = InlineSlot(self.number, self._spec)

    def close(self) -> None:
        """See `Slot.close`. If this environment hangs, the other slots continue in a new thread."""
        self._inline.close()  # first, so that the thread can't start another call of this environment
        thread = self._server.inline_thread
        if thread.current is self._inline:
            self._server.inline_thread = thread.hand_over()

    def join(self, timeout: float) -> bool:
        """See `Slot.join`. Returns True: the environment is closed, or held by a thread that may hang forever."""
        return True


class SlotServer:
    """Holds the slots of this process and carries out the owner's orders."""

    def __init__(self, connection: socket.socket, *, alone: bool) -> None:
        """Start without slots.

        Args:
            connection: Socket to the owner.
            alone: Whether there will be only one slot. Its calls then run in the thread that reads requests, which is
                fastest; to replace the environment, the owner ends the process.
        """
        self._connection = connection
        self._sending = threading.Lock()
        self._slots: dict[int, Slot] = {}
        self._alone = alone
        if not alone:
            self.inline_thread = _InlineThread()

    def serve(self, requests: IO[bytes]) -> None:
        """Carry out orders until the owner is gone, then close all slots."""
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                request_id, key, order = pickle.load(requests)
                self._handle(request_id, key, order)
        until = time.monotonic() + CLOSE_TIMEOUT
        for slot in self._slots.values():
            slot.close()
        for slot in self._slots.values():
            slot.join(max(0.0, until - time.monotonic()))

    def _handle(self, request_id: int, key: int, sent: bytes) -> None:
        try:
            order: Order = pickle.loads(sent)
        except Exception as error:  # noqa: BLE001 - the owner gets it in the response
            self._respond(request_id, Result(-1, error=error))
            return
        if isinstance(order, Open):
            self._slots[key] = self._open(order)
            return
        slot = self._slots.get(key)
        match order:
            case _ if slot is None:
                self._respond(request_id, Result(-1, error=EnvFault("The slot is closed.")))
            case Replace():
                slot.replace()
            case Close():
                del self._slots[key]
                slot.close()
                threading.Thread(target=self._await_closing, args=(slot, request_id), daemon=True).start()
            case _:
                slot.submit(order, partial(self._respond, request_id))

    def _open(self, order: Open) -> Slot:
        spec = _SentSpec(order.world, sent=order.spec)
        if self._alone:
            return InlineSlot(order.number, spec)
        if order.backend == "inline":
            return _SharedThreadSlot(order.number, spec, self)
        return ThreadSlot(order.number, spec)

    def _await_closing(self, slot: Slot, request_id: int) -> None:
        slot.join(CLOSE_TIMEOUT)
        self._respond(request_id, Result(slot.number))

    def _respond(self, request_id: int, result: Result) -> None:
        message = pickle.dumps((request_id, packed(result)))
        with self._sending, contextlib.suppress(OSError):  # the owner is gone; the reading thread will notice
            self._connection.sendall(message)


def _watch(fd: int) -> None:
    """End this process some seconds after its owner is gone, even if an environment hangs in the reading thread."""
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))  # POLLHUP is always reported; POLLRDHUP also if half-closed
    poll.poll()
    time.sleep(CLOSE_TIMEOUT + 1)
    os._exit(1)


def _exit_now() -> None:
    """Exit without waiting for what environments left behind, such as threads."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Serve the owner, which holds the peer of the socket whose descriptor is the first argument."""
    atexit.register(_exit_now)  # registered first, so it runs after the handlers that environments register
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    connection = socket.socket(fileno=fd)
    threading.Thread(target=_watch, args=(fd,), daemon=True).start()
    with connection.makefile("rb") as requests:
        sys.path[:], alone = pickle.load(requests)
        SlotServer(connection, alone=alone).serve(requests)


if __name__ == "__main__":
    main()
