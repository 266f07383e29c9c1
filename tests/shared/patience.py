"""How tests wait for what happens in another thread, process or task: until it has happened.

There is one patience for all. It is used up only when a test fails, so it is longer than any busy machine needs.
`tests/test_waiting.py` finds tests that wait in any other way.
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


def eventually(holds: Callable[[], T], what: str = "what the test waits for") -> T:
    """The first true value of `holds()`. Raises `AssertionError` with its last value when the patience is over."""
    end = time.monotonic() + PATIENCE
    while not (last := holds()):
        assert time.monotonic() < end, f"after {PATIENCE:g} s {what} has not come; last value: {last!r}"
        time.sleep(_PAUSE)
    return last


async def eventually_async(holds: Callable[[], T], what: str = "what the test waits for") -> T:
    """`eventually`, with the event loop running meanwhile."""
    end = time.monotonic() + PATIENCE
    while not (last := holds()):
        assert time.monotonic() < end, f"after {PATIENCE:g} s {what} has not come; last value: {last!r}"
        await asyncio.sleep(0.001)
    return last


def all_end(processes: Sequence[psutil.Process]) -> bool:
    """Whether these very processes end: a `psutil.Process` knows itself from a later one with its number."""
    return not psutil.wait_procs(list(processes), timeout=PATIENCE)[1]
