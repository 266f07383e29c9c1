"""The inside of a `Host`: a process that holds slots, run as `python -m agentgym_envs.pool.host FD` by process.py.

The main thread reads requests from a socket; answers leave it as they come, from whichever thread has one. When the
other end is gone, however it ended, the worlds are closed and the process exits, whatever still hangs. Knows nothing
about deadlines, nor about who asks.
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

PARTING = 5.0
"""Seconds that worlds have to close once the owner is gone."""


@dataclass(frozen=True)
class _SentSpec(WorldSpec):
    """A spec that is read when the world is built: what it is made of may be missing here."""

    sent: bytes = b""

    def build(self) -> gymnasium.Env[str, str]:
        """See `WorldSpec.build`; raises also what reading raises."""
        return built(self.sent)


class _Stage(threading.Thread):
    """A thread in which all inline slots of a host take turns."""

    def __init__(self) -> None:
        super().__init__(name="agentgym-stage", daemon=True)
        self.inbox = SimpleQueue[tuple[InlineSlot, Callable[[], None]] | None]()
        self.playing: InlineSlot | None = None
        self.start()

    def run(self) -> None:
        """One turn after the other, until there is a None."""
        while (item := self.inbox.get()) is not None:
            self.playing, turn = item
            turn()
            self.playing = None

    def succeed(self) -> _Stage:
        """Another stage for all that wait; this one ends after what it plays now, if ever."""
        successor = _Stage()
        with contextlib.suppress(Empty):
            while True:
                successor.inbox.put(self.inbox.get_nowait())
        self.inbox.put(None)
        return successor


class _StageSlot:
    """An inline slot whose turns are on the stage of its household."""

    def __init__(self, number: int, spec: WorldSpec, household: Household) -> None:
        self.number = number
        self._spec = spec
        self._household = household
        self._inline = InlineSlot(number, spec)

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        self._household.stage.inbox.put((self._inline, partial(self._inline.submit, call, done)))

    def replace(self) -> None:
        """See `Slot.replace`."""
        self.close()
        self._inline = InlineSlot(self.number, self._spec)

    def close(self) -> None:
        """See `Slot.close`. A world that hangs keeps its thread; the others go on in a new one."""
        self._inline.close()  # first: from now on the stage can't begin a turn of this world
        stage = self._household.stage
        if stage.playing is self._inline:
            self._household.stage = stage.succeed()

    def join(self, patience: float) -> bool:
        """See `Slot.join`: closing was done at once, or is up to a thread that may hang."""
        return True


class Household:
    """The slots of this process."""

    def __init__(self, line: socket.socket, *, alone: bool) -> None:
        """Begin without any.

        Args:
            line: To the owner.
            alone: Whether there will be one slot only, which then plays in the thread that reads: nothing is as fast,
                and an owner who wants to replace it ends the process.
        """
        self._line = line
        self._sending = threading.Lock()
        self._slots: dict[int, Slot] = {}
        self._alone = alone
        if not alone:
            self.stage = _Stage()

    def serve(self, requests: IO[bytes]) -> None:
        """Carry out orders until the owner is gone, then close everything."""
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                ticket, key, order = pickle.load(requests)
                self._obey(ticket, key, order)
        until = time.monotonic() + PARTING
        for slot in self._slots.values():
            slot.close()
        for slot in self._slots.values():
            slot.join(max(0.0, until - time.monotonic()))

    def _obey(self, ticket: int, key: int, sent: bytes) -> None:
        try:
            order: Order = pickle.loads(sent)
        except Exception as error:  # noqa: BLE001 - it reaches the owner in the answer
            self._answer(ticket, Result(-1, error=error))
            return
        if isinstance(order, Open):
            self._slots[key] = self._open(order)
            return
        slot = self._slots.get(key)
        match order:
            case _ if slot is None:
                self._answer(ticket, Result(-1, error=EnvFault("The slot is closed.")))
            case Replace():
                slot.replace()
            case Close():
                del self._slots[key]
                slot.close()
                threading.Thread(target=self._see_off, args=(slot, ticket), daemon=True).start()
            case _:
                slot.submit(order, partial(self._answer, ticket))

    def _open(self, order: Open) -> Slot:
        spec = _SentSpec(order.world, sent=order.spec)
        if self._alone:
            return InlineSlot(order.number, spec)
        if order.backend == "inline":
            return _StageSlot(order.number, spec, self)
        return ThreadSlot(order.number, spec)

    def _see_off(self, slot: Slot, ticket: int) -> None:
        slot.join(PARTING)
        self._answer(ticket, Result(slot.number))

    def _answer(self, ticket: int, result: Result) -> None:
        message = pickle.dumps((ticket, packed(result)))
        with self._sending, contextlib.suppress(OSError):  # the owner is gone, and the thread that reads will notice
            self._line.sendall(message)


def _watch(fd: int) -> None:
    """End this process some seconds after its owner is gone, also when a world hangs in the thread that reads."""
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))  # a hang-up is always told; this one, also half of it
    poll.poll()
    time.sleep(PARTING + 1)
    os._exit(1)


def _leave() -> None:
    """Exit now: nothing that a world left behind, such as a thread, is waited for."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Serve the owner at the other end of the socket whose descriptor is the first argument."""
    atexit.register(_leave)  # first in, last out: after what worlds register
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    line = socket.socket(fileno=fd)
    threading.Thread(target=_watch, args=(fd,), daemon=True).start()
    with line.makefile("rb") as requests:
        sys.path[:], alone = pickle.load(requests)
        Household(line, alone=alone).serve(requests)


if __name__ == "__main__":
    main()
