"""Stop a run by signal: after the current step on Ctrl-C, immediately on SIGTERM and SIGUSR1, received by any process.

Immediately means that the current rollout or evaluation, which may take minutes, is abandoned: the state after the last
step is still in memory, and is saved. An update is completed first, since it changes the weights in place.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from agentgym_eval.util.stopping import SIGNALS, Termination

from agentgym_trainer.distributed import Ranks

_Item = TypeVar("_Item")
_SAME_S = 1.0
"""Seconds within which a second SIGINT counts as the same: launchers pass on a Ctrl-C that their child processes have
already received from the terminal."""


class Stopped(Exception):
    """SIGTERM or SIGUSR1 stopped the current rollout or evaluation."""


class Stopping(Termination):
    """A context manager that records the signals sent to a run, for the main thread of each of its processes."""

    def __init__(
        self,
        say: Callable[[str], object] | None = None,
        *,
        ranks: Ranks | None = None,
        early: Termination | None = None,
    ) -> None:
        """Create the context manager without installing handlers.

        Args:
            say: Called with a message on the first Ctrl-C.
            ranks: The processes of the run, if there may be several; a signal to one of them is passed on to all.
            early: Signals received before the context is entered, which count too.
        """
        super().__init__()
        self._say = say
        self._ranks = ranks if ranks and ranks.count > 1 else None
        self._early = early
        self._interrupted: float | None = None

    def __call__(self) -> bool:
        """Whether this process should stop, immediately or after the step. A second Ctrl-C raises KeyboardInterrupt."""
        return self.received is not None or self._interrupted is not None

    @property
    def received(self) -> signal.Signals | None:
        """The first SIGTERM or SIGUSR1 that any process of the run has received, as far as this process knows."""
        if self._first is None and self._ranks and (number := self._ranks.noticed()):
            self._first = signal.Signals(number)
        return self._first

    @property
    def at_once(self) -> bool:
        """Whether any process of the run has received SIGTERM or SIGUSR1, so the run should stop immediately."""
        return self.received is not None

    def check(self) -> None:
        """Raise `Stopped` if the run should stop immediately."""
        if self.at_once:
            raise Stopped

    def heeded(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield `items`; raise `Stopped` once the run should stop immediately."""
        for item in items:
            self.check()
            yield item

    def __enter__(self) -> Self:
        super().__enter__()
        self._sigint: Any = signal.signal(signal.SIGINT, self._interrupt)
        if self._ranks:
            # Python runs signal handlers in the main thread, which may wait minutes for another process's rollout. The
            # wakeup file descriptor is written by the C-level handler, so a thread can read it immediately.
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._forwarder = threading.Thread(target=self._forward, args=(self._ranks,), name="signals", daemon=True)
            self._forwarder.start()
        if self._early and (number := self._early.received):
            signal.raise_signal(number)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._ranks:
            signal.set_wakeup_fd(self._wakeup)
            self._writer.close()
            self._forwarder.join()
            self._reader.close()
        signal.signal(signal.SIGINT, self._sigint)
        super().__exit__(*error)

    def _forward(self, ranks: Ranks) -> None:
        while numbers := self._reader.recv(64):
            for number in set(numbers) & set(SIGNALS):
                ranks.notice(number)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._interrupted is None:
            self._interrupted = now
            if self._say:
                self._say("Stopping after this step; Ctrl-C again stops immediately.")
        elif now - self._interrupted > _SAME_S:
            raise KeyboardInterrupt
