from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.algorithms.types import AdvantageOutput
from agentgym_trainer.learner.balance import Imbalance, balance, largest_differencing
from agentgym_trainer.learner.loss_term import LossTerm, SplitTerm
from agentgym_trainer.learner.packing import list_parts
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from random_trajectories import trajectories
from token_batches import single_process_total
from toy_learner import random_segment

pytestmark = pytest.mark.quick

T = TypeVar("T")
PLAIN = replace(GRPO, kl=replace(GRPO.kl, where="off"))


class ThreadRanks:
    """`Ranks` of a process that is a thread."""

    def __init__(self, index: int, sent: list[Any], barrier: threading.Barrier) -> None:
        self.index, self.count = index, len(sent)
        self._sent, self._barrier = sent, barrier

    def _all(self, own: Any) -> list[Any]:
        self._sent[self.index] = own
        self._barrier.wait()
        everything = list(self._sent)
        self._barrier.wait()
        return everything

    def gather(self, items: Sequence[T]) -> list[T]:
        return [item for part in self._all(items) for item in part]

    def exchange(self, items: Sequence[T]) -> list[T]:
        assert len(items) == self.count
        return [part[self.index] for part in self._all(items)]


def _in_threads(work: Callable[[Any], T], processes: int) -> list[T]:
    sent, barrier = [None] * processes, threading.Barrier(processes, timeout=PATIENCE)
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(lambda index: work(ThreadRanks(index, sent, barrier)), range(processes)))


def _split(sample: Sequence[Trajectory], parts: int) -> SplitTerm:
    """Return a term with distinct values for each completion token; mini-batches alternate among the episodes."""
    batch = make_batch(sample)
    N = len(batch.completion_index_N)
    tokens = batch.tokens.with_logprobs(ref_logprobs_N=torch.arange(N) / 7)
    advantages = AdvantageOutput(torch.randn(N, generator=torch.Generator().manual_seed(N)), {"mean": 1.0})
    term = LossTerm(batch, tokens, advantages, PLAIN)
    return term.split(tokens.episode_N % parts, parts, single_process_total)


def _rows(split: SplitTerm) -> list[tuple[Any, ...]]:
    """Return everything about each completion token in the loss: its segment up to it, and its values."""
    term, rows = split.term, list[tuple[Any, ...]]()
    batch, tokens = term.batch, term.tokens
    columns = (
        tokens.turn_N, tokens.rollout_logprobs_N, tokens.ref_logprobs_N, term.advantages.advantages_N, split.part_N,
        split.weight_N,
    )  # fmt: skip
    for segment, e in enumerate(batch.episodes):
        first, last = batch.starts[segment : segment + 2]
        for n in range(*batch.completion_starts[segment : segment + 2]):
            if split.part_N[n] >= 0:
                at = int(batch.completion_index_N[n])
                assert first < at < last
                assert int(tokens.episode_N[n]) == e
                read = tuple(batch.ids_S[first : at + 1].tolist()), tuple(batch.position_S[first : at + 1].tolist())
                values = tuple(float(column[n]) for column in columns if column is not None)
                rewards = tuple(tokens.rewards_EK[e][tokens.played_EK[e]].tolist())
                rows.append((read, values, rewards))
    return rows


def _loads(splits: Sequence[SplitTerm], micro_tokens: int, part: int = 0) -> list[int]:
    """Return the number of tokens that each process computes in a mini-batch."""
    return [
        sum(p.tokens for p in list_parts(s.term.batch, s.part_N == part, capacity=micro_tokens, unit="episode"))
        for s in splits
    ]


def _balanced(dealt: Sequence[SplitTerm], micro_tokens: int) -> tuple[list[SplitTerm], Imbalance]:
    """Return the terms of all processes after balancing, and the imbalance that all of them report."""
    found = _in_threads(lambda ranks: balance(dealt[ranks.index], ranks, micro_tokens=micro_tokens), len(dealt))
    assert len({imbalance for _, imbalance in found}) == 1
    return [split for split, _ in found], found[0][1]


@settings(max_examples=40)
@given(st.lists(trajectories(), min_size=2, max_size=3), st.integers(1, 3), st.integers(5, 60))
def test_every_token_is_trained_on_once_with_its_values(
    shares: list[list[Trajectory]], parts: int, micro_tokens: int
) -> None:
    dealt = [_split(share, parts) for share in shares]
    assume(any(_rows(split) for split in dealt))
    balanced, imbalance = _balanced(dealt, micro_tokens)
    assert sorted(row for s in balanced for row in _rows(s)) == sorted(row for s in dealt for row in _rows(s))
    assert 1 <= imbalance.balanced <= imbalance.dealt <= len(shares)
    for split in balanced:
        assert split.term.advantages.metrics == {"mean": 1.0}
        assert len(split.shares) == parts


def test_tokens_are_equal_over_processes_in_every_minibatch() -> None:
    rng = np.random.default_rng(0)
    shares = [
        [_trajectory(int(rng.integers(*lengths)), f"group {number // 8}", rng) for number in range(16)]
        for lengths in ((20, 80), (20, 40), (60, 80))
    ]
    dealt = [_split(share, 2) for share in shares]
    balanced, imbalance = _balanced(dealt, 64)
    loads, loads_dealt = ([_loads(splits, 64, part) for part in (0, 1)] for splits in (balanced, dealt))
    mean = sum(map(sum, loads)) / 3
    assert imbalance.balanced == pytest.approx(sum(map(max, loads)) / mean)
    assert imbalance.dealt == pytest.approx(sum(map(max, loads_dealt)) / mean)
    assert imbalance.dealt > 1.25
    assert all(max(part) < 1.05 * sum(part) / 3 for part in loads)


def test_episodes_with_a_common_prefix_stay_together() -> None:
    rng = np.random.default_rng(1)
    prompt = random_segment([(40, 0)], rng)
    shares = [[_trajectory(48, f"group {g}", rng, prompt) for g in (0, 1, 2, 3) for _ in range(4)], []]
    balanced, imbalance = _balanced([_split(share, 1) for share in shares], 1000)
    # Four episodes of 40 shared tokens and 8 of their own.
    assert _loads(balanced, 1000) == [2 * 72, 2 * 72]
    assert imbalance == Imbalance(dealt=2.0, balanced=1.0)


def test_a_group_larger_than_the_mean_is_divided() -> None:
    rng = np.random.default_rng(2)
    prompt = random_segment([(40, 0)], rng)
    balanced, imbalance = _balanced(
        [_split([_trajectory(60, "g", rng, prompt) for _ in range(4)], 1), _split([], 1)], 1000
    )
    assert _loads(balanced, 1000) == [80, 80]
    assert imbalance.balanced == 1


def test_nothing_moves_if_it_balances_nothing() -> None:
    rng = np.random.default_rng(3)
    dealt = [_split([_trajectory(20, "g", rng)], 1), _split([_trajectory(30, "g", rng)], 1)]
    balanced, imbalance = _balanced(dealt, 64)
    assert balanced[0] is dealt[0]
    assert balanced[1] is dealt[1]
    assert imbalance == Imbalance(1.2, 1.2)


def test_nothing_changes_with_one_process() -> None:
    split = _split([_trajectory(20, "g", np.random.default_rng(4))], 1)
    assert _balanced([split], 64) == ([split], Imbalance(1.0, 1.0))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_largest_differencing_is_within_its_bound(sizes: list[int], bins: int) -> None:
    def longest(assigned: Sequence[int]) -> int:
        return max(sum(size for size, target in zip(sizes, assigned, strict=True) if target == b) for b in range(bins))

    best = min(longest(assigned) for assigned in itertools.product(range(bins), repeat=len(sizes)))
    assert best <= longest(largest_differencing(sizes, bins)) <= 4 / 3 * best


def _trajectory(length: int, group: str, rng: np.random.Generator, prompt: Segment | None = None) -> Trajectory:
    """Return an episode of one turn of 4 tokens at its end, all of whose tokens after the prompt are random."""
    start = len(prompt.ids) if prompt else 0
    own = random_segment([(length - start - 4, 4)], rng)
    if prompt:
        joined = (getattr(prompt, f.name) + getattr(own, f.name) for f in fields(Segment))
        own = Segment(*joined)
    return Trajectory((own,), (1.0,), ("s",), (("act", "o"),), group, in_loss=True)
