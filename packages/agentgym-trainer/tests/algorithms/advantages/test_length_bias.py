"""Tests of the length bias: which combinations have a weighted sum of advantages of zero (the table in
docs/training.md), and that it is negative for GRPO's advantages with a mean over tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from agentgym_trainer.algorithms import (
    GAE,
    GRPO,
    KL,
    PRESETS,
    AdvantageEstimator,
    Aggregation,
    Algorithm,
    GiGPO,
    GoalDistance,
    GroupRelative,
    NestedStepGroups,
    StepGroups,
    TokenReturns,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import (
    EpisodeSketch,
    Step,
    Token,
    episode_sketches,
    run_processes,
    single_process_total,
    token_batch_of,
)
from torch import Tensor

pytestmark = pytest.mark.quick

Kind = Literal["token", "sequence", "fixed"]
kinds: Any = st.sampled_from(["token", "sequence", "fixed"])
by_token: Any = st.sampled_from(["token", "fixed"])
scales: Any = st.sampled_from(["std", "none"])
discounts = st.sampled_from([0.5, 1.0])
any_baseline: Any = st.sampled_from(["mean", "leave_one_out", "length"])
any_returns: Any = st.sampled_from(["episode", "turn"])
omegas = st.sampled_from([0.0, 1.0])

within_groups = st.one_of(
    st.tuples(
        st.builds(GroupRelative, baseline=st.sampled_from(["mean", "leave_one_out"]), scale=scales, gamma=discounts),
        st.just("sequence"),
    ),
    st.tuples(
        st.builds(GroupRelative, baseline=st.just("length"), scale=scales, returns=any_returns, gamma=discounts),
        by_token,
    ),
    st.tuples(
        st.builds(StepGroups, baseline=st.just("length"), scale=scales, gamma=discounts, step_weight=omegas), by_token
    ),
    st.tuples(st.builds(GoalDistance, baseline=st.just("length"), scale=scales, step_weight=omegas), by_token),
)
"""Combinations whose weighted sum is zero within each group."""

in_the_batch = st.one_of(
    st.tuples(
        st.builds(GroupRelative, baseline=any_baseline, scale=scales, returns=any_returns, whiten=st.just(True)),
        by_token,
    ),
    st.tuples(st.builds(StepGroups, baseline=any_baseline, scale=scales, whiten=st.just(True)), by_token),
    st.tuples(st.builds(NestedStepGroups, baseline=any_baseline, scale=scales, whiten=st.just(True)), by_token),
    st.tuples(st.builds(GoalDistance, baseline=any_baseline, scale=scales, whiten=st.just(True)), by_token),
    st.tuples(st.builds(TokenReturns, gamma=discounts, baseline=st.booleans()), by_token),
    st.tuples(st.builds(GAE, level=st.just("token"), gamma=discounts, lam=discounts), by_token),
)
"""Combinations whose weighted sum is zero over all groups together."""


def token_advantages(
    episodes: list[EpisodeSketch], advantages: AdvantageEstimator, kind: Kind, processes: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the advantage and weight of each token, float64, and the index of its group. Groups aren't split between
    processes."""
    algorithm = Algorithm(advantages=advantages, aggregation=Aggregation(kind, length=7), kl=KL("reward", "k2", 0.5))
    shares = [[play for play in episodes if play.group % processes == rank] for rank in range(processes)]

    def compute(rank: int, total: Any) -> tuple[Tensor, Tensor, Tensor]:
        token_batch = token_batch_of(shares[rank])
        reference_N = torch.tensor([token.penalty for play in shares[rank] for token in play.completion_tokens])
        token_batch = token_batch.with_logprobs(ref_logprobs_N=reference_N)
        advantage_N = algorithm.compute_advantages(token_batch, total).advantages_N
        weight_N = algorithm.weights(token_batch, torch.ones_like(advantage_N, dtype=torch.bool), total)
        return advantage_N.double(), weight_N.double(), token_batch.group_E[token_batch.episode_N]

    results = run_processes(compute, processes) if processes > 1 else [compute(0, single_process_total)]
    advantage_N, weight_N, group_N = (torch.cat(parts) for parts in zip(*results, strict=True))
    return advantage_N, weight_N, group_N


def assert_sums_to_zero(weighted_N: Tensor) -> None:
    """Check the sum up to float32 rounding of advantages and weights: 2^-22 of the sum of magnitudes."""
    assert abs(weighted_N.sum().item()) <= 2**-22 * weighted_N.abs().sum().item() + 1e-9


ragged = episode_sketches(min_size=1, max_size=9, tokens=9, least=1)


@settings(max_examples=60)
@given(ragged, within_groups, st.integers(1, 3))
def test_weighted_sum_is_zero_within_each_group(
    episodes: list[EpisodeSketch], combination: tuple[Any, Kind], processes: int
) -> None:
    advantage_N, weight_N, group_N = token_advantages(episodes, *combination, processes)
    for group in group_N.unique():
        assert_sums_to_zero((weight_N * advantage_N)[group_N == group])


@settings(max_examples=60)
@given(ragged, in_the_batch, st.integers(1, 3))
def test_weighted_sum_is_zero_over_the_batch(
    episodes: list[EpisodeSketch], combination: tuple[Any, Kind], processes: int
) -> None:
    advantage_N, weight_N, _ = token_advantages(episodes, *combination, processes)
    assert_sums_to_zero(weight_N * advantage_N)


@settings(max_examples=20)
@given(episode_sketches(min_size=1, max_size=9, tokens=9), within_groups)
def test_turns_without_tokens_keep_a_token_weighted_sum_of_zero(
    episodes: list[EpisodeSketch], combination: tuple[Any, Kind]
) -> None:
    advantages, kind = combination
    if kind != "sequence":
        advantage_N, weight_N, _ = token_advantages(episodes, advantages, kind)
        assert_sums_to_zero(weight_N * advantage_N)


def long_failures(group: int = 0) -> list[EpisodeSketch]:
    """Return two successes of 2 tokens and two failures of 6 tokens."""
    return [
        EpisodeSketch(group, [Step(0.0, [Token()] * half, 0), Step(reward, [Token()] * half, 1)])
        for reward, half in ((1.0, 1), (1.0, 1), (0.0, 3), (0.0, 3))
    ]


def mean_token(algorithm: Algorithm) -> float:
    """Return the metric advantage/mean_token of an update on two groups of `long_failures`."""
    advantage_N, weight_N, _ = token_advantages(
        [*long_failures(0), *long_failures(1)], algorithm.advantages, algorithm.aggregation.kind
    )
    return ((weight_N * advantage_N).sum() / weight_N.sum()).item()


def test_length_bias_of_grpo_and_settings_that_remove_it() -> None:
    """The advantages are +-0.866, and a quarter of the tokens belong to successes."""
    grpo: Any = GRPO.advantages
    assert mean_token(GRPO) == pytest.approx(0.866 * (1 / 4 - 3 / 4), abs=1e-3)
    assert mean_token(replace(GRPO, aggregation=Aggregation("sequence"))) == pytest.approx(0, abs=1e-6)
    assert mean_token(replace(GRPO, advantages=replace(grpo, baseline="length"))) == pytest.approx(0, abs=1e-6)
    assert mean_token(replace(GRPO, advantages=replace(grpo, whiten=True))) == pytest.approx(0, abs=1e-6)
    assert mean_token(GiGPO) < -0.4
    gigpo: Any = GiGPO.advantages
    assert mean_token(replace(GiGPO, advantages=replace(gigpo, baseline="length"))) == pytest.approx(0, abs=1e-6)


def test_opo_baseline_weights_returns_by_completion_tokens() -> None:
    """The baseline is (2 * 2 * 1 + 2 * 6 * 0) / 16."""
    advantage_N, _, _ = token_advantages(long_failures(), GroupRelative(baseline="length", scale="none"), "token")
    assert advantage_N.tolist() == pytest.approx([0.75] * 4 + [-0.25] * 12)


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "dapo", "rloo", "cispo", "gigpo", "hgpo", "graphgpo"])
def test_presets_with_length_bias(name: str) -> None:
    assert mean_token(replace(PRESETS[name], kl=KL())) < -0.05


@pytest.mark.parametrize("name", ["gspo", "ppo", "reinforce++", "reinforce++-baseline"])
def test_presets_without_length_bias(name: str) -> None:
    assert mean_token(PRESETS[name]) == pytest.approx(0, abs=1e-6)
