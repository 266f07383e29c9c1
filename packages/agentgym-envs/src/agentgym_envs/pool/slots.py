"""Slots: each holds one environment and carries out one call at a time, in the caller's thread or in its own.

Thread-bound environments, such as browsers and Java bridges, are created, stepped and closed in the slot's thread only.
Slots do not handle deadlines.
"""

from __future__ import annotations

import logging
import threading
import weakref
from queue import SimpleQueue
from typing import Protocol

import gymnasium

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.calls import Call, Done, Result, WorldSpec, carry_out, refused

_log = logging.getLogger(__name__)


class Slot(Protocol):
    """A holder of one environment at a time."""

    @property
    def number(self) -> int:
        """Return the slot number that its results carry."""
        ...

    def submit(self, call: Call, done: Done) -> None:
        """Carry out `call`, now or later, and pass its result to `done` exactly once. Never raises. Only one call may
        be pending.
        """
        ...

    def replace(self) -> None:
        """Discard the environment, even if it hangs or is dead; the next call creates a new one. A late result of the
        old environment may or may not reach its `done`.
        """
        ...

    def close(self) -> None:
        """Start closing the environment and freeing the slot's resources, without waiting. May be called repeatedly."""
        ...

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for `close` to finish. Return whether it did."""
        ...


class InlineSlot:
    """A slot that runs in the thread of the caller, which is fastest for environments that answer in microseconds.

    The other methods may be called from another thread during a call. An environment that is discarded during a call
    is closed by the calling thread when the call returns.
    """

    def __init__(self, number: int, spec: WorldSpec) -> None:
        self.number = number
        self._spec = spec
        self._env: gymnasium.Env[str, str] | None = None
        self._running = False
        self._closed = False
        self._discarded: list[gymnasium.Env[str, str]] = []

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`. Calls `done` before returning."""
        self._running = True
        try:
            env = self._env
            if env is None:
                env = self._env = self._build()
            result = carry_out(env, self.number, call)
        except Exception as error:  # noqa: BLE001 - creation failed; the caller gets the error in the result
            result = Result(self.number, error=error)
        except BaseException as error:  # noqa: BLE001 - raised again unless it is the environment's
            result = refused(self.number, error)
        finally:
            self._running = False
        if self._discarded or self._closed:
            self._close_discarded()
        done(result)

    def replace(self) -> None:
        """See `Slot.replace`."""
        env, self._env = self._env, None
        if env is not None:
            self._discarded.append(env)
        if not self._running:
            self._close_discarded()

    def close(self) -> None:
        """See `Slot.close`."""
        self._closed = True
        self.replace()

    def join(self, timeout: float) -> bool:
        """See `Slot.join`. Returns True, since `close` is synchronous."""
        return True

    def _build(self) -> gymnasium.Env[str, str]:
        if self._closed:
            raise EnvFault(f"Slot {self.number} of {self._spec.id} is closed.")
        return self._spec.build()

    def _close_discarded(self) -> None:
        if self._closed and self._env is not None:
            self._discarded.append(self._env)
            self._env = None
        while self._discarded:
            try:
                self._discarded.pop().close()
            except BaseException as error:  # noqa: BLE001 - a broken environment must not keep others from closing
                reason = error if isinstance(error, Exception) else refused(self.number, error).error
                _log.warning("%s in slot %d did not close: %s", self._spec.id, self.number, reason)


class ThreadSlot:
    """A slot with its own thread, for environments that wait for a JVM, a browser or a server. The thread ends when the
    slot is closed or garbage-collected.
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
                self._started_inbox().put((call, done))
                return
        done(Result(self.number, error=EnvFault(f"Slot {self.number} of {self._spec.id} is closed.")))

    def replace(self) -> None:
        """See `Slot.replace`. Threads can't be killed: the old one closes its environment once its call returns."""
        with self._lock:
            if self._inbox is not None:
                self._finalizer()
                self._inbox = self._thread = None

    def close(self) -> None:
        """See `Slot.close`."""
        with self._lock:
            self._closed = True
            if self._inbox is not None:
                self._finalizer()

    def join(self, timeout: float) -> bool:
        """See `Slot.join`."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _started_inbox(self) -> SimpleQueue[tuple[Call, Done] | None]:
        """Return the inbox of the slot's thread, and start the thread if there is none."""
        if self._inbox is None:
            self._inbox = SimpleQueue()
            self._finalizer = weakref.finalize(self, self._inbox.put, None)
            self._finalizer.atexit = False  # resources of the environments end with the process
            self._thread = threading.Thread(
                target=_run,
                args=(self.number, self._spec, self._inbox),
                name=f"agentgym-slot-{self.number}",
                daemon=True,
            )
            self._thread.start()
        return self._inbox


def _run(number: int, spec: WorldSpec, inbox: SimpleQueue[tuple[Call, Done] | None]) -> None:
    """Carry out the calls in `inbox` one by one until a None arrives: the main function of a slot's thread."""
    slot = InlineSlot(number, spec)
    while (item := inbox.get()) is not None:
        slot.submit(*item)
        del item  # a `done` holds a reference to its waiter
    slot.close()
