"""The seconds that each phase of a training step takes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager


class PhaseTimer:
    """Adds up seconds by phase."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, float](float)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Add the seconds of this context to a phase, without those of phases nested in it."""
        began, within = time.perf_counter(), sum(self._seconds.values())
        yield
        within = sum(self._seconds.values()) - within
        self._seconds[name] += time.perf_counter() - began - within

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._seconds[name] += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call."""
        seconds, self._seconds = self._seconds, defaultdict[str, float](float)
        return dict(seconds)
