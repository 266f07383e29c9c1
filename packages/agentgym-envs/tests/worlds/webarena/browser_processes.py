"""Child processes of the test process. Any of them may end while it is inspected."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line, or an empty list if the process has ended or is a zombie."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def alive(pids: Sequence[int]) -> list[int]:
    """Return the ids of the running processes among `pids`."""
    running: list[int] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            running += [pid] * (psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return running


def descendants(word: str) -> list[psutil.Process]:
    """Return the descendants of this process whose command line contains `word`."""
    return [child for child in psutil.Process().children(recursive=True) if word in " ".join(command_line(child))]
