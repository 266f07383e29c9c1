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

    row_G: Tensor
    token_GM: Tensor
    """Where in the list the tokens stand; behind a row's last one it is repeated."""
    seen: Tensor
    """Which keys each of them sees, bool [G, 1, M, keys]."""


class Reading:
    """A pass over n rows."""

    def __init__(self, spans: Sequence[Span], twins: Sequence[Twin], capacity: int, device: torch.device) -> None:
        """Plan it.

        Args:
            spans: What is read, of the rows 0 to n - 1 in this order.
            twins: Who gets copies.
            capacity: Positions of a row in the cache.
            device: Where the cache is.
        """
        self.spans = spans
        self._device = device
        self._longer = sorted((span for span in spans if span.earlier), key=lambda span: -span.earlier)
        ends = accumulate((span.earlier for span in self._longer), initial=len(spans))
        self._start = {span.row: start for span, start in zip(self._longer, ends, strict=False)}
        """Where in the list the tokens before a row's last one begin."""
        position = self._listed([s.stop - 1 for s in spans], lambda s: np.arange(s.start, s.stop - 1))
        place = position + capacity * self._listed([s.row for s in spans], lambda s: np.full(s.earlier, s.row))
        self.token_P: Tensor | None = None
        """Which tokens of the list the places get; None when each gets the one of its own."""
        if twins:
            copied, places = self._copied(twins, capacity)
            self.token_P = self._tensor(np.concatenate([np.arange(len(place)), copied]))
            place = np.concatenate([place, places])
        self.place_P = self._tensor(place)
        """Places in the cache, row * capacity + position, that get keys and values."""
        self.position_T = self._tensor(position)
        """Position of each token in its row."""
        self.width = int(position[: len(spans)].max()) + 1
        """Keys that the longest row has."""
        key = torch.arange(self.width, device=device)
        self.seen = key <= self.position_T[: len(spans), None, None, None]
        """Which keys the last tokens see, bool [n, 1, 1, width]."""
        self.groups = [self._group(group, key) for group in self._alike()]
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

    def _copied(self, twins: Sequence[Twin], capacity: int) -> tuple[Ints, Ints]:
        """The tokens that twins get, and their places."""
        tokens: list[Ints] = []
        places: list[Ints] = []
        for reader, (row, start, stop) in twins:
            position = np.arange(start, stop)
            read = self.spans[reader]
            earlier = self._start.get(reader, 0) + position - read.start
            tokens.append(np.where(position == read.stop - 1, reader, earlier))
            places.append(row * capacity + position)
        return np.concatenate(tokens), np.concatenate(places)

    def _alike(self) -> list[list[Span]]:
        groups: list[list[Span]] = []
        for span in self._longer:
            if not groups or span.earlier < _ALIKE * groups[-1][0].earlier:
                groups.append([])
            groups[-1].append(span)
        return groups

    def _group(self, spans: Sequence[Span], key: Tensor) -> Group:
        most, width = spans[0].earlier, max(span.stop for span in spans) - 1
        start, row, earlier = np.array([[self._start[s.row], s.row, s.earlier] for s in spans]).T[:, :, None]
        token = self._tensor(start + np.minimum(np.arange(most), earlier - 1))
        position = self.position_T[token]
        return Group(self._tensor(row[:, 0]), token, key[:width] <= position[:, None, :, None])

    def _outcome(self) -> Tensor:
        """Behind the last tokens come the rows of the groups, each as long as its group's first."""
        where = [np.arange(len(self.spans))]
        begin = len(self.spans)
        for group in self._alike():
            for span in group:
                where.append(np.arange(begin, begin + span.earlier))
                begin += group[0].earlier
        return self._tensor(np.concatenate(where))

    def _tensor(self, values: Ints) -> Tensor:
        return torch.from_numpy(values).to(self._device)
