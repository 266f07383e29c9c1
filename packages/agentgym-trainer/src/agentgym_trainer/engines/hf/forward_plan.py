"""What one forward pass reads: a flat list of tokens of many sequences, each of which knows its row and position.

Who joins pads nobody. First in the list come the last tokens of all rows: for rows that grow token by token, which is
nearly always, one call of attention does. What rows that are joining read before their last token is attended to in
groups of similar length. Knows neither what the tokens are nor what keys and values look like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

_ALIKE = 0.75
"""Rows that read this much as many tokens as the first of their group are computed with it."""


class Span(NamedTuple):
    """Positions of a row."""

    row: int
    start: int
    stop: int

    @property
    def earlier(self) -> int:
        """Positions before the last one."""
        return self.stop - 1 - self.start


class Twin(NamedTuple):
    """Positions of a row that get the keys and values of the same positions of another row, when it reads them."""

    reader: int
    span: Span


class Group(NamedTuple):
    """Rows that read similarly many tokens before their last one."""

    rows: slice | Tensor
    """Their numbers; a slice when they stand side by side, so that keys and values needn't be gathered."""
    token_GM: Tensor
    """Where in the list the tokens stand; behind a row's last one it is repeated."""
    seen: Tensor
    """Which keys each of them sees, bool [G, 1, M, keys]."""


class Reading:
    """A pass over n rows."""

    def __init__(self, spans: Sequence[Span], twins: Sequence[Twin], device: torch.device) -> None:
        """Plan it.

        Args:
            spans: What is read, of the rows 0 to n - 1 in this order.
            twins: Who gets copies.
            device: Where the cache is.
        """
        self.spans = spans
        self._device = device
        self._alike = _alike(spans)
        self._longer = [span for group in self._alike for span in group]
        ends = accumulate((span.earlier for span in self._longer), initial=len(spans))
        self._start = {span.row: start for span, start in zip(self._longer, ends, strict=False)}
        """Where in the list the tokens before a row's last one begin."""
        position = self._listed([s.stop - 1 for s in spans], lambda s: np.arange(s.start, s.stop - 1))
        row = self._listed([s.row for s in spans], lambda s: np.full(s.earlier, s.row))
        self.position_T = self._tensor(position)
        """Position of each token in its row."""
        self.place_P = self._tensor(row), self.position_T
        """Rows and positions that get keys and values."""
        self.token_P: Tensor | None = None
        """Which tokens of the list the places get; None when each gets the one of its own."""
        if twins:
            token, *place = self._twins(twins)
            self.token_P = self._tensor(np.concatenate([np.arange(len(row)), token]))
            rows, positions = (np.concatenate(both) for both in zip((row, position), place, strict=True))
            self.place_P = self._tensor(rows), self._tensor(positions)
        self.width = int(position[: len(spans)].max()) + 1
        """Keys that the longest row has."""
        key = torch.arange(self.width, device=device)
        self.seen = key <= self.position_T[: len(spans), None, None, None]
        """Which keys the last tokens see, bool [n, 1, 1, width]."""
        self.groups = [self._group(group, key) for group in self._alike]
        self.outcome_T = self._outcome() if self.groups else None
        """Where in what the calls of attention give, end to end, each token stands; None when in order."""

    @property
    def rows(self) -> int:
        """How many are read into."""
        return len(self.spans)

    def listed(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """The ids that each row reads, as one list."""
        return self._tensor(self._listed([part[-1] for part in ids], lambda span: np.array(ids[span.row][:-1])))

    def _listed(self, last: Sequence[int], earlier: Callable[[Span], Ints]) -> Ints:
        return np.concatenate([np.array(last, dtype=np.int64), *map(earlier, self._longer)])

    def _twins(self, twins: Sequence[Twin]) -> list[Ints]:
        """The tokens that twins get, their rows and positions."""
        parts: list[tuple[Ints, Ints, Ints]] = []
        for reader, (row, start, stop) in twins:
            position = np.arange(start, stop)
            read = self.spans[reader]
            earlier = self._start.get(reader, 0) + position - read.start
            parts.append((np.where(position == read.stop - 1, reader, earlier), np.full_like(position, row), position))
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _group(self, spans: Sequence[Span], key: Tensor) -> Group:
        most, width = max(span.earlier for span in spans), max(span.stop for span in spans) - 1
        first, last = spans[0].row, spans[-1].row
        start, row, earlier = np.array([[self._start[s.row], s.row, s.earlier] for s in spans]).T[:, :, None]
        token = self._tensor(start + np.minimum(np.arange(most), earlier - 1))
        position = self.position_T[token]
        rows = slice(first, last + 1) if last - first == len(spans) - 1 else self._tensor(row[:, 0])
        return Group(rows, token, key[:width] <= position[:, None, :, None])

    def _outcome(self) -> Tensor:
        """Behind the last tokens come the rows of the groups, each as long as its group's longest."""
        where = [np.arange(len(self.spans))]
        begin = len(self.spans)
        for group in self._alike:
            most = max(span.earlier for span in group)
            for span in group:
                where.append(np.arange(begin, begin + span.earlier))
                begin += most
        return self._tensor(np.concatenate(where))

    def _tensor(self, values: Ints) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _alike(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans with tokens before the last one, in groups of similarly many; in each of them in the order of the rows."""
    groups: list[list[Span]] = []
    for span in sorted((span for span in spans if span.earlier), key=lambda span: -span.earlier):
        if not groups or span.earlier < _ALIKE * groups[-1][0].earlier:
            groups.append([])
        groups[-1].append(span)
    return [sorted(group) for group in groups]
