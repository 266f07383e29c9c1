"""The errors that a command shows as a sentence instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class UsageError(ValueError):
    """What was asked for can't be had; the message says what exists and what to do next."""


class Unplayable(UsageError):
    """A policy can't play one of the worlds, whatever the task; others it may."""


class WorldMissing(UsageError):
    """A world needs what isn't installed; the message has the command that installs it."""


class RunStopped(RuntimeError):
    """The player can't go on, through no mistake of the user's: its engine died, its server is gone. The message is a
    sentence that says which.
    """


class BudgetSpent(RunStopped):
    """What the player may use is used up; with a larger budget the run goes on."""


def did_you_mean(asked: str, known: Sequence[str]) -> str:
    """` Did you mean x?` with a leading space, or nothing when no name is near."""
    near = difflib.get_close_matches(asked, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """The names with commas between them; beyond `most`, how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
