"""Exponential backoff with a deadline, for a server that is unreachable."""

from __future__ import annotations

import asyncio
import time

from agentgym_trainer.engines.base import EngineGone

_FIRST, _LONGEST = 0.1, 10.0


class Backoff:
    """Exponential backoff with a deadline.

    Args:
        seconds: The deadline, counted from the first fault since the last recovery.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._cause: Exception | None = None
        self._since = 0.0
        self._pause = _FIRST

    def tried(self, fault: Exception) -> None:
        """Record a fault."""
        if self._cause is None:
            self._since = time.monotonic()
        self._cause = fault

    def restored(self) -> None:
        """Record a recovery: reset the deadline and the pause."""
        self._cause, self._pause = None, _FIRST

    async def wait(self, who: str) -> None:
        """Sleep before the next attempt; return immediately if there was no fault.

        Args:
            who: The server, as the subject of the error message.

        Raises:
            EngineGone: when the deadline has passed.
        """
        if self._cause is None:
            return
        if time.monotonic() - self._since > self.seconds:
            message = f"{who} has been unavailable for {self.seconds:g} s: {self._cause}."
            raise EngineGone(message) from self._cause
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST)
