"""Signals with which schedulers end a command: SIGTERM (Slurm, Docker, Kubernetes, `timeout`) and SIGUSR1, which Slurm
can be configured to send some time before a job's limit.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Termination:
    """A context manager that records SIGTERM and SIGUSR1 instead of letting them end the process.

    The first signal is recorded. Later ones are ignored, because launchers pass on signals that their children have
    already received. Outside the main thread it has no effect.
    """

    def __init__(self) -> None:
        """Create the context manager without installing handlers."""
        self._first: signal.Signals | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The first signal that was received."""
        return self._first

    @property
    def exit_code(self) -> int:
        """The exit code of an ended command: 128 plus the signal number, as in shells; that of SIGINT if none came."""
        return 128 + (self.received or signal.SIGINT)

    @property
    def word(self) -> str:
        """How the command ended, for its last message."""
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
        """Handle the first signal, besides recording it; does nothing here."""


class Interruption(Termination):
    """A `Termination` whose first SIGTERM or SIGUSR1 also triggers the handler of SIGINT in the main thread."""

    def __enter__(self) -> Self:
        self._sigint: Any = signal.getsignal(signal.SIGINT)
        super().__enter__()
        if self._main and self._sigint is signal.SIG_IGN:
            # SIGINT is ignored, as for background jobs of a shell. `asyncio.Runner` only cancels its tasks in order if
            # Python's default handler is set, so set it and block the signal itself.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        super().__exit__(*error)
        if self._main and self._sigint is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # discards pending blocked signals
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _act(self, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)
