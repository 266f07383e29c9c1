"""Batches in pieces: mini-batches dealt by episode, and micro-batches without padding.

First-fit decreasing fills each micro-batch with whole segments up to a number of tokens.
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
    """One micro-batch: segments end to end in one row, which don't see each other."""

    ids_T: Tensor
    """Token ids, int64."""
    position_T: Tensor
    """Position of each token in its segment, int64."""
    lengths: tuple[int, ...]
    """Tokens of each segment."""
    before_M: Tensor
    """Where in T the token before each said token stands: there its distribution is read off, int64."""
    target_M: Tensor
    """Token id of each said token, int64."""
    index_M: Tensor
    """Which of the batch's N said tokens these are, int64."""


def make_packs(batch: Batch, chosen_N: Tensor, *, capacity: int, unit: Unit = "segment") -> list[Pack]:
    """Lay out what has chosen tokens.

    Args:
        batch: Where the segments are.
        chosen_N: Which said tokens are wanted, bool; segments without any are left out.
        capacity: The most tokens of a pack; a unit that is longer gets one for itself.
        unit: What must not be parted: a segment, or all segments of an episode.
    """
    wanted = chosen_N.tolist()
    bounds = zip(batch.completion_starts, batch.completion_starts[1:], strict=False)
    segments = [g for g, (start, end) in enumerate(bounds) if any(wanted[start:end])]
    units: dict[int, list[int]] = {}
    for g in segments:
        units.setdefault(g if unit == "segment" else batch.episodes[g], []).append(g)
    lengths, members = batch.lengths, list(units.values())
    bins = first_fit_decreasing([sum(lengths[g] for g in gs) for gs in members], capacity)
    return [_pack(batch, sorted(g for i in chosen for g in members[i]), chosen_N) for chosen in bins]


def split_minibatches(episodes: int, parts: int, order: torch.Generator) -> Tensor:
    """Which of `parts` mini-batches each episode is dealt to, int64.

    Every run of `parts` neighbours gives one to each. So mini-batches come out equally large, whichever of their
    episodes a process holds, and each gets its share of every group.
    """
    runs = [torch.randperm(parts, generator=order) for _ in range(0, episodes, parts)]
    return torch.cat(runs)[:episodes]


def empty_pack(device: torch.device) -> Pack:
    """One token and nothing said: what a process reads when it is through and others are not."""
    token, nothing = torch.zeros(1, dtype=torch.long, device=device), torch.empty(0, dtype=torch.long, device=device)
    return Pack(token, token, (1,), before_M=nothing, target_M=nothing, index_M=nothing)


def first_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Which items go into which bin: the largest first, each into the first bin with room, else into a new one."""
    bins: list[list[int]] = []
    free: list[int] = []
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        place = next((b for b, room in enumerate(free) if room >= sizes[item]), None)
        if place is None:
            place = len(bins)
            bins.append([])
            free.append(capacity)
        bins[place].append(item)
        free[place] -= sizes[item]
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
