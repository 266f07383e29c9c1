"""Balance the tokens of mini-batches over processes: all of them wait for the one that has the most.

Whole tasks are dealt to processes before the lengths of their episodes are known. In an update, after advantages and
weights of tokens have been computed, episodes move between processes by the largest differencing method (Karmarkar and
Karp 1982). Episodes of a group that share a prefix stay together, up to the mean number of tokens of a process: apart,
they would share nothing (`benchmarks/rank_balance.py` compares). This module does not depend on models.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.loss_term import SplitTerm
from agentgym_trainer.learner.packing import list_parts
from agentgym_trainer.tokens.batch import Batch, concatenate, take


class Imbalance(NamedTuple):
    """Tokens of the process with the most, relative to the mean over processes; mini-batches are summed up."""

    dealt: float
    """As the episodes were played."""
    balanced: float
    """As they are trained on."""


class _Item(NamedTuple):
    """Episodes of one mini-batch and group that move together."""

    part: int
    tokens: int
    """Number of tokens, with shared ones counted once."""
    holder: int
    """The process that played them."""
    episodes: tuple[int, ...]
    """Indices into the batch of that process."""


class _Parcel(NamedTuple):
    """The episodes that one process sends to another."""

    batch: Batch
    per_token: dict[str, Tensor]
    """What else is known about each completion token."""


def balance(split: SplitTerm, ranks: Ranks, *, micro_tokens: int) -> tuple[SplitTerm, Imbalance]:
    """Move episodes so that in each mini-batch, all processes have about as many tokens. All processes must call this.

    Which process gets an episode only depends on tokens and on which process played it.

    Args:
        split: This process's share of the term; it may be empty.
        ranks: The processes. With a single one, nothing changes.
        micro_tokens: Number of tokens of a micro-batch, within which prefixes are shared.
    """
    if ranks.count == 1:
        return split, Imbalance(1.0, 1.0)
    items, parts = _list_items(split, ranks, micro_tokens), range(len(split.shares))
    assigned = [pair for part in parts for pair in _assign([item for item in items if item.part == part], ranks.count)]
    if any(item.holder != target for item, target in assigned):
        split = _exchange(split, assigned, ranks)
    mean = sum(item.tokens for item in items) / ranks.count
    dealt = _most([(item, item.holder) for item in items])
    return split, Imbalance(dealt / mean, _most(assigned) / mean)


def largest_differencing(sizes: Sequence[int], bins: int) -> list[int]:
    """Assign items to bins with about equal sums. Karmarkar and Karp's method starts with a partition for each item,
    alone in a bin, and joins the two least even ones, the larger bins of one with the smaller bins of the other, until
    one partition is left. The largest sum is at most 4/3 of the smallest possible one (Michiels et al. 2003).
    """
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for item, size in enumerate(sizes):
        heapq.heappush(heap, (-size, item, [(size, [item]), *[(0, list[int]()) for _ in range(bins - 1)]]))
    # The second entry orders equal differences, so that the result is the same on all processes.
    for number in range(len(sizes), 2 * len(sizes) - 1):
        one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        joined = [(a + b, items + more) for (a, items), (b, more) in zip(one, reversed(other), strict=True)]
        joined.sort(key=itemgetter(0), reverse=True)
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], number, joined))
    assigned = [0] * len(sizes)
    for target, (_, items) in enumerate(heap[0][2] if heap else ()):
        for item in items:
            assigned[item] = target
    return assigned


def _list_items(split: SplitTerm, ranks: Ranks, micro_tokens: int) -> list[_Item]:
    """Return the items of all processes, in the order of processes."""
    batch, part_N, parts = split.term.batch, split.part_N, range(len(split.shares))
    pieces = {part: list_parts(batch, part_N == part, capacity=micro_tokens, unit="episode") for part in parts}
    own = [sum(piece.tokens for piece in pieces[part]) for part in parts]
    gathered = ranks.gather([own])
    items: list[_Item] = []
    for part in parts:
        mean = sum(counts[part] for counts in gathered) // ranks.count
        if mean < micro_tokens:
            pieces[part] = list_parts(batch, part_N == part, capacity=mean, unit="episode")
        for piece in pieces[part]:
            episodes = tuple(dict.fromkeys(batch.episodes[g] for g in piece.segments))
            items.append(_Item(part, piece.tokens, ranks.index, episodes))
    return ranks.gather(items)


def _assign(items: Sequence[_Item], count: int) -> list[tuple[_Item, int]]:
    """Return the items of a mini-batch, each with its new process: the old one, if moving them balances nothing."""
    moved = [*zip(items, largest_differencing([item.tokens for item in items], count), strict=True)]
    stay = [(item, item.holder) for item in items]
    return moved if _most(moved) < _most(stay) else stay


def _most(assigned: Sequence[tuple[_Item, int]]) -> int:
    """Return the tokens of the process with the most, summed over mini-batches."""
    sums: Counter[tuple[int, int]] = Counter()
    for item, target in assigned:
        sums[item.part, target] += item.tokens
    most: Counter[int] = Counter()
    for (part, _), tokens in sums.items():
        most[part] = max(most[part], tokens)
    return most.total()


def _exchange(split: SplitTerm, assigned: Sequence[tuple[_Item, int]], ranks: Ranks) -> SplitTerm:
    """Send each process the episodes assigned to it, and join what this one receives."""
    term, device, cpu = split.term, split.part_N.device, torch.device("cpu")
    batch = replace(term.batch, tokens=term.tokens).to(cpu)
    per_token = {name: tensor.to(cpu) for name, tensor in _per_token(split).items()}
    parcels: list[_Parcel] = []
    for process in range(ranks.count):
        mine = [item for item, target in assigned if (item.holder, target) == (ranks.index, process)]
        taken, index_N = take(batch, sorted(e for item in mine for e in item.episodes))
        parcels.append(_Parcel(taken, {name: tensor[index_N] for name, tensor in per_token.items()}))
    received = ranks.exchange(parcels)
    batch = concatenate([parcel.batch for parcel in received]).to(device)
    values = {name: torch.cat([parcel.per_token[name] for parcel in received]).to(device) for name in per_token}
    fields = {name: values.pop(name) for name in ("part_N", "weight_N", "critic_weight_N") if name in values}
    advantages = replace(term.advantages, **values)
    return replace(split, term=replace(term, batch=batch, tokens=batch.tokens, advantages=advantages), **fields)


def _per_token(split: SplitTerm) -> dict[str, Tensor]:
    """Return the mini-batch, weights and advantages of completion tokens, by the names of the fields."""
    advantages = split.term.advantages
    named = {
        "part_N": split.part_N,
        "weight_N": split.weight_N,
        "critic_weight_N": split.critic_weight_N,
        "advantages_N": advantages.advantages_N,
        "value_targets_N": advantages.value_targets_N,
        "value_mask_N": advantages.value_mask_N,
    }
    return {name: tensor for name, tensor in named.items() if tensor is not None}
