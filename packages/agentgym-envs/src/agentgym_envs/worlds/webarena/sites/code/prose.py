"""Generates sentences from patterns.

A pattern file has sections; each line of a section is one alternative, with placeholders that name other sections.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

_HERE = Path(__file__).parent
_HOLE = re.compile(r"\{([\w ]+)\}")


class Prose:
    """The patterns of one file."""

    def __init__(self, file: str, random: Random) -> None:
        self._random = random
        self._sections = {name: text.splitlines() for name, text in sections(file).items()}
        self._said: set[str] = set()

    def say(self, section: str, **given: str) -> str:
        """Return a random line of a section; placeholders are filled from `given`, else with a line of that section."""

        def filled(hole: re.Match[str]) -> str:
            return given[hole[1]] if hole[1] in given else self.say(hole[1], **given)

        return _HOLE.sub(filled, self._random.choice(self._sections[section]))

    def say_new(self, section: str, **given: str) -> str:
        """Like `say`, but never returns a line twice; numbers the line once the patterns are exhausted."""
        line = ""
        for _ in range(40):
            line = self.say(section, **given)
            if line not in self._said:
                break
        else:
            line = f"{line} ({len(self._said)})"
        self._said.add(line)
        return line

    def paragraph(self, section: str, count: int, **given: str) -> str:
        """Return up to `count` different lines of a section, joined."""
        return " ".join(dict.fromkeys(self.say(section, **given) for _ in range(count)))


def sections(file: str) -> dict[str, str]:
    """Return the text below each `[name]` line of a file in this folder."""
    parts = re.split(r"^\[([\w ]+)\]\n", lines_text(file), flags=re.MULTILINE)
    return {name: text.rstrip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def lines_text(file: str) -> str:
    """Return the text of a file in this folder."""
    return (_HERE / file).read_text(encoding="utf-8")


def table(file: str) -> list[list[str]]:
    """Return the rows of a file in this folder; vertical bars separate its columns."""
    return [line.split("|") for line in lines_text(file).splitlines()]


def moments(random: Random, first: datetime, last: datetime, count: int) -> list[str]:
    """Draw `count` daytime timestamps between two days, sorted, in the database's format."""
    days = max(1, (last - first).days)
    drawn = (first + timedelta(days=random.randrange(days)) for _ in range(count))
    return sorted(f"{day:%Y-%m-%d} {random.randrange(7, 23):02}:{random.randrange(60):02}" for day in drawn)
