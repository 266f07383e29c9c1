"""Credit: what is logged of returns and advantages, over one process or two."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from agentgym_trainer.algorithms import GAE, KL, PPO, RLOO, Algorithm
from hypothesis import given, settings
from token_batches import Play, alone, at_once, experience_of, plays

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total

ALGORITHM = Algorithm(advantages=GAE(whiten=False), kl=KL("reward", "k2", 0.5))


def metrics_of(episodes: list[Play], total: Total = alone) -> dict[str, float]:
    experience = experience_of(episodes)
    return ALGORITHM.compute_advantages(
        experience.with_logprobs(ref_logprobs_N=experience.rollout_logprobs_N + 1), total
    ).metrics


@settings(max_examples=15)
@given(plays(min_size=1, least=1, masked=True))
def test_what_is_out_of_the_loss_counts_in_statistics_and_trains_no_critic(episodes: list[Play]) -> None:
    experience = experience_of(episodes).with_logprobs(
        ref_logprobs_N=torch.ones(sum(len(play.said) for play in episodes))
    )
    masked, whole = (
        ALGORITHM.compute_advantages(experience, alone),
        ALGORITHM.compute_advantages(replace(experience, loss_mask_E=None), alone),
    )
    assert masked.value_mask_N is not None
    assert masked.value_mask_N.tolist() == [play.in_loss for play in episodes for _ in play.said]
    assert torch.equal(masked.advantages_N, whole.advantages_N)
    names = ("return", "return_std", "advantage", "advantage_std")
    assert [masked.metrics[name] for name in names] == [whole.metrics[name] for name in names]


@settings(max_examples=25)
@given(plays(min_size=1, least=1))
def test_statistics_are_those_of_episodes_and_said_tokens(episodes: list[Play]) -> None:
    experience = experience_of(episodes).with_logprobs(
        ref_logprobs_N=torch.ones(sum(len(play.said) for play in episodes))
    )
    credit = ALGORITHM.compute_advantages(experience, alone)
    returns, advantages = experience.rewards_EK.sum(1).tolist(), credit.advantages_N.tolist()
    assert credit.value_targets_N is not None
    targets = credit.value_targets_N.tolist()
    spread = statistics.pvariance(targets)
    left = [target - token.value for target, token in zip(targets, (t for p in episodes for t in p.said), strict=True)]
    assert credit.metrics == pytest.approx(
        {
            "return": statistics.fmean(returns),
            "return_std": statistics.pstdev(returns),
            "advantage": statistics.fmean(advantages),
            "advantage_std": statistics.pstdev(advantages),
            "penalty": 0.25,
            "explained_variance": 1 - statistics.pvariance(left) / spread if spread > 1e-12 else 0.0,
        },
        rel=1e-4,
        abs=1e-5,
    )


@settings(max_examples=15)
@given(plays(min_size=1, least=1))
def test_statistics_are_the_same_on_two_processes(episodes: list[Play]) -> None:
    shares = [[play for play in episodes if play.group == 0], [play for play in episodes if play.group > 0]]
    first, second = at_once(lambda rank, total: metrics_of(shares[rank], total))
    assert first == second == pytest.approx(metrics_of(episodes), rel=1e-6, abs=1e-6)


def test_nothing_played_has_statistics_of_zero() -> None:
    assert set(metrics_of([]).values()) == {0.0}


def test_credit_without_reference_or_critic_says_what_is_missing() -> None:
    experience = experience_of([Play(0, [])])
    with pytest.raises(ValueError, match=r"kl.where to 'off'"):
        RLOO.compute_advantages(experience, alone)
    with pytest.raises(ValueError, match=r"critic"):
        PPO.compute_advantages(replace(experience, values_N=None), alone)
