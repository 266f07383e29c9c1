"""Probes of `agentgym doctor`: what is checked, and what was found.

Each package contributes probes: an entry point of the group `agentgym.probes` whose function returns them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "broken"]
_REMEDY = re.compile(r"(?P<text>.*?)\s*(?:Install (?:it|one|another): )(?P<remedy>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a probe."""

    status: Status
    """`missing` for an optional part that isn't installed, `broken` for what is there and doesn't work."""
    text: str
    """What was found, on one line."""
    remedy: str = ""
    """A command, or what to do."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A check of one part of the installation."""

    name: str
    function: str
    """MODULE:FUNCTION, which returns a `Finding`. It is called in a process of its own, which is killed after
    `seconds`; an exception, a crash or the end of its time means that the part is broken."""
    seconds: float = 120.0
    argument: str = ""
    """An argument for the function; empty for none."""


def not_installed(error: Exception) -> Finding:
    """Return the finding for a missing dependency, whose message ends with the command that installs it."""
    found = _REMEDY.fullmatch(str(error).strip())
    return Finding("missing", found["text"], found["remedy"]) if found else Finding("missing", str(error))
