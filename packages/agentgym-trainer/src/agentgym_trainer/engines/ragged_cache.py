"""A key-value cache whose rows have lengths of their own: trajectories join, grow and leave one by one.

Rows that a forward pass computes stand in front, so that every pass works on a view and nothing is gathered; rows
that stop or leave change places with rows that go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_ROOM = 64


class _RaggedLayer(CacheLayerMixin):
    """Keys and values of one attention layer, [rows, heads, positions, head size]."""

    is_sliding = False
    k: Tensor
    v: Tensor

    def __init__(self, cache: RaggedCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take type, heads and head size from the first keys and values seen."""
        rows, positions = self._cache.capacity
        self.k = key_states.new_zeros(rows, key_states.shape[1], positions, key_states.shape[3])
        self.v = value_states.new_zeros(rows, value_states.shape[1], positions, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write what is new at each row's own positions and return everything up to the longest row."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        position = self._cache.position
        n, width = position.shape[0], self._cache.width
        row = torch.arange(n, device=position.device)[:, None]
        self.k[row, :, position] = key_states.transpose(1, 2)
        self.v[row, :, position] = value_states.transpose(1, 2)
        return self.k[:n, :, :width], self.v[:n, :, :width]

    def resize(self, rows: int, positions: int) -> None:
        """Make room, keeping what is there."""
        if self.is_initialized:
            self.k, self.v = (_grown(tensor, rows, positions) for tensor in (self.k, self.v))

    def swap(self, some: list[int], others: list[int], width: int) -> None:
        """Let pairs of rows, which hold at most `width` tokens, change places."""
        if self.is_initialized:
            for tensor in (self.k, self.v):
                tensor[some + others, :, :width] = tensor[others + some, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys; the engine makes its own mask from the row lengths."""
        return self._cache.width, 0

    def get_seq_length(self) -> int:
        """The longest row."""
        return self._cache.width

    def get_max_length(self) -> int:
        """No limit: the cache grows."""
        return -1


class RaggedCache(Cache):
    """A cache for as many trajectories as come, keyed by trajectory."""

    def __init__(self, layers: int) -> None:
        self.capacity = (0, 0)
        self.position = torch.empty(0, 0, dtype=torch.long)
        """Where the tokens of the coming forward pass go: [rows in front, new tokens]."""
        self.width = 0
        """Positions of the longest row in front, the coming tokens included."""
        self.lengths: list[int] = []
        """Tokens held by each row."""
        self.keys: list[int] = []
        """The trajectory of each row."""
        self._rows = [_RaggedLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self._rows))

    def bring_to_front(self, keys: Iterable[int]) -> list[int]:
        """Let the rows of these trajectories, new ones included, stand in front.

        Returns:
            The trajectories in the order in which their rows now stand, which moves as few rows as possible.
        """
        wanted = dict.fromkeys(keys)
        fresh = [key for key in wanted if key not in self.keys]
        self.keys += fresh
        self.lengths += [0] * len(fresh)
        self._reserve(len(self.keys), self.capacity[1])
        n = len(wanted)
        out = [i for i, key in enumerate(self.keys[:n]) if key not in wanted]
        into = [i for i, key in enumerate(self.keys[n:], n) if key in wanted]
        for i, j in zip(out, into, strict=True):
            for rows in (self.keys, self.lengths):
                rows[i], rows[j] = rows[j], rows[i]
        if out:
            width = max(self.lengths[i] for i in out + into)
            for layer in self._rows:
                layer.swap(out, into, width)
        return self.keys[:n]

    def prepare(self, new: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Make ready for a forward pass that adds `new[i]` tokens to row i; rows behind those stay out of it.

        A pass is as wide as its longest row needs. What it writes behind a shorter row's end is never seen, and the
        row's next tokens overwrite it.

        Returns:
            Position ids [rows, widest], and which positions each token sees, bool [rows, 1, widest, width].
        """
        n, widest = len(new), max(new)
        length = torch.tensor(self.lengths[:n], device=device)
        self.position = length[:, None] + torch.arange(widest, device=device)
        self.width = max(self.lengths[:n]) + widest
        self._reserve(len(self.keys), self.width)
        self.lengths[:n] = [held + more for held, more in zip(self.lengths[:n], new, strict=True)]
        return self.position, torch.arange(self.width, device=device) <= self.position[:, None, :, None]

    def length(self, key: int) -> int:
        """Tokens held of a trajectory."""
        return self.lengths[self.keys.index(key)] if key in self.keys else 0

    def forget(self, keys: Iterable[int]) -> None:
        """Free the rows of these trajectories, if they have any."""
        gone = set(keys)
        kept = self.bring_to_front([key for key in self.keys if key not in gone])
        del self.keys[len(kept) :], self.lengths[len(kept) :]

    def _reserve(self, rows: int, positions: int) -> None:
        if rows > self.capacity[0] or positions > self.capacity[1]:
            # Room to spare, so that a conversation which grows token by token doesn't copy at every token.
            self.capacity = (max(rows, self.capacity[0]), max(positions + positions // 2 + _ROOM, self.capacity[1]))
            for layer in self._rows:
                layer.resize(*self.capacity)


def _grown(tensor: Tensor, rows: int, positions: int) -> Tensor:
    grown = tensor.new_zeros(rows, tensor.shape[1], positions, tensor.shape[3])
    grown[: tensor.shape[0], :, : tensor.shape[2]] = tensor
    return grown
