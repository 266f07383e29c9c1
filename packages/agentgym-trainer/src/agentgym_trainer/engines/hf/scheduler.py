"""The scheduler of the KV cache: which sequence has which row, which prefixes it copies, and what it has to prefill.

A sequence that continues finds its row again by its own prefix; requests need no session ids. A sequence that shares
a prefix with another one gets copies of the keys and values that the other has read or is reading now.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from agentgym_trainer.engines.base import EngineUsage
from agentgym_trainer.engines.hf.forward_plan import Reading, Span, Twin
from agentgym_trainer.engines.hf.kv_cache import RaggedCache
from agentgym_trainer.engines.hf.prefix_index import Prefixes, packed

_TOKENS = 8192
"""The maximum number of tokens prefilled in one pass, over all rows."""


@dataclass(slots=True, eq=False)
class Row:
    """A row of the cache and its sequence."""

    holder: int
    """Its key in the prefix index."""
    place: int
    """Its index in the cache."""
    ids: list[int] = field(default_factory=list[int])
    """The context and the completion tokens so far."""
    read: int = 0
    """Number of ids that are in the cache. In an active row, at least one is not."""
    idle: bool = True
    context: int = 0
    """Number of ids that are the context."""
    known: int = 0
    """Number of ids that the row had before it got this context."""
    leader: Row | None = None
    """The row that is reading a common prefix."""
    until: int = 0
    """Number of tokens in common with the leader."""


class Rows:
    """All rows of a cache."""

    def __init__(self, device: torch.device, usage: EngineUsage, *, keep: int, most: float = math.inf) -> None:
        """Start without rows.

        Args:
            device: The device of the cache.
            usage: Counts prefilled and reused tokens.
            keep: The maximum number of positions of idle rows, which are as many for each as the cache has; beyond it,
                those that have been idle longest are dropped.
            most: The number of rows beyond which idle ones are dropped as well.
        """
        self.cache = RaggedCache(device, most=most)
        self._device = device
        self._usage = usage
        self._keep, self._most = keep, most
        self._prefixes = Prefixes()
        self._names = count()
        self._rows: list[Row] = []
        """Rows by place."""
        self._named: dict[int, Row] = {}
        self._idle: dict[Row, None] = {}
        """Idle rows in the order in which they became idle."""
        self._copying: dict[Row, tuple[Row, int, int]] = {}
        """Copies due before the next pass: target row to source row, start and stop."""

    def join(self, ids: Sequence[int]) -> Row:
        """Return a row for a context: the idle one that holds its longest prefix and nothing else, or a new one."""
        content = packed(ids)
        longest, within = self._prefixes.find(content)
        row = next((self._named[holder] for holder in within if self._named[holder].idle), None)
        row = row or self._reused(None if longest is None else longest.holder) or self._new()
        self._idle.pop(row, None)
        # The last token that the row sampled itself is not in the cache yet.
        unread = row.ids[row.read : row.read + 1]
        row.known = row.read + (1 if unread and unread == list(ids[row.read : row.read + 1]) else 0)
        row.idle, row.ids, row.context = False, list(ids), len(ids)
        # The last token must be read to get the logits of the next one.
        row.read = min(row.read, len(ids) - 1)
        if longest is not None and longest.holder != row.holder:
            self._share_prefix(row, self._named[longest.holder], min(longest.common, len(ids) - 1))
        self._usage.reused += row.read
        self._prefixes.hold(row.holder, content)
        return row

    def leave(self, row: Row) -> None:
        """Release the row; its KV cache stays reusable."""
        if row in self._copying:
            self._copy()
        row.idle, row.leader = True, None
        for other in self._rows:
            if other.leader is row:
                other.leader = None
        self._prefixes.hold(row.holder, packed(row.ids[: row.read]))
        self._idle[row] = None

    def read(self, active: Iterable[Row]) -> tuple[list[Row], Reading]:
        """Plan a forward pass.

        Args:
            active: The active rows, in the order in which they joined.

        Returns:
            The rows that are read, in their order, and the plan, which must be computed before the next call.
        """
        active = list(active)
        self._copy()
        self._drop(max(len(row.ids) for row in active))
        parts, reading, budget = dict[Row, list[tuple[Row, int, int]]](), list[Row](), _TOKENS
        for row in active:
            parts[row] = self._follow(row, parts)
            take = 0 if row.leader else min(len(row.ids) - row.read, max(1, budget))
            if take:
                budget -= take
                parts[row].append((row, row.read, row.read + take))
                self._usage.prefilled += max(0, min(row.read + take, row.context) - max(row.read, row.known))
                row.read += take
                reading.append(row)
        front = self._bring_to_front(reading)
        self.cache.reserve(len(self._rows), max(row.read for row in active))
        spans = [Span(row.place, *parts[row][-1][1:]) for row in front]
        twins = [
            Twin(reader.place, Span(row.place, start, stop))
            for row, received in parts.items()
            for reader, start, stop in received
            if reader is not row
        ]
        return front, self.cache.read(spans, twins)

    def _share_prefix(self, row: Row, other: Row, until: int) -> None:
        """Copy the common tokens that another row has read already, and follow it for those it has yet to read."""
        if other in self._copying:
            self._copy()
        have = min(until, other.read)
        if row.read < have:
            self._copying[row] = other, row.read, have
            row.read = have
        if row.read < until:
            row.leader, row.until = other, until

    def _follow(self, row: Row, parts: dict[Row, list[tuple[Row, int, int]]]) -> list[tuple[Row, int, int]]:
        """Return the parts that the row receives with its leader in this pass: reader, start and stop."""
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

    def _reused(self, needed: int | None) -> Row | None:
        """Return the row that has been idle longest, emptied, if there are enough rows already; not one whose content
        is needed by another: by its key in the prefix index, or because it is about to be copied.
        """
        if len(self._rows) < self._most:
            return None
        copied = {other for other, _, _ in self._copying.values()}
        row = next((row for row in self._idle if row.holder != needed and row not in copied), None)
        if row is not None:
            del self._idle[row]
            self._prefixes.drop(row.holder)
            row.ids, row.read = [], 0
        return row

    def _new(self) -> Row:
        row = Row(next(self._names), len(self._rows))
        self._rows.append(row)
        self._named[row.holder] = row
        return row

    def _drop(self, longest: int) -> None:
        """Drop idle rows before a pass over active rows of up to this many ids."""
        positions = self.cache.positions_for(longest)
        while self._idle and (len(self._idle) * positions > self._keep or len(self._rows) > self._most):
            row = next(iter(self._idle))
            del self._idle[row], self._named[row.holder]
            self._prefixes.drop(row.holder)
            last = self._rows.pop()
            if last is not row:
                self.cache.swap([row.place], [last.place], last.read)
                self._rows[row.place], last.place = last, row.place

    def _bring_to_front(self, wanted: Sequence[Row]) -> list[Row]:
        """Move these rows to the front with as few swaps as possible, and return them in their new order."""
        n, chosen = len(wanted), set(wanted)
        out = [row for row in self._rows[:n] if row not in chosen]
        into = [row for row in wanted if row.place >= n]
        if out:
            width = max(row.read for row in (*out, *into))
            self.cache.swap([row.place for row in out], [row.place for row in into], width)
            for a, b in zip(out, into, strict=True):
                a.place, b.place = b.place, a.place
                self._rows[a.place], self._rows[b.place] = a, b
        return self._rows[:n]
