"""REINFORCE++ and GAE against slow twins that go from token to token, in one process and in two."""

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
from token_batches import Play, Step, Token, alone, at_once, experience_of, penalty_of, plays, slow_normalised

pytestmark = pytest.mark.quick

some = settings(max_examples=20)
gammas = st.sampled_from([0.5, 0.95, 1.0])
returns = st.builds(TokenReturns, gamma=gammas, baseline=st.booleans())
critics = st.builds(
    GAE,
    level=st.sampled_from(["token", "turn"]),
    gamma=gammas,
    lam=st.sampled_from([0.0, 0.5, 1.0]),
    whiten=st.booleans(),
)


def slow_rewards(play: Play, paid: Sequence[float]) -> list[float]:
    """What each said token earns when the turns were paid so much."""
    rewards = [-token.penalty for token in play.said]
    counts = [len(step.tokens) for step in play.steps]
    for k, reward in enumerate(paid):
        if rewards:
            rewards[max(sum(counts[: k + 1]) - 1, 0)] += reward
    return rewards


def slow_token_returns(episodes: list[Play], knobs: TokenReturns) -> list[float]:
    found: list[float] = []
    for play in episodes:
        paid = [step.reward for step in play.steps]
        if knobs.baseline:
            peers = [sum(step.reward for step in other.steps) for other in episodes if other.group == play.group]
            paid = [0.0] * (len(paid) - 1) + [sum(paid) - statistics.fmean(peers)]
        rewards = slow_rewards(play, paid)
        found += [sum(knobs.gamma ** (j - i) * rewards[j] for j in range(i, len(rewards))) for i in range(len(rewards))]
    return slow_normalised(found)


def slow_gae(episodes: list[Play], knobs: GAE) -> tuple[list[float], list[float], list[bool]]:
    """Backwards through each episode, by the recursion A = delta + gamma * lambda * A of the next."""
    advantages: list[float] = []
    targets: list[float] = []
    first: list[bool] = []
    sizes: list[int] = []
    for play in episodes:
        rewards = iter(slow_rewards(play, [step.reward for step in play.steps]))
        if knobs.level == "turn":
            actions = [(s.tokens[0].value, [next(rewards) for _ in s.tokens]) for s in play.steps if s.tokens]
        else:
            actions = [(token.value, [next(rewards)]) for token in play.said]
        ahead, value_ahead = 0.0, play.beyond
        of_play: list[float] = []
        for value, paid in reversed(actions):
            ahead = sum(paid) + knobs.gamma * value_ahead - value + knobs.gamma * knobs.lam * ahead
            value_ahead = value
            of_play.insert(0, ahead)
        advantages += of_play
        targets += [advantage + value for advantage, (value, _) in zip(of_play, actions, strict=True)]
        sizes += [len(paid) for _, paid in actions]
    if knobs.whiten:
        advantages = slow_normalised(advantages)
    for size in sizes:
        first += [True] + [False] * (size - 1)
    spread = [x for x, size in enumerate(sizes) for _ in range(size)]
    return [advantages[x] for x in spread], [targets[x] for x in spread], first


def assign(estimator: TokenReturns | GAE, episodes: list[Play]) -> AdvantageEstimate:
    assigned = estimator.estimate(experience_of(episodes), penalty_of(episodes), alone)
    assert assigned.advantages_N.dtype == torch.float32
    return assigned


@some
@given(plays(groups=2), returns)
def test_token_returns_are_the_slow_twins(episodes: list[Play], estimator: TokenReturns) -> None:
    found = assign(estimator, episodes)
    assert found.advantages_N.tolist() == pytest.approx(slow_token_returns(episodes, estimator), abs=1e-5)
    assert found.value_targets_N is None


@some
@given(plays(groups=2), critics)
def test_gae_is_the_slow_twins(episodes: list[Play], estimator: GAE) -> None:
    found = assign(estimator, episodes)
    assert found.value_targets_N is not None
    assert found.value_mask_N is not None
    advantages, targets, first = slow_gae(episodes, estimator)
    assert found.advantages_N.tolist() == pytest.approx(advantages, abs=1e-5)
    assert found.value_targets_N.tolist() == pytest.approx(targets, abs=1e-5)
    assert found.value_mask_N.tolist() == first


@some
@given(plays(groups=4, min_size=1), st.one_of(returns, critics), st.integers(0, 4))
def test_two_processes_assign_what_one_does(episodes: list[Play], estimator: TokenReturns | GAE, cut: int) -> None:
    """Groups are never parted; one process may have none."""
    episodes.sort(key=lambda play: play.group)
    whole = assign(estimator, episodes)
    halves = [play for play in episodes if play.group < cut], [play for play in episodes if play.group >= cut]
    found = at_once(
        lambda rank, total: estimator.estimate(experience_of(halves[rank]), penalty_of(halves[rank]), total)
    )
    together = torch.cat([assigned.advantages_N for assigned in found])
    torch.testing.assert_close(together, whole.advantages_N, atol=1e-5, rtol=0)
    if whole.value_targets_N is not None:
        targets = torch.cat([a.value_targets_N for a in found if a.value_targets_N is not None])
        torch.testing.assert_close(targets, whole.value_targets_N, atol=1e-6, rtol=0)


@some
@given(plays(groups=2), st.one_of(returns, critics), st.integers(0, 6))
def test_the_order_of_episodes_changes_nothing(episodes: list[Play], estimator: TokenReturns | GAE, cut: int) -> None:
    before = assign(estimator, episodes).advantages_N
    said = sum(len(play.said) for play in episodes[:cut])
    after = assign(estimator, episodes[cut:] + episodes[:cut]).advantages_N
    torch.testing.assert_close(after, torch.cat([before[said:], before[:said]]), atol=1e-5, rtol=0)


@some
@given(plays(groups=2), gammas, st.sampled_from([-3.0, 100.0]))
def test_the_same_bonus_for_a_whole_group_changes_nothing_above_its_baseline(
    episodes: list[Play], gamma: float, bonus: float
) -> None:
    estimator = TokenReturns(gamma=gamma, baseline=True)
    before = assign(estimator, episodes).advantages_N
    for play in episodes:
        play.steps[0].reward += bonus * (play.group + 1)
    torch.testing.assert_close(assign(estimator, episodes).advantages_N, before, atol=1e-5, rtol=0)


@some
@given(plays(min_size=1), gammas, st.sampled_from([0.0, 0.5, 1.0]))
def test_values_within_a_turn_change_nothing_for_turns(episodes: list[Play], gamma: float, lam: float) -> None:
    estimator = GAE(level="turn", gamma=gamma, lam=lam)
    before = assign(estimator, episodes)
    for play in episodes:
        for step in play.steps:
            for token in step.tokens[1:]:
                token.value += 1e6
    after = assign(estimator, episodes)
    assert torch.equal(before.advantages_N, after.advantages_N)
    assert before.value_targets_N is not None
    assert after.value_targets_N is not None
    assert torch.equal(before.value_targets_N, after.value_targets_N)


@some
@given(plays(min_size=1), st.sampled_from(["token", "turn"]))
def test_with_lambda_1_and_no_discount_the_target_is_the_return(
    episodes: list[Play], level: Literal["token", "turn"]
) -> None:
    experience = experience_of(episodes)
    assigned = GAE(level=level, whiten=False).estimate(experience, None, alone)
    assert assigned.value_targets_N is not None
    reward_N = token_rewards(experience)
    for e in experience.episode_N.unique().tolist():
        own = experience.episode_N == e
        assert assigned.value_targets_N[own][0].item() == pytest.approx(reward_N[own].sum().item() + episodes[e].beyond)


def test_two_turns_by_hand() -> None:
    """Two tokens, an observation of any length, one token; paid 1 at the end."""
    play = Play(0, [Step(0.0, [Token(0.1), Token(0.2)]), Step(1.0, [Token(0.5)])])
    by_token = GAE(gamma=1.0, lam=0.5, whiten=False).estimate(experience_of([play]), None, alone)
    # Errors: 0.2 - 0.1, 0.5 - 0.2, 1 - 0.5.
    assert by_token.advantages_N.tolist() == pytest.approx([0.1 + 0.5 * 0.55, 0.3 + 0.5 * 0.5, 0.5])
    by_turn = GAE(level="turn", gamma=0.5, lam=1.0, whiten=False).estimate(experience_of([play]), None, alone)
    assert by_turn.advantages_N.tolist() == pytest.approx([0.5 - 0.1, 0.5 - 0.1, 1 - 0.5])
    assert by_turn.value_mask_N is not None
    assert by_turn.value_mask_N.tolist() == [True, False, True]


def test_a_truncated_episode_goes_on_with_what_the_critic_expects() -> None:
    """The same turns, with 0.8 expected behind the last; and nothing is where no critic was asked."""
    play = Play(0, [Step(0.0, [Token(0.1)]), Step(0.25, [Token(0.5)])], beyond=0.8)
    found = GAE(gamma=0.5, lam=0.5, whiten=False).estimate(experience_of([play]), None, alone)
    last = 0.25 + 0.5 * 0.8 - 0.5
    assert found.advantages_N.tolist() == pytest.approx([0.5 * 0.5 - 0.1 + 0.25 * last, last])
    assert found.value_targets_N is not None
    assert found.value_targets_N.tolist() == pytest.approx([found.advantages_N[0].item() + 0.1, 0.25 + 0.5 * 0.8])
    ended = replace(experience_of([play]), bootstrap_E=None)
    assert GAE(gamma=0.5, lam=0.5, whiten=False).estimate(ended, None, alone).advantages_N[1].item() == -0.25


def test_kl_and_reward_reach_reinforce_pp_as_in_the_paper() -> None:
    """Advantage of a token: the reward minus the penalties from it on."""
    play = Play(0, [Step(1.0, [Token(penalty=0.25), Token(penalty=0.5)])])
    other = Play(0, [Step(0.0, [Token(), Token()])])
    raw = [0.25, 0.5, 0.0, 0.0]
    found = assign(TokenReturns(), [play, other]).advantages_N
    assert found.tolist() == pytest.approx([(x - 0.1875) / statistics.pstdev(raw) for x in raw])


def test_a_batch_in_which_all_is_the_same_teaches_nothing() -> None:
    episodes = [Play(0, [Step(1.0, [Token(0.3)] * size)]) for size in (1, 2, 3)]
    for estimator in (TokenReturns(), TokenReturns(baseline=True)):
        assert not assign(estimator, episodes).advantages_N.any()


@pytest.mark.parametrize("gamma", [-0.1, 1.5, math.nan])
@pytest.mark.parametrize("estimator", [GAE, GroupRelative, StepGroups, TokenReturns])
def test_discounts_are_from_0_to_1(estimator: Callable[..., Any], gamma: float) -> None:
    with pytest.raises(ValueError, match=r"advantages.gamma is .*; it must be from 0 to 1"):
        estimator(gamma=gamma)
    with pytest.raises(ValueError, match=r"advantages.lam is"):
        GAE(lam=gamma)


def test_gae_without_a_critic_says_what_to_do() -> None:
    experience = experience_of([Play(0, [Step()])])
    without = TokenBatch(**{name: getattr(experience, name) for name in TokenBatch.__slots__ if name != "values_N"})
    with pytest.raises(ValueError, match="choose a critic"):
        GAE().estimate(without, None, alone)


def test_episodes_that_overlap_in_nothing_but_their_turn_numbers_stay_apart() -> None:
    """The last turn of one and the first of the next have the same number."""
    episodes = [Play(0, [Step(1.0, [Token(0.0)])]), Play(0, [Step(0.0, [Token(0.0)])])]
    assert [len(list(same)) for _, same in groupby(experience_of(episodes).turn_N.tolist())] == [2]
    assigned = GAE(level="turn", whiten=False).estimate(experience_of(episodes), None, alone)
    assert assigned.advantages_N.tolist() == [1.0, 0.0]
