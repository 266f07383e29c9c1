"""The processes below this one. Any of them may end while it is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """How it was started; nothing when it has ended, be it as a zombie."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def alive(pids: Sequence[int]) -> list[int]:
    """Those that run."""
    living: list[int] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            living += [pid] * (psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return living


def descendants(word: str) -> list[psutil.Process]:
    """Those with this in their command line."""
    return [child for child in psutil.Process().children(recursive=True) if word in " ".join(command_line(child))]
