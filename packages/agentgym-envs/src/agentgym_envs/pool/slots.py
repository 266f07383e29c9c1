"""Slots: each holds one world and carries out one call at a time, in the caller's thread or in one of its own.

A world that is bound to a thread, as browsers and bridges to Java are, never sees another: the slot's thread makes it,
plays it and closes it. Knows nothing about deadlines or who waits.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Protocol

import gymnasium

from agentgym_envs.pool.calls import Call, Done, Result, WorldSpec, carry_out


class Slot(Protocol):
    """A place for one world."""

    @property
    def number(self) -> int:
        """What its results are marked with."""
        ...

    def submit(self, call: Call, done: Done) -> None:
        """Carry out `call` now or later and hand its result to `done`, once; never raises. One call at a time."""
        ...

    def replace(self) -> None:
        """Let go of a world that hangs or is dead, whatever it does; the next call meets a new one. What the old one
        still answers may or may not reach its `done`.
        """
        ...

    def close(self) -> None:
        """Begin to close the world and to free what the slot holds; returns at once. May be called twice."""
        ...

    def join(self, patience: float) -> bool:
        """Wait for the end of `close`, at most `patience` seconds; whether it came."""
        ...


class InlineSlot:
    """Plays in the thread of whoever submits: nothing is as fast for a world that answers in microseconds."""

    def __init__(self, number: int, spec: WorldSpec) -> None:
        self.number = number
        self._spec = spec
        self._env: gymnasium.Env[str, str] | None = None

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`: the result is there before this returns."""
        if self._env is None:
            try:
                self._env = self._spec.build()
            except Exception as error:  # noqa: BLE001 - it reaches the caller in the result
                done(Result(self.number, error=error))
                return
        done(carry_out(self._env, self.number, call))

    def replace(self) -> None:
        """See `Slot.replace`."""
        self.close()

    def close(self) -> None:
        """See `Slot.close`."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def join(self, patience: float) -> bool:
        """See `Slot.join`: closing was done at once."""
        return True


class ThreadSlot:
    """Plays in a thread of its own, for worlds that wait for others: a JVM, a browser, a server."""

    def __init__(self, number: int, spec: WorldSpec) -> None:
        self.number = number
        self._spec = spec
        self._inbox: SimpleQueue[tuple[Call, Done] | None] | None = None
        self._thread: threading.Thread | None = None

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        if self._inbox is None:
            self._inbox = SimpleQueue()
            self._thread = threading.Thread(
                target=_play,
                args=(self.number, self._spec, self._inbox),
                name=f"agentgym-slot-{self.number}",
                daemon=True,
            )
            self._thread.start()
        self._inbox.put((call, done))

    def replace(self) -> None:
        """See `Slot.replace`. No thread can be killed: the old one closes its world when it comes back, if ever."""
        self.close()
        self._thread = None

    def close(self) -> None:
        """See `Slot.close`."""
        if self._inbox is not None:
            self._inbox.put(None)
            self._inbox = None

    def join(self, patience: float) -> bool:
        """See `Slot.join`."""
        if self._thread is not None:
            self._thread.join(patience)
            return not self._thread.is_alive()
        return True


def _play(number: int, spec: WorldSpec, inbox: SimpleQueue[tuple[Call, Done] | None]) -> None:
    """The life of a slot's thread: one call after the other until there is a None."""
    slot = InlineSlot(number, spec)
    while (item := inbox.get()) is not None:
        slot.submit(*item)
        del item  # a `done` holds on to whoever waits
    slot.close()
