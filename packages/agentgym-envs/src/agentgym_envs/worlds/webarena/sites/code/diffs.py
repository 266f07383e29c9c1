"""Diffs as the pages show them: the changed lines of a file with some lines of context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_AROUND = 3


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a diff; `sign` is `+`, `-` or a space."""

    before: int | None
    after: int | None
    sign: str
    text: str


@dataclass(frozen=True, slots=True)
class Diff:
    """The changes to one file."""

    path: str
    lines: tuple[Line, ...]

    @property
    def added(self) -> int:
        """The number of added lines."""
        return sum(line.sign == "+" for line in self.lines)

    @property
    def removed(self) -> int:
        """The number of removed lines."""
        return sum(line.sign == "-" for line in self.lines)


def diff_of(path: str, after: str, line: int, count: int, old: str) -> Diff:
    """Return the diff that results in `after`, where `count` lines starting at `line` replaced the text `old`."""
    return Diff(path, tuple(_lines(after.splitlines(), line - 1, count, old.splitlines())))


def _lines(lines: list[str], first: int, count: int, old: list[str]) -> Iterator[Line]:
    first = min(first, max(0, len(lines) - count))
    for number in range(max(0, first - _AROUND), first):
        yield Line(number + 1, number + 1, " ", lines[number])
    for offset, text in enumerate(old):
        yield Line(first + offset + 1, None, "-", text)
    end = min(first + count, len(lines))
    for number in range(first, end):
        yield Line(None, number + 1, "+", lines[number])
    shift = len(old) - count
    for number in range(end, min(end + _AROUND, len(lines))):
        yield Line(number + shift + 1, number + 1, " ", lines[number])
