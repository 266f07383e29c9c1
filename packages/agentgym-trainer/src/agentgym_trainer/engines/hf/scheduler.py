"""Which sequence stands in which row of the cache, what it can take over from others, and what it has to read itself.

A sequence that goes on finds its row again by its own beginning: nobody tells the engine which is which. One that
begins like another gets copies, of what the other has read and of what it is reading now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from agentgym_trainer.engines.base import EngineUsage
from agentgym_trainer.engines.hf.forward_plan import Reading, Span, Twin
from agentgym_trainer.engines.hf.kv_cache import RaggedCache
from agentgym_trainer.engines.hf.prefix_index import Prefixes, packed

_TOKENS = 8192
"""The most tokens that rows which are joining read in one pass, together."""


@dataclass(slots=True, eq=False)
class Row:
    """A row of the cache and the sequence in it."""

    holder: int
    """Its name among the prefixes."""
    place: int
    """Its number in the cache."""
    ids: list[int] = field(default_factory=list[int])
    """The context, and what has been said."""
    read: int = 0
    """How many of the ids have been read. In one that goes on at least one has not."""
    idle: bool = True
    context: int = 0
    """How many of the ids are the context."""
    known: int = 0
    """How many of the ids the row had before it got this context."""
    leader: Row | None = None
    """The row that is reading what this one begins with too."""
    until: int = 0
    """How many tokens the two have in common."""


class Rows:
    """All rows of a cache."""

    def __init__(self, device: torch.device, usage: EngineUsage, *, keep: int) -> None:
        """Begin with none.

        Args:
            device: Where the cache is.
            usage: Where tokens read and tokens found are counted.
            keep: The most tokens of rows in which nothing goes on; beyond, the ones that rest longest are dropped.
        """
        self.cache = RaggedCache(device)
        self._device = device
        self._usage = usage
        self._keep = keep
        self._prefixes = Prefixes()
        self._names = count()
        self._rows: list[Row] = []
        """By place."""
        self._named: dict[int, Row] = {}
        self._idle: dict[Row, None] = {}
        """In the order in which they fell idle."""
        self._copying: dict[Row, tuple[Row, int, int]] = {}
        """Who gets what positions from whom before the next pass."""

    def join(self, ids: Sequence[int]) -> Row:
        """A row for a context: the one that holds most of it and nothing else, or a new one."""
        content = packed(ids)
        alike, within = self._prefixes.find(content)
        row = next((self._named[holder] for holder in within if self._named[holder].idle), None) or self._new()
        self._idle.pop(row, None)
        # Of what it has said itself it has not read the last token yet.
        unread = row.ids[row.read : row.read + 1]
        row.known = row.read + (1 if unread and unread == list(ids[row.read : row.read + 1]) else 0)
        row.idle, row.ids, row.context = False, list(ids), len(ids)
        # Without the last token there is nothing to draw the next one from.
        row.read = min(row.read, len(ids) - 1)
        if alike is not None and alike.holder != row.holder:
            self._learn(row, self._named[alike.holder], min(alike.common, len(ids) - 1))
        self._usage.reused += row.read
        self._prefixes.hold(row.holder, content)
        return row

    def leave(self, row: Row) -> None:
        """Nothing goes on in this row any more; what it holds may be of use."""
        if row in self._copying:
            self._copy()
        row.idle, row.leader = True, None
        for other in self._rows:
            if other.leader is row:
                other.leader = None
        self._prefixes.hold(row.holder, packed(row.ids[: row.read]))
        self._idle[row] = None

    def read(self, going: Iterable[Row]) -> tuple[list[Row], Reading]:
        """Plan a forward pass.

        Args:
            going: The rows in which something goes on, those that joined first in front.

        Returns:
            The rows that are read into, in their order, and what is read; to be computed before the next call.
        """
        going = list(going)
        self._copy()
        self._drop()
        parts, reading, budget = dict[Row, list[tuple[Row, int, int]]](), list[Row](), _TOKENS
        for row in going:
            parts[row] = self._follow(row, parts)
            take = 0 if row.leader else min(len(row.ids) - row.read, max(1, budget))
            if take:
                budget -= take
                parts[row].append((row, row.read, row.read + take))
                self._usage.prefilled += max(0, min(row.read + take, row.context) - max(row.read, row.known))
                row.read += take
                reading.append(row)
        front = self._bring_to_front(reading)
        self.cache.reserve(len(self._rows), max(row.read for row in going))
        spans = [Span(row.place, *parts[row][-1][1:]) for row in front]
        twins = [
            Twin(reader.place, Span(row.place, start, stop))
            for row, those in parts.items()
            for reader, start, stop in those
            if reader is not row
        ]
        return front, self.cache.read(spans, twins)

    def _learn(self, row: Row, other: Row, until: int) -> None:
        """Get from another row what it has of the tokens in common, and follow it in those that it is still to read."""
        if other in self._copying:
            self._copy()
        have = min(until, other.read)
        if row.read < have:
            self._copying[row] = other, row.read, have
            row.read = have
        if row.read < until:
            row.leader, row.until = other, until

    def _follow(self, row: Row, parts: dict[Row, list[tuple[Row, int, int]]]) -> list[tuple[Row, int, int]]:
        """What the row gets of what its leader reads in this pass, or gets itself: reader, start and stop."""
        leader = row.leader
        if leader is None:
            return []
        got = [(reader, max(start, row.read), min(stop, row.until)) for reader, start, stop in parts[leader]]
        got = [part for part in got if part[1] < part[2]]
        found = sum(stop - start for _, start, stop in got)
        row.read += found
        self._usage.reused += found
        if row.read == row.until:
            row.leader = None
        return got

    def _copy(self) -> None:
        self.cache.reserve(len(self._rows), self.cache.positions)
        for row, (other, start, stop) in self._copying.items():
            self.cache.copy(other.place, Span(row.place, start, stop))
        self._copying.clear()

    def _new(self) -> Row:
        row = Row(next(self._names), len(self._rows))
        self._rows.append(row)
        self._named[row.holder] = row
        return row

    def _drop(self) -> None:
        held = sum(row.read for row in self._idle)
        while held > self._keep:
            row = next(iter(self._idle))
            held -= row.read
            del self._idle[row], self._named[row.holder]
            self._prefixes.drop(row.holder)
            last = self._rows.pop()
            if last is not row:
                self.cache.swap([row.place], [last.place], last.read)
                self._rows[row.place], last.place = last, row.place

    def _bring_to_front(self, wanted: Sequence[Row]) -> list[Row]:
        """Let these rows stand in front, and return them in the order in which they do; few are moved."""
        n, those = len(wanted), set(wanted)
        out = [row for row in self._rows[:n] if row not in those]
        into = [row for row in wanted if row.place >= n]
        if out:
            width = max(row.read for row in (*out, *into))
            self.cache.swap([row.place for row in out], [row.place for row in into], width)
            for some, other in zip(out, into, strict=True):
                some.place, other.place = other.place, some.place
                self._rows[some.place], self._rows[other.place] = some, other
        return self._rows[:n]
