"""How schedulers end a command: by SIGTERM (Slurm, Docker, Kubernetes, `timeout`), and by SIGUSR1, which Slurm can be
asked to send some time before a job's limit.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Termination:
    """While this is entered in the main thread, SIGTERM and SIGUSR1 don't end the process: the first one is noted, and
    later ones change nothing, for launchers pass on what their children got already. Elsewhere it changes nothing.
    """

    def __init__(self) -> None:
        """Nothing is changed yet."""
        self._first: signal.Signals | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The first of the signals that came."""
        return self._first

    @property
    def exit_code(self) -> int:
        """Of a command that was ended: 128 and the number of the signal, as shells have it; without one Ctrl-C's."""
        return 128 + (self.received or signal.SIGINT)

    @property
    def word(self) -> str:
        """What has become of the command that was ended."""
        if self.received is None:
            return "Interrupted"
        return "Terminated" if self.received == signal.SIGTERM else f"Ended by {self.received.name}"

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        self._before: dict[signal.Signals, Any] = {}
        if self._main:
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = signal.Signals(number)
            self._act(frame)

    def _act(self, frame: FrameType | None) -> None:
        """What the first signal does besides being noted: nothing."""


class Interruption(Termination):
    """The first SIGTERM or SIGUSR1 does besides what SIGINT does in the main thread."""

    def __enter__(self) -> Self:
        self._sigint: Any = signal.getsignal(signal.SIGINT)
        super().__enter__()
        if self._main and self._sigint is signal.SIG_IGN:
            # As in the background of a shell. `asyncio.Runner` cancels in order only where Python's own handler is
            # set: set it, and keep the signal itself away.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        super().__exit__(*error)
        if self._main and self._sigint is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # which drops those that were blocked
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _act(self, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)
