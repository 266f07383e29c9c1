"""Tests of the metrics of returns and advantages, over one process and two."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from agentgym_trainer.algorithms import GAE, KL, PPO, RLOO, Algorithm
from hypothesis import given, settings
from token_batches import EpisodeSketch, episode_sketches, run_processes, single_process_total, token_batch_of

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total

ALGORITHM = Algorithm(advantages=GAE(whiten=False), kl=KL("reward", "k2", 0.5))


def metrics_of(episodes: list[EpisodeSketch], total: Total = single_process_total) -> dict[str, float]:
    token_batch = token_batch_of(episodes)
    return ALGORITHM.compute_advantages(
        token_batch.with_logprobs(ref_logprobs_N=token_batch.rollout_logprobs_N + 1), total
    ).metrics


@settings(max_examples=15)
@given(episode_sketches(min_size=1, least=1, masked=True))
def test_masked_episodes_count_in_statistics_but_not_for_the_critic(episodes: list[EpisodeSketch]) -> None:
    token_batch = token_batch_of(episodes).with_logprobs(
        ref_logprobs_N=torch.ones(sum(len(play.completion_tokens) for play in episodes))
    )
    masked, unmasked = (
        ALGORITHM.compute_advantages(token_batch, single_process_total),
        ALGORITHM.compute_advantages(replace(token_batch, loss_mask_E=None), single_process_total),
    )
    assert masked.value_mask_N is not None
    assert masked.value_mask_N.tolist() == [play.in_loss for play in episodes for _ in play.completion_tokens]
    assert torch.equal(masked.advantages_N, unmasked.advantages_N)
    names = ("return", "return_std", "advantage", "advantage_std")
    assert [masked.metrics[name] for name in names] == [unmasked.metrics[name] for name in names]


@settings(max_examples=25)
@given(episode_sketches(min_size=1, least=1))
def test_statistics_of_episodes_and_completion_tokens(episodes: list[EpisodeSketch]) -> None:
    token_batch = token_batch_of(episodes).with_logprobs(
        ref_logprobs_N=torch.ones(sum(len(play.completion_tokens) for play in episodes))
    )
    result = ALGORITHM.compute_advantages(token_batch, single_process_total)
    returns, advantages = token_batch.rewards_EK.sum(1).tolist(), result.advantages_N.tolist()
    assert result.value_targets_N is not None
    targets = result.value_targets_N.tolist()
    variance = statistics.pvariance(targets)
    errors = [
        target - token.value
        for target, token in zip(targets, (t for p in episodes for t in p.completion_tokens), strict=True)
    ]
    assert result.metrics == pytest.approx(
        {
            "return": statistics.fmean(returns),
            "return_std": statistics.pstdev(returns),
            "advantage": statistics.fmean(advantages),
            "advantage_std": statistics.pstdev(advantages),
            "penalty": 0.25,
            "explained_variance": 1 - statistics.pvariance(errors) / variance if variance > 1e-12 else 0.0,
        },
        rel=1e-4,
        abs=1e-5,
    )


@settings(max_examples=15)
@given(episode_sketches(min_size=1, least=1))
def test_two_processes_have_the_same_statistics_as_one(episodes: list[EpisodeSketch]) -> None:
    shares = [[play for play in episodes if play.group == 0], [play for play in episodes if play.group > 0]]
    first, second = run_processes(lambda rank, total: metrics_of(shares[rank], total))
    assert first == second == pytest.approx(metrics_of(episodes), rel=1e-6, abs=1e-6)


def test_statistics_of_an_empty_batch_are_zero() -> None:
    assert set(metrics_of([]).values()) == {0.0}


def test_missing_reference_or_critic_raises_a_helpful_error() -> None:
    token_batch = token_batch_of([EpisodeSketch(0, [])])
    with pytest.raises(ValueError, match=r"kl.where to 'off'"):
        RLOO.compute_advantages(token_batch, single_process_total)
    with pytest.raises(ValueError, match=r"critic"):
        PPO.compute_advantages(replace(token_batch, values_N=None), single_process_total)
