"""SIGTERM, which Slurm, Docker, Kubernetes and `timeout` send, ends a command as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Termination:
    """While this is entered in the main thread, SIGTERM does what SIGINT does there. Elsewhere it changes nothing."""

    def __init__(self) -> None:
        """Nothing is changed yet."""
        self.asked = False
        """Whether a SIGTERM came."""

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._sigint: Any = signal.getsignal(signal.SIGINT)
            if self._sigint is signal.SIG_IGN:
                # As in the background of a shell. `asyncio.Runner` cancels in order only where Python's own handler is
                # set: set it, and keep the signal itself away.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self._sigterm: Any = signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._main:
            signal.signal(signal.SIGTERM, self._sigterm)
            if self._sigint is signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # which drops those that were blocked
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _terminate(self, _: int, frame: FrameType | None) -> None:
        self.asked = True
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)
