"""How a run is asked to end: after its step by Ctrl-C, at once by SIGTERM and SIGUSR1, whichever process gets them.

At once means without the rollout or evaluation under way, which may take minutes: what the last step left is all in
memory, and is saved. An update is finished first, for it changes the weights in place.
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
"""A launcher of many processes passes Ctrl-C on to those that had it from the terminal already."""


class Stopped(Exception):
    """SIGTERM or SIGUSR1 has ended what was under way."""


class Stopping(Termination):
    """What signals ask of a run while this is entered in the main thread of each of its processes."""

    def __init__(
        self,
        say: Callable[[str], object] | None = None,
        *,
        ranks: Ranks | None = None,
        early: Termination | None = None,
    ) -> None:
        """Hear nothing yet.

        Args:
            say: Told what the first Ctrl-C does.
            ranks: The processes of the run, where there may be several; a signal that reaches one is passed on to all.
            early: What signals came before this is entered, which count as well.
        """
        super().__init__()
        self._say = say
        self._ranks = ranks if ranks and ranks.count > 1 else None
        self._early = early
        self._interrupted: float | None = None

    def __call__(self) -> bool:
        """Whether this process was asked to end, be it after the step. A second Ctrl-C ends it where it is."""
        return self.received is not None or self._interrupted is not None

    @property
    def received(self) -> signal.Signals | None:
        """The first of the signals that came to any process of the run, as far as this one knows."""
        if self._first is None and self._ranks and (number := self._ranks.noticed()):
            self._first = signal.Signals(number)
        return self._first

    @property
    def at_once(self) -> bool:
        """Whether SIGTERM or SIGUSR1 came to any process of the run."""
        return self.received is not None

    def check(self) -> None:
        """Raise `Stopped` where the run is to end at once."""
        if self.at_once:
            raise Stopped

    def heeded(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Pass `items` on until the run is to end at once, which raises `Stopped`."""
        for item in items:
            self.check()
            yield item

    def __enter__(self) -> Self:
        super().__enter__()
        self._sigint: Any = signal.signal(signal.SIGINT, self._interrupt)
        if self._ranks:
            # Python's handlers wait for the main thread, and that may be waiting for a process that plays for minutes.
            # What the system itself writes here, a thread reads at once.
            self._ears, self._mouth = socket.socketpair()
            self._mouth.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
            self._passing = threading.Thread(target=self._pass_on, args=(self._ranks,), name="signals", daemon=True)
            self._passing.start()
        if self._early and (number := self._early.received):
            signal.raise_signal(number)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._ranks:
            signal.set_wakeup_fd(self._wakeup)
            self._mouth.close()
            self._passing.join()
            self._ears.close()
        signal.signal(signal.SIGINT, self._sigint)
        super().__exit__(*error)

    def _pass_on(self, ranks: Ranks) -> None:
        while numbers := self._ears.recv(64):
            for number in set(numbers) & set(SIGNALS):
                ranks.notice(number)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._interrupted is None:
            self._interrupted = now
            if self._say:
                self._say("Stopping after this step; Ctrl-C again stops at once.")
        elif now - self._interrupted > _SAME_S:
            raise KeyboardInterrupt
