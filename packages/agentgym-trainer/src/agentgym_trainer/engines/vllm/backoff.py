"""How long one waits for a server that is away, and how often one looks."""

from __future__ import annotations

import asyncio
import time

from agentgym_trainer.engines.base import EngineGone

_FIRST, _LONGEST = 0.1, 10.0


class Backoff:
    """Waits longer from time to time, and has an end.

    Args:
        seconds: from the first fault on, until everything is well again.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._cause: Exception | None = None
        self._since = 0.0
        self._pause = _FIRST

    def tried(self, fault: Exception) -> None:
        """Take note of a fault."""
        if self._cause is None:
            self._since = time.monotonic()
        self._cause = fault

    def restored(self) -> None:
        """Everything is well again."""
        self._cause, self._pause = None, _FIRST

    async def wait(self, who: str) -> None:
        """A while, before the next try; no time where nothing has gone wrong.

        Raises:
            EngineGone: when patience is at an end.
        """
        if self._cause is None:
            return
        if time.monotonic() - self._since > self.seconds:
            raise EngineGone(f"{who} has been away for {self.seconds:g} s: {self._cause}.") from self._cause
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST)
