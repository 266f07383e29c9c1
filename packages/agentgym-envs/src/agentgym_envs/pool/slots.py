"""Slots: each holds one world and carries out one call at a time, in the caller's thread or in one of its own.

A world that is bound to a thread, as browsers and bridges to Java are, never sees another: the slot's thread makes it,
plays it and closes it. Knows nothing about deadlines or who waits.
"""

from __future__ import annotations

import logging
import threading
import weakref
from queue import SimpleQueue
from typing import Protocol

import gymnasium

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.calls import Call, Done, Result, WorldSpec, carry_out

_log = logging.getLogger(__name__)


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
    """Plays in the thread of whoever submits: nothing is as fast for a world that answers in microseconds.

    The other methods may be called from another thread meanwhile; a world that is let go of in the middle of a call is
    closed by whoever plays it, when it comes back.
    """

    def __init__(self, number: int, spec: WorldSpec) -> None:
        self.number = number
        self._spec = spec
        self._env: gymnasium.Env[str, str] | None = None
        self._playing = False
        self._closed = False
        self._old: list[gymnasium.Env[str, str]] = []

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`: the result is there before this returns."""
        self._playing = True
        try:
            env = self._env
            if env is None:
                env = self._env = self._build()
            result = carry_out(env, self.number, call)
        except Exception as error:  # noqa: BLE001 - there is no world; it reaches the caller in the result
            result = Result(self.number, error=error)
        finally:
            self._playing = False
        if self._old or self._closed:
            self._let_go()
        done(result)

    def replace(self) -> None:
        """See `Slot.replace`."""
        env, self._env = self._env, None
        if env is not None:
            self._old.append(env)
        if not self._playing:
            self._let_go()

    def close(self) -> None:
        """See `Slot.close`."""
        self._closed = True
        self.replace()

    def join(self, patience: float) -> bool:
        """See `Slot.join`: closing was done at once."""
        return True

    def _build(self) -> gymnasium.Env[str, str]:
        if self._closed:
            raise EnvFault(f"Slot {self.number} of {self._spec.id} is closed.")
        return self._spec.build()

    def _let_go(self) -> None:
        """Close worlds that nobody will call any more."""
        if self._closed and self._env is not None:
            self._old.append(self._env)
            self._env = None
        while self._old:
            try:
                self._old.pop().close()
            except Exception as error:  # noqa: BLE001 - a broken world must not keep others from closing
                _log.warning("%s in slot %d did not close: %s", self._spec.id, self.number, error)


class ThreadSlot:
    """Plays in a thread of its own, for worlds that wait for others: a JVM, a browser, a server. The thread ends when
    the slot is closed or forgotten.
    """

    def __init__(self, number: int, spec: WorldSpec) -> None:
        self.number = number
        self._spec = spec
        self._lock = threading.Lock()
        self._inbox: SimpleQueue[tuple[Call, Done] | None] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        with self._lock:
            if not self._closed:
                self._standing().put((call, done))
                return
        done(Result(self.number, error=EnvFault(f"Slot {self.number} of {self._spec.id} is closed.")))

    def replace(self) -> None:
        """See `Slot.replace`. No thread can be killed: the old one closes its world when it comes back, if ever."""
        with self._lock:
            if self._inbox is not None:
                self._forgotten()
                self._inbox = self._thread = None

    def close(self) -> None:
        """See `Slot.close`."""
        with self._lock:
            self._closed = True
            if self._inbox is not None:
                self._forgotten()

    def join(self, patience: float) -> bool:
        """See `Slot.join`."""
        thread = self._thread
        if thread is not None:
            thread.join(patience)
        return thread is None or not thread.is_alive()

    def _standing(self) -> SimpleQueue[tuple[Call, Done] | None]:
        """The inbox of the slot's thread, which is started when first needed."""
        if self._inbox is None:
            self._inbox = SimpleQueue()
            self._forgotten = weakref.finalize(self, self._inbox.put, None)
            self._forgotten.atexit = False  # what worlds hold goes with the process
            self._thread = threading.Thread(
                target=_play,
                args=(self.number, self._spec, self._inbox),
                name=f"agentgym-slot-{self.number}",
                daemon=True,
            )
            self._thread.start()
        return self._inbox


def _play(number: int, spec: WorldSpec, inbox: SimpleQueue[tuple[Call, Done] | None]) -> None:
    """The life of a slot's thread: one call after the other until there is a None."""
    slot = InlineSlot(number, spec)
    while (item := inbox.get()) is not None:
        slot.submit(*item)
        del item  # a `done` holds on to whoever waits
    slot.close()
