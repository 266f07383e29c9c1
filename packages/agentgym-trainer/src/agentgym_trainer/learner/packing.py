"""Split batches into mini-batches of episodes and micro-batches without padding.

Micro-batches are filled with whole segments up to a number of tokens by first-fit decreasing bin packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentgym_trainer.tokens.batch import Batch

Unit = Literal["segment", "episode"]


@dataclass(frozen=True, slots=True)
class Pack:
    """One micro-batch: concatenated segments in one row, without attention between them."""

    ids_T: Tensor
    """Token ids, int64."""
    position_T: Tensor
    """Position of each token in its segment, int64."""
    lengths: tuple[int, ...]
    """Number of tokens of each segment."""
    before_M: Tensor
    """Index into T of the token before each completion token, where its distribution is computed, int64."""
    target_M: Tensor
    """Token id of each completion token, int64."""
    index_M: Tensor
    """Index of each token into the batch's N completion tokens, int64."""


def make_packs(batch: Batch, chosen_N: Tensor, *, capacity: int, unit: Unit = "segment") -> list[Pack]:
    """Pack the segments that have chosen tokens.

    Args:
        batch: The batch of segments.
        chosen_N: Mask of completion tokens to include, bool; segments without any are left out.
        capacity: Maximum number of tokens per pack; a longer unit gets a pack of its own.
        unit: What must not be split: a segment, or all segments of an episode.
    """
    chosen = chosen_N.tolist()
    bounds = zip(batch.completion_starts, batch.completion_starts[1:], strict=False)
    segments = [g for g, (start, end) in enumerate(bounds) if any(chosen[start:end])]
    units: dict[int, list[int]] = {}
    for g in segments:
        units.setdefault(g if unit == "segment" else batch.episodes[g], []).append(g)
    lengths, members = batch.lengths, list(units.values())
    bins = first_fit_decreasing([sum(lengths[g] for g in gs) for gs in members], capacity)
    return [_pack(batch, sorted(g for i in items for g in members[i]), chosen_N) for items in bins]


def split_minibatches(episodes: int, parts: int, order: torch.Generator) -> Tensor:
    """Assign each episode to one of `parts` mini-batches, int64.

    Of every `parts` consecutive episodes, one is put into each mini-batch. So mini-batches have equal sizes, regardless
    of which process holds their episodes, and each gets its share of every group.
    """
    runs = [torch.randperm(parts, generator=order) for _ in range(0, episodes, parts)]
    return torch.cat(runs)[:episodes]


def empty_pack(device: torch.device) -> Pack:
    """Return a pack with one token and no completion tokens, for a process that has fewer packs than others."""
    token, empty = torch.zeros(1, dtype=torch.long, device=device), torch.empty(0, dtype=torch.long, device=device)
    return Pack(token, token, (1,), before_M=empty, target_M=empty, index_M=empty)


def first_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Assign items to bins: the largest item first, each to the first bin with enough capacity left or to a new one."""
    bins: list[list[int]] = []
    free: list[int] = []
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        target = next((b for b, left in enumerate(free) if left >= sizes[item]), None)
        if target is None:
            target = len(bins)
            bins.append([])
            free.append(capacity)
        bins[target].append(item)
        free[target] -= sizes[item]
    return bins


def _pack(batch: Batch, segments: Sequence[int], chosen_N: Tensor) -> Pack:
    device = batch.ids_S.device
    index_M = torch.cat([torch.arange(*batch.completion_starts[g : g + 2], device=device) for g in segments])
    index_M = index_M[chosen_N[index_M]]
    at_T = torch.cat([torch.arange(*batch.starts[g : g + 2], device=device) for g in segments])
    place_S = torch.empty_like(batch.ids_S)
    place_S[at_T] = torch.arange(len(at_T), device=device)
    at_M = batch.completion_index_N[index_M]
    lengths = batch.lengths
    return Pack(
        ids_T=batch.ids_S[at_T],
        position_T=batch.position_S[at_T],
        lengths=tuple(lengths[g] for g in segments),
        before_M=place_S[at_M] - 1,
        target_M=batch.ids_S[at_M],
        index_M=index_M,
    )
