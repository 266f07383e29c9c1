"""Split batches into mini-batches of episodes and micro-batches without padding.

Micro-batches are filled with whole segments up to a number of tokens by first-fit decreasing bin packing. Segments of a
micro-batch with a common prefix, such as the prompt of the episodes of a group, share its tokens: everything but
attention is computed once for them. What the model computes for a token depends only on the tokens before it, so
outputs and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentgym_trainer.tokens.batch import Batch

Unit = Literal["segment", "episode"]
Ids = NDArray[np.int64]

_LEAST_SHARED = 0.1
"""Share of tokens below which sharing prefixes costs more, in attention and in less full packs, than it saves."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One micro-batch: several segments in one row, without attention between them."""

    ids_T: Tensor
    """Token ids, int64. Tokens of a common prefix occur once."""
    position_T: Tensor
    """Position of each token in its segment, int64."""
    lengths: tuple[int, ...]
    """Number of tokens of each segment, F in all."""
    place_F: Tensor | None
    """Index into T of each token of the concatenated segments, int64, with new tokens in ascending order; None if it is
    the identity, because nothing is shared."""
    before_M: Tensor
    """Index into T of the token before each completion token, where its distribution is computed, int64."""
    target_M: Tensor
    """Token id of each completion token, int64."""
    index_M: Tensor
    """Index of each token into the batch's N completion tokens, int64."""


@dataclass(frozen=True, slots=True)
class Part:
    """Segments of one group that are computed together, since they share tokens of common prefixes."""

    segments: list[int]
    tokens: int
    """Number of tokens, with shared ones counted once."""


def make_packs(batch: Batch, chosen_N: Tensor, *, capacity: int, unit: Unit = "segment") -> list[Pack]:
    """Pack the segments that have chosen tokens.

    Args:
        batch: The batch of segments.
        chosen_N: Mask of completion tokens to include, bool; segments without any are left out.
        capacity: Maximum number of tokens per pack, shared ones counted once; a longer unit gets a pack of its own.
        unit: What must not be split: a segment, or all segments of an episode.
    """
    parts = list_parts(batch, chosen_N, capacity=capacity, unit=unit)
    bins = first_fit_decreasing([part.tokens for part in parts], capacity)
    ids = _segment_ids(batch)
    return [_pack(batch, [g for i in items for g in parts[i].segments], ids, chosen_N, capacity) for items in bins]


def list_parts(batch: Batch, chosen_N: Tensor, *, capacity: int, unit: Unit) -> list[Part]:
    """Divide the segments that have chosen tokens into parts whose segments share tokens; see `make_packs`."""
    chosen = chosen_N.tolist()
    segments = [g for g, (start, end) in enumerate(pairwise(batch.completion_starts)) if any(chosen[start:end])]
    ids = _segment_ids(batch)
    units: dict[int, list[int]] = {}
    for g in segments:
        units.setdefault(g if unit == "segment" else batch.episodes[g], []).append(g)
    groups: dict[int, list[list[int]]] = {}
    group_E = batch.tokens.group_E.tolist()
    for members in units.values():
        groups.setdefault(group_E[batch.episodes[members[0]]], []).append(members)
    parts = [part for members in groups.values() for part in _split_group(members, ids, capacity)]
    return [Part(part, _count(part, ids)) for part in parts]


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
    return Pack(token, token, (1,), None, before_M=empty, target_M=empty, index_M=empty)


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


def _segment_ids(batch: Batch) -> list[Ids]:
    """Return the token ids of each segment."""
    ids_S = batch.ids_S.cpu().numpy()
    return [ids_S[start:end] for start, end in pairwise(batch.starts)]


def _split_group(units: Sequence[list[int]], ids: Sequence[Ids], capacity: int) -> list[list[int]]:
    """Split a group's units into parts that fit into a pack, so that units with long common prefixes stay together."""
    parts: list[list[int]] = []
    for unit in sorted(units, key=lambda segments: _order(ids[segments[0]])):
        size = _count(unit, ids)
        if parts:
            added = _count([*parts[-1], *unit], ids) - _count(parts[-1], ids)
            if added <= (1 - _LEAST_SHARED) * size and _count(parts[-1], ids) + added <= capacity:
                parts[-1] += unit
                continue
        parts.append([*unit])
    return parts


def _count(segments: Sequence[int], ids: Sequence[Ids]) -> int:
    """Return the number of tokens of segments, with those of common prefixes counted once."""
    return sum(len(ids[g]) - common for g, common in _by_prefix(segments, ids))


def _by_prefix(segments: Sequence[int], ids: Sequence[Ids]) -> list[tuple[int, int]]:
    """Sort segments by their tokens; return each with the length of the prefix that it shares with the one before it,
    which is its longest with any of those before.
    """
    ordered = sorted(segments, key=lambda g: _order(ids[g]))
    common = [_common(ids[before], ids[g]) for before, g in pairwise(ordered)]
    return [*zip(ordered, [0, *common], strict=True)]


def _order(ids: Ids) -> bytes:
    """Return a key that sorts sequences of token ids lexicographically."""
    return ids.astype(">u4").tobytes()


def _common(one: Ids, other: Ids) -> int:
    """Return the length of the longest common prefix."""
    least = min(len(one), len(other))
    different = one[:least] != other[:least]
    return int(different.argmax()) if different.any() else least


def _pack(batch: Batch, segments: Sequence[int], ids: Sequence[Ids], chosen_N: Tensor, capacity: int) -> Pack:
    lengths = batch.lengths
    total, least = sum(lengths[g] for g in segments), _count(segments, ids)
    if least <= (1 - _LEAST_SHARED) * total or least <= capacity < total:
        ordered = _by_prefix(segments, ids)
    else:
        ordered = [(g, 0) for g in sorted(segments)]
    new: list[Ids] = []
    places: list[Ids] = []
    count = 0
    for g, common in ordered:
        start, end = batch.starts[g : g + 2]
        new.append(np.arange(start + common, end))
        places.append(np.concatenate([places[-1][:common] if places else new[-1][:0], count + np.arange(len(new[-1]))]))
        count += len(new[-1])
    device = batch.ids_S.device
    at_T, place_F = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in (new, places))
    at_F = torch.cat([torch.arange(*batch.starts[g : g + 2], device=device) for g, _ in ordered])
    place_S = torch.empty_like(batch.ids_S)
    place_S[at_F] = place_F
    index_M = torch.cat([torch.arange(*batch.completion_starts[g : g + 2], device=device) for g, _ in ordered])
    index_M = index_M[chosen_N[index_M]]
    at_M = batch.completion_index_N[index_M]
    return Pack(
        ids_T=batch.ids_S[at_T],
        position_T=batch.position_S[at_T],
        lengths=tuple(lengths[g] for g, _ in ordered),
        place_F=place_F if any(common for _, common in ordered) else None,
        before_M=place_S[at_M - 1],
        target_M=batch.ids_S[at_M],
        index_M=index_M,
    )
