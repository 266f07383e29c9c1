"""Waiting for events in other threads, processes or tasks.

All tests share one timeout. It expires only if a test fails, so it is longer than any busy machine needs.
`tests/test_waiting.py` finds tests that wait in another way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil

T = TypeVar("T")
PATIENCE = 120.0  # seconds
_PAUSE = 0.01


def eventually(holds: Callable[[], T], what: str = "the condition") -> T:
    """Return the first true value of `holds()`. Raise `AssertionError` with the last value after the timeout."""
    end = time.monotonic() + PATIENCE
    while not (last := holds()):
        assert time.monotonic() < end, f"timeout of {PATIENCE:g} s waiting for {what}; last value: {last!r}"
        time.sleep(_PAUSE)
    return last


async def eventually_async(holds: Callable[[], T], what: str = "the condition") -> T:
    """Like `eventually`, without blocking the event loop."""
    end = time.monotonic() + PATIENCE
    while not (last := holds()):
        assert time.monotonic() < end, f"timeout of {PATIENCE:g} s waiting for {what}; last value: {last!r}"
        await asyncio.sleep(0.001)
    return last


def all_end(processes: Sequence[psutil.Process]) -> bool:
    """Return whether the processes end. A `psutil.Process` is never confused with a later process of the same id."""
    return not psutil.wait_procs(list(processes), timeout=PATIENCE)[1]
