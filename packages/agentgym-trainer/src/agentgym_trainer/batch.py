"""Trajectories as tensors, and the legend of shapes for the whole package.

    B  rows of a batch              T  token positions in a row
    E  episodes                     K  turns of the longest episode

A row holds one segment (`pad`) or several, one after the other (`pack`). Position ids begin anew with every segment
and attention never crosses from one to another, so the two layouts mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from agentgym_trainer.trajectory import Segment, Trajectory

Layout = Literal["pad", "pack"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed tensors plus turn-level arrays."""

    ids_BT: Tensor
    """Token ids, int64; the padding id behind the last segment."""
    position_BT: Tensor
    """Position of each token in its segment, int64."""
    segment_BT: Tensor
    """Number of the segment in its row, int64; -1 is padding."""
    said_BT: Tensor
    """Whether the agent said the token, bool."""
    logp_BT: Tensor
    """Log-probability the token was sampled with, float32; 0 where it wasn't said."""
    episode_BT: Tensor
    """Episode of the token, int64; 0 at padding, where nothing reads it."""
    turn_BT: Tensor
    """Turn that said the token, int64; 0 where it wasn't said."""
    rewards_EK: Tensor
    """Reward of each turn, float32; 0 behind the last."""
    played_EK: Tensor
    """Whether the turn was played, bool."""
    group_E: Tensor
    """Number of the group, int64."""

    @property
    def padding_share(self) -> float:
        """Share of token positions that hold padding."""
        return (self.segment_BT < 0).float().mean().item()

    @property
    def said_tokens(self) -> int:
        """Number of said tokens."""
        return int(self.said_BT.sum())

    @property
    def seen_tokens(self) -> int:
        """Number of tokens, said or not, without padding."""
        return int((self.segment_BT >= 0).sum())

    def per_token(self, value_EK: Tensor) -> Tensor:
        """Spread a figure per turn over the said tokens of that turn: BT, 0 at every other token."""
        return value_EK[self.episode_BT, self.turn_BT] * self.said_BT

    def rows(self, index: Tensor) -> Batch:
        """These rows, without the columns that hold only padding in all of them. Episodes stay as they are."""
        width = max(1, int((self.segment_BT[index] >= 0).sum(1).max()))
        names = ("ids_BT", "position_BT", "segment_BT", "said_BT", "logp_BT", "episode_BT", "turn_BT")
        return replace(self, **{name: getattr(self, name)[index, :width] for name in names})

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))

    def attention_mask(self) -> Tensor | None:
        """Which tokens see which: bool B1TT, or None where plain causal attention already means the same."""
        if int(self.segment_BT.max()) <= 0:
            # One segment a row, padding behind it: causal attention can't look ahead to the padding.
            return None
        same_BTT = self.segment_BT[:, :, None] == self.segment_BT[:, None, :]
        return (same_BTT & torch.ones_like(same_BTT[0]).tril())[:, None]


def make_batch(
    trajectories: Sequence[Trajectory], *, pad_id: int, layout: Layout = "pad", row_tokens: int | None = None
) -> Batch:
    """Lay trajectories out as a batch.

    Args:
        trajectories: At least one.
        pad_id: Token id of padding.
        layout: `pad` gives each segment a row of its own; `pack` fills rows first-fit, longest segments first.
        row_tokens: Length of a packed row; the longest segment's when None or shorter than that.

    Raises:
        ValueError: when there is no trajectory.
    """
    if not trajectories:
        raise ValueError("A batch needs at least one trajectory.")
    segments = [(e, segment) for e, trajectory in enumerate(trajectories) for segment in trajectory.segments]
    rows = _fill_rows(segments, row_tokens or 0) if layout == "pack" else [[item] for item in segments]
    tensors = _token_tensors(rows, pad_id)
    E, K = len(trajectories), max(len(trajectory.rewards) for trajectory in trajectories)
    rewards_EK, played_EK = torch.zeros(E, K), torch.zeros(E, K, dtype=torch.bool)
    for e, trajectory in enumerate(trajectories):
        rewards_EK[e, : len(trajectory.rewards)] = torch.tensor(trajectory.rewards)
        played_EK[e, : len(trajectory.rewards)] = True
    numbers = {group: i for i, group in enumerate(dict.fromkeys(t.group for t in trajectories))}
    group_E = torch.tensor([numbers[t.group] for t in trajectories])
    return Batch(*tensors, rewards_EK=rewards_EK, played_EK=played_EK, group_E=group_E)


def _fill_rows(segments: Sequence[tuple[int, Segment]], row_tokens: int) -> list[list[tuple[int, Segment]]]:
    """First-fit decreasing."""
    ordered = sorted(segments, key=lambda item: -len(item[1].ids))
    size = max(row_tokens, len(ordered[0][1].ids))
    rows: list[list[tuple[int, Segment]]] = []
    free: list[int] = []
    for item in ordered:
        need = len(item[1].ids)
        row = next((i for i, left in enumerate(free) if left >= need), None)
        if row is None:
            rows.append([])
            free.append(size)
            row = len(rows) - 1
        rows[row].append(item)
        free[row] -= need
    return rows


def _token_tensors(rows: Sequence[Sequence[tuple[int, Segment]]], pad_id: int) -> tuple[Tensor, ...]:
    shape = (len(rows), max(sum(len(segment.ids) for _, segment in row) for row in rows))
    ids, position, number = torch.full(shape, pad_id), torch.arange(shape[1]).repeat(shape[0], 1), torch.full(shape, -1)
    said, logp = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    episode, turn = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    for b, row in enumerate(rows):
        start = 0
        for n, (e, segment) in enumerate(row):
            span = slice(start, start + len(segment.ids))
            ids[b, span] = torch.tensor(segment.ids)
            position[b, span] = torch.arange(len(segment.ids))
            number[b, span] = n
            said[b, span] = torch.tensor(segment.said)
            logp[b, span] = torch.tensor(segment.logprobs)
            episode[b, span] = e
            turn[b, span] = torch.tensor(segment.turns).clamp(min=0)
            start = span.stop
    return ids, position, number, said, logp, episode, turn
