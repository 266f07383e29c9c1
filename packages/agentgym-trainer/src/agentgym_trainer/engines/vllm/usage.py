"""Counts of the tokens and seconds that requests to a vLLM server take."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from agentgym_trainer.engines.base import EngineUsage


class UsageMeter:
    """Counts into an `EngineUsage`."""

    def __init__(self) -> None:
        self.usage = EngineUsage()
        self.requests = 0
        """Number of requests that are running."""
        self._since = 0.0

    @contextmanager
    def request(self) -> Generator[None]:
        """Count the seconds of a request in the context, once for all that run at the same time."""
        self._change(+1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, requests: int) -> None:
        """Count the seconds up to a change in the number of requests."""
        now = time.monotonic()
        if self.requests:
            self.usage.busy += now - self._since
        self._since = now
        self.requests += requests

    def add(self, usage: Any) -> None:
        """Add the tokens of a response's `usage`."""
        reused = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.usage.reused += reused
        self.usage.prefilled += usage["prompt_tokens"] - reused
        self.usage.generated += usage["completion_tokens"]
