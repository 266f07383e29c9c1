"""Errors that a command prints as a sentence instead of a traceback, and helpers for their messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UsageError(ValueError):
    """A request that can't be fulfilled; the message says what exists and what to do next."""


class Unplayable(UsageError):
    """A policy can't play one of the environments, whichever task is chosen; it may be able to play others."""


class WorldMissing(UsageError):
    """An environment's dependency isn't installed; the message has the command that installs it."""


class RunStopped(RuntimeError):
    """The policy can't continue: its engine died, its server is gone, or its code raised an error. The message is a
    sentence that says which.
    """


class BudgetSpent(RunStopped):
    """The policy's budget is spent; with a larger budget the run can be resumed."""


def did_you_mean(asked: str, known: Sequence[str], *, cutoff: float = 0.5) -> str:
    """Return ` Did you mean x?` with a leading space, or an empty string if no known name is similar, by at least
    `cutoff` from 0 to 1.
    """
    near = difflib.get_close_matches(asked, known, n=1, cutoff=cutoff)
    return f" Did you mean {near[0]}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known name, and all of them."""
    near = difflib.get_close_matches(name, known := sorted(known), n=1, cutoff=0.5)
    there_are = f"There are: {', '.join(known)}."
    return f"Did you mean {near[0]!r}? {there_are}" if near else there_are


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the names separated by commas; beyond `most`, the number of further ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
