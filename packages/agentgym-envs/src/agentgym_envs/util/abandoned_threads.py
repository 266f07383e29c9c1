"""Threads that were given up because something blocks them. Only `os._exit` is sure to end their process."""

from __future__ import annotations

import os

_processes: set[int] = set()


def note_abandoned() -> None:
    """Record that a thread of this process was given up."""
    _processes.add(os.getpid())


def any_abandoned() -> bool:
    """Whether a thread of this process was given up; a forked process has none of its parent's."""
    return os.getpid() in _processes
