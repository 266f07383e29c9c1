"""Tests of REINFORCE++ and GAE against slow per-token reference implementations, in one process and in two."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

import pytest
import torch
from agentgym_trainer.algorithms.advantages.gae import GAE
from agentgym_trainer.algorithms.advantages.gigpo import StepGroups
from agentgym_trainer.algorithms.advantages.group_relative import GroupRelative
from agentgym_trainer.algorithms.advantages.reinforce_pp import TokenReturns
from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate, token_rewards
from agentgym_trainer.algorithms.types import TokenBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import (
    EpisodeSketch,
    Step,
    Token,
    episode_sketches,
    penalty_of,
    reference_normalize,
    run_processes,
    single_process_total,
    token_batch_of,
)

pytestmark = pytest.mark.quick

few_examples = settings(max_examples=20)
gammas = st.sampled_from([0.5, 0.95, 1.0])
returns = st.builds(TokenReturns, gamma=gammas, baseline=st.booleans())
critics = st.builds(
    GAE,
    level=st.sampled_from(["token", "turn"]),
    gamma=gammas,
    lam=st.sampled_from([0.0, 0.5, 1.0]),
    whiten=st.booleans(),
)


def slow_rewards(play: EpisodeSketch, turn_rewards: Sequence[float]) -> list[float]:
    """Return the reward of each completion token, given the rewards of the turns."""
    rewards = [-token.penalty for token in play.completion_tokens]
    counts = [len(step.tokens) for step in play.steps]
    for k, reward in enumerate(turn_rewards):
        if rewards:
            rewards[max(sum(counts[: k + 1]) - 1, 0)] += reward
    return rewards


def slow_token_returns(episodes: list[EpisodeSketch], estimator: TokenReturns) -> list[float]:
    returns_to_go: list[float] = []
    for play in episodes:
        turn_rewards = [step.reward for step in play.steps]
        if estimator.baseline:
            group_returns = [
                sum(step.reward for step in other.steps) for other in episodes if other.group == play.group
            ]
            turn_rewards = [0.0] * (len(turn_rewards) - 1) + [sum(turn_rewards) - statistics.fmean(group_returns)]
        rewards = slow_rewards(play, turn_rewards)
        returns_to_go += [
            sum(estimator.gamma ** (j - i) * rewards[j] for j in range(i, len(rewards))) for i in range(len(rewards))
        ]
    return reference_normalize(returns_to_go)


def slow_gae(episodes: list[EpisodeSketch], estimator: GAE) -> tuple[list[float], list[float], list[bool]]:
    """Return advantages, value targets and value mask by the recursion A_t = delta_t + gamma * lambda * A_(t+1)."""
    advantages: list[float] = []
    targets: list[float] = []
    value_mask: list[bool] = []
    sizes: list[int] = []
    for play in episodes:
        rewards = iter(slow_rewards(play, [step.reward for step in play.steps]))
        if estimator.level == "turn":
            actions = [(s.tokens[0].value, [next(rewards) for _ in s.tokens]) for s in play.steps if s.tokens]
        else:
            actions = [(token.value, [next(rewards)]) for token in play.completion_tokens]
        next_advantage, next_value = 0.0, play.bootstrap_value
        episode_advantages: list[float] = []
        for value, action_rewards in reversed(actions):
            next_advantage = (
                sum(action_rewards)
                + estimator.gamma * next_value
                - value
                + estimator.gamma * estimator.lam * next_advantage
            )
            next_value = value
            episode_advantages.insert(0, next_advantage)
        advantages += episode_advantages
        targets += [advantage + value for advantage, (value, _) in zip(episode_advantages, actions, strict=True)]
        sizes += [len(action_rewards) for _, action_rewards in actions]
    if estimator.whiten:
        advantages = reference_normalize(advantages)
    for size in sizes:
        value_mask += [True] + [False] * (size - 1)
    action_indices = [x for x, size in enumerate(sizes) for _ in range(size)]
    return [advantages[x] for x in action_indices], [targets[x] for x in action_indices], value_mask


def estimate(estimator: TokenReturns | GAE, episodes: list[EpisodeSketch]) -> AdvantageEstimate:
    result = estimator.estimate(token_batch_of(episodes), penalty_of(episodes), single_process_total)
    assert result.advantages_N.dtype == torch.float32
    return result


@few_examples
@given(episode_sketches(groups=2), returns)
def test_token_returns_match_the_slow_reference(episodes: list[EpisodeSketch], estimator: TokenReturns) -> None:
    result = estimate(estimator, episodes)
    assert result.advantages_N.tolist() == pytest.approx(slow_token_returns(episodes, estimator), abs=1e-5)
    assert result.value_targets_N is None


@few_examples
@given(episode_sketches(groups=2), critics)
def test_gae_matches_the_slow_reference(episodes: list[EpisodeSketch], estimator: GAE) -> None:
    result = estimate(estimator, episodes)
    assert result.value_targets_N is not None
    assert result.value_mask_N is not None
    advantages, targets, value_mask = slow_gae(episodes, estimator)
    assert result.advantages_N.tolist() == pytest.approx(advantages, abs=1e-5)
    assert result.value_targets_N.tolist() == pytest.approx(targets, abs=1e-5)
    assert result.value_mask_N.tolist() == value_mask


@few_examples
@given(episode_sketches(groups=4, min_size=1), st.one_of(returns, critics), st.integers(0, 4))
def test_two_processes_estimate_the_same_as_one(
    episodes: list[EpisodeSketch], estimator: TokenReturns | GAE, cut: int
) -> None:
    """Groups are never split between processes; a process may have no groups."""
    episodes.sort(key=lambda play: play.group)
    expected = estimate(estimator, episodes)
    shares = [play for play in episodes if play.group < cut], [play for play in episodes if play.group >= cut]
    results = run_processes(
        lambda rank, total: estimator.estimate(token_batch_of(shares[rank]), penalty_of(shares[rank]), total)
    )
    advantages = torch.cat([result.advantages_N for result in results])
    torch.testing.assert_close(advantages, expected.advantages_N, atol=1e-5, rtol=0)
    if expected.value_targets_N is not None:
        targets = torch.cat([result.value_targets_N for result in results if result.value_targets_N is not None])
        torch.testing.assert_close(targets, expected.value_targets_N, atol=1e-6, rtol=0)


@few_examples
@given(episode_sketches(groups=2), st.one_of(returns, critics), st.integers(0, 6))
def test_episode_order_does_not_change_advantages(
    episodes: list[EpisodeSketch], estimator: TokenReturns | GAE, cut: int
) -> None:
    before = estimate(estimator, episodes).advantages_N
    moved = sum(len(play.completion_tokens) for play in episodes[:cut])
    after = estimate(estimator, episodes[cut:] + episodes[:cut]).advantages_N
    torch.testing.assert_close(after, torch.cat([before[moved:], before[:moved]]), atol=1e-5, rtol=0)


@few_examples
@given(episode_sketches(groups=2), gammas, st.sampled_from([-3.0, 100.0]))
def test_group_baseline_cancels_a_bonus_for_the_whole_group(
    episodes: list[EpisodeSketch], gamma: float, bonus: float
) -> None:
    estimator = TokenReturns(gamma=gamma, baseline=True)
    before = estimate(estimator, episodes).advantages_N
    for play in episodes:
        play.steps[0].reward += bonus * (play.group + 1)
    torch.testing.assert_close(estimate(estimator, episodes).advantages_N, before, atol=1e-5, rtol=0)


@few_examples
@given(episode_sketches(min_size=1), gammas, st.sampled_from([0.0, 0.5, 1.0]))
def test_turn_level_gae_ignores_values_within_a_turn(episodes: list[EpisodeSketch], gamma: float, lam: float) -> None:
    estimator = GAE(level="turn", gamma=gamma, lam=lam)
    before = estimate(estimator, episodes)
    for play in episodes:
        for step in play.steps:
            for token in step.tokens[1:]:
                token.value += 1e6
    after = estimate(estimator, episodes)
    assert torch.equal(before.advantages_N, after.advantages_N)
    assert before.value_targets_N is not None
    assert after.value_targets_N is not None
    assert torch.equal(before.value_targets_N, after.value_targets_N)


@few_examples
@given(episode_sketches(min_size=1), st.sampled_from(["token", "turn"]))
def test_undiscounted_target_with_lambda_1_is_the_return(
    episodes: list[EpisodeSketch], level: Literal["token", "turn"]
) -> None:
    token_batch = token_batch_of(episodes)
    result = GAE(level=level, whiten=False).estimate(token_batch, None, single_process_total)
    assert result.value_targets_N is not None
    reward_N = token_rewards(token_batch)
    for e in token_batch.episode_N.unique().tolist():
        in_episode = token_batch.episode_N == e
        assert result.value_targets_N[in_episode][0].item() == pytest.approx(
            reward_N[in_episode].sum().item() + episodes[e].bootstrap_value
        )


def test_gae_of_two_turns_by_hand() -> None:
    """Two tokens, an observation, one token; a reward of 1 at the end."""
    play = EpisodeSketch(0, [Step(0.0, [Token(0.1), Token(0.2)]), Step(1.0, [Token(0.5)])])
    by_token = GAE(gamma=1.0, lam=0.5, whiten=False).estimate(token_batch_of([play]), None, single_process_total)
    # TD errors: 0.2 - 0.1, 0.5 - 0.2, 1 - 0.5.
    assert by_token.advantages_N.tolist() == pytest.approx([0.1 + 0.5 * 0.55, 0.3 + 0.5 * 0.5, 0.5])
    by_turn = GAE(level="turn", gamma=0.5, lam=1.0, whiten=False).estimate(
        token_batch_of([play]), None, single_process_total
    )
    assert by_turn.advantages_N.tolist() == pytest.approx([0.5 - 0.1, 0.5 - 0.1, 1 - 0.5])
    assert by_turn.value_mask_N is not None
    assert by_turn.value_mask_N.tolist() == [True, False, True]


def test_gae_bootstraps_truncated_episodes() -> None:
    """The critic value after the last turn is 0.8; without `bootstrap_E` it is 0."""
    play = EpisodeSketch(0, [Step(0.0, [Token(0.1)]), Step(0.25, [Token(0.5)])], bootstrap_value=0.8)
    result = GAE(gamma=0.5, lam=0.5, whiten=False).estimate(token_batch_of([play]), None, single_process_total)
    last_advantage = 0.25 + 0.5 * 0.8 - 0.5
    assert result.advantages_N.tolist() == pytest.approx([0.5 * 0.5 - 0.1 + 0.25 * last_advantage, last_advantage])
    assert result.value_targets_N is not None
    assert result.value_targets_N.tolist() == pytest.approx([result.advantages_N[0].item() + 0.1, 0.25 + 0.5 * 0.8])
    without_bootstrap = replace(token_batch_of([play]), bootstrap_E=None)
    assert (
        GAE(gamma=0.5, lam=0.5, whiten=False)
        .estimate(without_bootstrap, None, single_process_total)
        .advantages_N[1]
        .item()
        == -0.25
    )


def test_reinforce_pp_combines_kl_and_reward_as_in_the_paper() -> None:
    """A token's return is the reward minus the penalties of this and all later tokens."""
    play = EpisodeSketch(0, [Step(1.0, [Token(penalty=0.25), Token(penalty=0.5)])])
    other = EpisodeSketch(0, [Step(0.0, [Token(), Token()])])
    token_returns = [0.25, 0.5, 0.0, 0.0]
    advantages = estimate(TokenReturns(), [play, other]).advantages_N
    assert advantages.tolist() == pytest.approx(
        [(x - 0.1875) / statistics.pstdev(token_returns) for x in token_returns]
    )


def test_uniform_batch_has_zero_advantages() -> None:
    episodes = [EpisodeSketch(0, [Step(1.0, [Token(0.3)] * size)]) for size in (1, 2, 3)]
    for estimator in (TokenReturns(), TokenReturns(baseline=True)):
        assert not estimate(estimator, episodes).advantages_N.any()


@pytest.mark.parametrize("gamma", [-0.1, 1.5, math.nan])
@pytest.mark.parametrize("estimator", [GAE, GroupRelative, StepGroups, TokenReturns])
def test_discounts_outside_0_to_1_are_rejected(estimator: Callable[..., Any], gamma: float) -> None:
    with pytest.raises(ValueError, match=r"advantages.gamma is .*; it must be from 0 to 1"):
        estimator(gamma=gamma)
    with pytest.raises(ValueError, match=r"advantages.lam is"):
        GAE(lam=gamma)


def test_gae_without_critic_raises_a_helpful_error() -> None:
    token_batch = token_batch_of([EpisodeSketch(0, [Step()])])
    without_values = TokenBatch(
        **{name: getattr(token_batch, name) for name in TokenBatch.__slots__ if name != "values_N"}
    )
    with pytest.raises(ValueError, match="choose a critic"):
        GAE().estimate(without_values, None, single_process_total)


def test_equal_turn_indices_do_not_merge_adjacent_episodes() -> None:
    """The last turn of one episode and the first turn of the next one have the same index."""
    episodes = [EpisodeSketch(0, [Step(1.0, [Token(0.0)])]), EpisodeSketch(0, [Step(0.0, [Token(0.0)])])]
    assert [len(list(run)) for _, run in groupby(token_batch_of(episodes).turn_N.tolist())] == [2]
    result = GAE(level="turn", whiten=False).estimate(token_batch_of(episodes), None, single_process_total)
    assert result.advantages_N.tolist() == [1.0, 0.0]
