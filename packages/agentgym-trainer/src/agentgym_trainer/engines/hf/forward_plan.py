"""The plan of one forward pass over a flat list of tokens of many sequences, each token with its row and position.

Adding a sequence adds no padding. The list starts with the last token of every row: for rows that grow token by token,
nearly always the case, one attention call suffices. The earlier tokens of rows that are being prefilled are attended
to in groups of similar length. The plan depends neither on the tokens nor on the layout of keys and values.
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

_LEAST_RATIO = 0.75
"""The least ratio of a row's earlier tokens to those of the longest row of its group."""


class Span(NamedTuple):
    """A range of positions in a row."""

    row: int
    start: int
    stop: int

    @property
    def earlier(self) -> int:
        """Number of positions before the last one."""
        return self.stop - 1 - self.start


class Twin(NamedTuple):
    """Positions of a row that receive copies of the keys and values which another row reads at the same positions."""

    reader: int
    span: Span


class Group(NamedTuple):
    """Rows with a similar number of tokens before their last one."""

    rows: slice | Tensor
    """Row numbers; a slice when they are contiguous, so that keys and values needn't be gathered."""
    token_GM: Tensor
    """Indices of the tokens in the list, padded with the row's last one."""
    seen: Tensor
    """Attention mask: which keys each token attends to, bool [G, 1, M, keys]."""


class Reading:
    """The plan of a forward pass over n rows."""

    def __init__(self, spans: Sequence[Span], twins: Sequence[Twin], device: torch.device) -> None:
        """Plan the pass.

        Args:
            spans: The positions to read, of the rows 0 to n - 1 in this order.
            twins: The rows that receive copies.
            device: The device of the cache.
        """
        self.spans = spans
        self._device = device
        self._groups_of_spans = _group_by_length(spans)
        self._longer = [span for group in self._groups_of_spans for span in group]
        ends = accumulate((span.earlier for span in self._longer), initial=len(spans))
        self._start = {span.row: start for span, start in zip(self._longer, ends, strict=False)}
        """Index in the list at which the tokens before a row's last one start."""
        position = self._listed([s.stop - 1 for s in spans], lambda s: np.arange(s.start, s.stop - 1))
        row = self._listed([s.row for s in spans], lambda s: np.full(s.earlier, s.row))
        self.position_T = self._tensor(position)
        """Position of each token in its row."""
        self.place_P = self._tensor(row), self.position_T
        """Rows and positions of the cache that are written."""
        self.token_P: Tensor | None = None
        """Index of the token that is written to each of these places; None when that is the identity."""
        if twins:
            token, *place = self._twins(twins)
            self.token_P = self._tensor(np.concatenate([np.arange(len(row)), token]))
            rows, positions = (np.concatenate(both) for both in zip((row, position), place, strict=True))
            self.place_P = self._tensor(rows), self._tensor(positions)
        self.width = int(position[: len(spans)].max()) + 1
        """Number of keys of the longest row."""
        key = torch.arange(self.width, device=device)
        self.seen = key <= self.position_T[: len(spans), None, None, None]
        """Attention mask of the last tokens, bool [n, 1, 1, width]."""
        self.groups = [self._group(group, key) for group in self._groups_of_spans]
        self.outcome_T = self._outcome() if self.groups else None
        """Index of each token in the concatenated outputs of the attention calls; None when that is the identity."""

    @property
    def rows(self) -> int:
        """Number of rows that are read."""
        return len(self.spans)

    def listed(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Arrange the ids that each row reads in the order of the flat list."""
        return self._tensor(self._listed([part[-1] for part in ids], lambda span: np.array(ids[span.row][:-1])))

    def _listed(self, last: Sequence[int], earlier: Callable[[Span], Ints]) -> Ints:
        return np.concatenate([np.array(last, dtype=np.int64), *map(earlier, self._longer)])

    def _twins(self, twins: Sequence[Twin]) -> list[Ints]:
        """Return the indices of the tokens that twins receive, and the twins' rows and positions."""
        parts: list[tuple[Ints, Ints, Ints]] = []
        for reader, (row, start, stop) in twins:
            position = np.arange(start, stop)
            read = self.spans[reader]
            earlier = self._start.get(reader, 0) + position - read.start
            parts.append((np.where(position == read.stop - 1, reader, earlier), np.full_like(position, row), position))
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _group(self, spans: Sequence[Span], key: Tensor) -> Group:
        longest, width = max(span.earlier for span in spans), max(span.stop for span in spans) - 1
        first, last = spans[0].row, spans[-1].row
        start, row, earlier = np.array([[self._start[s.row], s.row, s.earlier] for s in spans]).T[:, :, None]
        token = self._tensor(start + np.minimum(np.arange(longest), earlier - 1))
        position = self.position_T[token]
        rows = slice(first, last + 1) if last - first == len(spans) - 1 else self._tensor(row[:, 0])
        return Group(rows, token, key[:width] <= position[:, None, :, None])

    def _outcome(self) -> Tensor:
        """Index the outputs: the last tokens come first, then the rows of the groups, padded to the group's longest."""
        indices = [np.arange(len(self.spans))]
        begin = len(self.spans)
        for group in self._groups_of_spans:
            longest = max(span.earlier for span in group)
            for span in group:
                indices.append(np.arange(begin, begin + span.earlier))
                begin += longest
        return self._tensor(np.concatenate(indices))

    def _tensor(self, values: Ints) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _group_by_length(spans: Sequence[Span]) -> list[list[Span]]:
    """Group the spans that have earlier tokens by a similar number of them; sort each group by row."""
    groups: list[list[Span]] = []
    for span in sorted((span for span in spans if span.earlier), key=lambda span: -span.earlier):
        if not groups or span.earlier < _LEAST_RATIO * groups[-1][0].earlier:
            groups.append([])
        groups[-1].append(span)
    return [sorted(group) for group in groups]
