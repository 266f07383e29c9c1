"""Advantages relative to a group, GRPO to GiGPO, against slow twins that go from episode to episode; and which groups
teach nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from typing import Any, Literal

import pytest
import torch
from agentgym_trainer.algorithms import GAE, GRPO, RLOO, Algorithm, GiGPO
from agentgym_trainer.algorithms.advantages.gigpo import StepGroups
from agentgym_trainer.algorithms.advantages.group_relative import GroupRelative
from agentgym_trainer.algorithms.advantages.reinforce_pp import TokenReturns
from agentgym_trainer.algorithms.group_filter import GroupFilter, same
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import Play, Step, Token, alone, at_once, experience_of, penalty_of, plays, slow_normalised
from torch import Tensor

pytestmark = pytest.mark.quick

Estimator = GroupRelative | StepGroups
some = settings(max_examples=20)
scales: Any = st.sampled_from(["std", "none"])
baselines: Any = st.sampled_from(["mean", "leave_one_out", "length"])
relatives = st.builds(
    GroupRelative,
    baseline=baselines,
    scale=scales,
    returns=st.sampled_from(["episode", "turn"]),
    gamma=st.sampled_from([0.0, 0.5, 1.0]),
    whiten=st.booleans(),
)
steppers = st.builds(
    StepGroups,
    step_weight=st.sampled_from([0.0, 0.5, 1.0]),
    gamma=st.sampled_from([0.5, 1.0]),
    anchor=st.sampled_from(["observation", "state"]),
    scale=scales,
    baseline=baselines,
    whiten=st.booleans(),
)
estimators = st.one_of(relatives, steppers)


def slow_relative(
    values: Sequence[float], groups: Sequence[Hashable], lengths: Sequence[int], knobs: Estimator
) -> list[float]:
    """(value - baseline) / scale, one value after the other."""
    found: list[float] = []
    for i, own in enumerate(groups):
        among = [value for value, group in zip(values, groups, strict=True) if group == own]
        tokens = [length for length, group in zip(lengths, groups, strict=True) if group == own]
        others = [values[j] for j, group in enumerate(groups) if group == own and j != i]
        if not others or max(among) - min(among) < 1e-9:
            found.append(0.0)
            continue
        if knobs.baseline == "leave_one_out":
            apart = values[i] - statistics.fmean(others)
        elif knobs.baseline == "length" and any(tokens):
            apart = values[i] - sum(count * value for count, value in zip(tokens, among, strict=True)) / sum(tokens)
        else:
            apart = values[i] - statistics.fmean(among)
        found.append(apart / statistics.stdev(among) if knobs.scale == "std" else apart)
    return found


def slow_turns(play: Play) -> list[float]:
    """Reward of each turn minus its penalties; a turn that said nothing leaves its reward to one that did."""
    paid = [step.reward - sum(token.penalty for token in step.tokens) for step in play.steps]
    speaking = [k for k, step in enumerate(play.steps) if step.tokens]
    for k, step in enumerate(play.steps):
        if not step.tokens and speaking:
            heir = max((j for j in speaking if j < k), default=speaking[0])
            paid[heir], paid[k] = paid[heir] + paid[k], 0.0
    return paid


def slow_to_go(play: Play, gamma: float) -> list[float]:
    paid = slow_turns(play)
    return [sum(gamma ** (j - k) * paid[j] for j in range(k, len(paid))) for k in range(len(paid))]


def over_tokens(episodes: list[Play], knobs: Estimator, per_turn: Callable[[int, int], float]) -> list[float]:
    spread = [
        per_turn(e, k) for e, play in enumerate(episodes) for k, step in enumerate(play.steps) for _ in step.tokens
    ]
    return slow_normalised(spread) if knobs.whiten else spread


def slow_group_relative(episodes: list[Play], knobs: GroupRelative) -> list[float]:
    groups, lengths = [play.group for play in episodes], [len(play.said) for play in episodes]
    if knobs.returns == "episode":
        of_episode = slow_relative([slow_to_go(play, knobs.gamma)[0] for play in episodes], groups, lengths, knobs)
        return over_tokens(episodes, knobs, lambda e, k: of_episode[e])
    at = [(e, k) for e, play in enumerate(episodes) for k, step in enumerate(play.steps) if step.tokens]
    values = [slow_to_go(episodes[e], knobs.gamma)[k] for e, k in at]
    lengths = [len(episodes[e].steps[k].tokens) for e, k in at]
    of_turn = dict(zip(at, slow_relative(values, [(groups[e], k) for e, k in at], lengths, knobs), strict=True))
    return over_tokens(episodes, knobs, lambda e, k: of_turn[e, k])


def slow_step_groups(episodes: list[Play], knobs: StepGroups) -> list[float]:
    returns, groups = [sum(slow_turns(play)) for play in episodes], [play.group for play in episodes]
    of_episode = slow_relative(returns, groups, [len(play.said) for play in episodes], knobs)
    at = [(e, k) for e, play in enumerate(episodes) for k, step in enumerate(play.steps) if step.tokens]
    values = [slow_to_go(episodes[e], knobs.gamma)[k] for e, k in at]
    steps = [episodes[e].steps[k] for e, k in at]
    of_anchor = [step.state if knobs.anchor == "state" else step.seen for step in steps]
    anchors = [(episodes[e].group, anchor) for (e, _), anchor in zip(at, of_anchor, strict=True)]
    lengths = [len(episodes[e].steps[k].tokens) for e, k in at]
    of_step = dict(zip(at, slow_relative(values, anchors, lengths, knobs), strict=True))
    return over_tokens(episodes, knobs, lambda e, k: of_episode[e] + knobs.step_weight * of_step[e, k])


def advantages(estimator: Estimator, episodes: list[Play], penalty_N: Tensor | None = None) -> Tensor:
    assigned = estimator.estimate(experience_of(episodes), penalty_N, alone)
    assert assigned.value_targets_N is None
    assert assigned.advantages_N.dtype == torch.float32
    return assigned.advantages_N


@some
@given(plays(groups=2), relatives)
def test_group_relative_advantages_are_the_slow_twins(episodes: list[Play], estimator: GroupRelative) -> None:
    found = advantages(estimator, episodes, penalty_of(episodes))
    assert found.tolist() == pytest.approx(slow_group_relative(episodes, estimator), abs=1e-5)


@some
@given(plays(groups=2), steppers)
def test_step_group_advantages_are_the_slow_twins(episodes: list[Play], estimator: StepGroups) -> None:
    found = advantages(estimator, episodes, penalty_of(episodes))
    assert found.tolist() == pytest.approx(slow_step_groups(episodes, estimator), abs=1e-5)


def one_token(group: int, *rewards: float, states: Sequence[int] = (0, 1, 2, 3)) -> Play:
    return Play(group, [Step(reward, [Token()], state, state) for reward, state in zip(rewards, states, strict=False)])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (GroupRelative(), [1.5, -0.5, -0.5, -0.5]),
        (GroupRelative(scale="none"), [0.75, -0.25, -0.25, -0.25]),
        (GroupRelative(baseline="leave_one_out", scale="none"), [1.0, -1 / 3, -1 / 3, -1 / 3]),
        (GroupRelative(baseline="length", scale="none"), [0.75, -0.25, -0.25, -0.25]),
    ],
    ids=["GRPO", "Dr. GRPO", "RLOO", "OPO"],
)
def test_one_success_in_four(estimator: GroupRelative, expected: list[float]) -> None:
    episodes = [one_token(0, float(e == 0)) for e in range(4)]
    assert advantages(estimator, episodes).tolist() == pytest.approx(expected)


def test_a_turns_reward_credits_that_turn_and_the_ones_before_it() -> None:
    episodes = [one_token(0, 0.0, 1.0, 0.0), one_token(0, 0.0, 0.0, 0.0)]
    found = advantages(GroupRelative(scale="none", returns="turn"), episodes)
    assert found.tolist() == [0.5, 0.5, 0.0, -0.5, -0.5, 0.0]
    found = advantages(GroupRelative(scale="none", returns="turn", gamma=0.5), episodes)
    assert found.tolist() == [0.25, 0.5, 0.0, -0.25, -0.5, 0.0]


def test_a_step_is_compared_with_steps_from_the_same_state_of_the_same_task_alone() -> None:
    met = [one_token(0, 0.0, 1.0, states=(7, 8)), one_token(0, 0.0, 0.0, states=(9, 8))]
    elsewhere = [one_token(1, 0.5, states=(8,)), one_token(1, 0.5, states=(8,))]
    found = advantages(StepGroups(scale="none", gamma=1.0), met + elsewhere)
    assert found.tolist() == [0.5, 1.0, -0.5, -1.0, 0.0, 0.0]


def test_coming_back_to_a_state_is_a_comparison_of_its_own() -> None:
    episodes = [one_token(0, 0.0, 0.0, 1.0, states=(5, 6, 5)), one_token(0, 1.0, states=(4,))]
    found = advantages(StepGroups(scale="none", gamma=0.5), episodes)
    assert found.tolist() == [-0.375, 0.0, 0.375, 0.0]


@some
@given(plays(groups=2), estimators, st.sampled_from([-3.0, 0.5, 100.0]))
def test_the_same_bonus_at_the_end_of_every_episode_of_a_group_changes_nothing(
    episodes: list[Play], estimator: GroupRelative, bonus: float
) -> None:
    # Discounted, a bonus is worth the same to those alone who are equally far from the end.
    if estimator.gamma < 1:
        for play in episodes:
            play.steps = play.steps[:1]
    before = advantages(estimator, episodes)
    for play in episodes:
        play.steps[-1].reward += bonus * (play.group + 1)
    torch.testing.assert_close(advantages(estimator, episodes), before, atol=1e-5, rtol=0)


@some
@given(plays(), estimators, st.integers(0, 99))
def test_the_order_of_episodes_changes_nothing(episodes: list[Play], estimator: Estimator, seed: int) -> None:
    def by_episode(plays: list[Play]) -> dict[int, list[float]]:
        cuts = accumulate((len(play.said) for play in plays), initial=0)
        found = advantages(estimator, plays, penalty_of(plays)).tolist()
        return {id(play): found[a:b] for play, (a, b) in zip(plays, pairwise(cuts), strict=True)}

    before = by_episode(episodes)
    after = by_episode(Random(seed).sample(episodes, len(episodes)))
    for play, found in before.items():
        assert after[play] == pytest.approx(found, abs=1e-6)


@some
@given(plays(min_size=1), estimators)
def test_other_groups_and_values_change_nothing(episodes: list[Play], estimator: Estimator) -> None:
    estimator = replace(estimator, whiten=False)
    together = advantages(estimator, episodes)
    first = [play for play in episodes if play.group == episodes[0].group]
    for token in (token for play in first for token in play.said):
        token.value = 1e6
    own = torch.tensor([play.group == episodes[0].group for play in episodes for _ in play.said], dtype=torch.bool)
    torch.testing.assert_close(advantages(estimator, first), together[own], atol=1e-6, rtol=0)


@some
@given(st.lists(st.lists(st.floats(0, 1), max_size=4), min_size=1, max_size=6), st.floats(0, 1), estimators)
def test_a_flat_group_stays_flat_however_its_score_was_paid_out(
    paths: list[list[float]], score: float, estimator: Estimator
) -> None:
    """Worlds with a running total emit differences; as float32 they sum to the same score but for rounding."""
    episodes = [
        one_token(0, *(b - a for a, b in pairwise([0.0, *path, score])), states=(e, e + 9, e + 18, e + 27, e + 36))
        for e, path in enumerate(paths)
    ]
    if isinstance(estimator, GroupRelative):
        estimator = GroupRelative(baseline=estimator.baseline, scale=estimator.scale)
    assert not advantages(estimator, episodes).any()
    assert Algorithm(advantages=estimator).is_flat(experience_of(episodes))
    assert Algorithm(advantages=GAE()).is_flat(experience_of(episodes))


@pytest.mark.parametrize(
    ("returns", "flat"),
    [([], True), ([0.1 + 0.2, 0.3], True), ([1e4, 1e4 + 1e-3], True), ([0.0, 1e-3], False), ([0.0, 0.0, 1.0], False)],
)
def test_returns_that_differ_by_rounding_are_flat(returns: list[float], flat: bool) -> None:
    group = experience_of([one_token(0, paid) for paid in returns])
    assert same(returns) == Algorithm(advantages=GAE()).is_flat(group) == flat
    assert GRPO.is_flat(group) == GiGPO.is_flat(group) == flat


@some
@given(plays(groups=1, masked=True), estimators)
def test_a_group_is_flat_when_no_token_in_the_loss_has_an_advantage(episodes: list[Play], estimator: Estimator) -> None:
    found = advantages(replace(estimator, whiten=False), episodes).tolist()
    trained = [play.in_loss for play in episodes for _ in play.said]
    flat = not any(advantage for advantage, trains in zip(found, trained, strict=True) if trains)
    assert Algorithm(advantages=replace(estimator, whiten=False)).is_flat(experience_of(episodes)) == flat


def test_flatness_is_judged_by_what_the_advantages_compare() -> None:
    slow_and_fast = experience_of([one_token(0, 0.0, 0.0, 1.0), one_token(0, 1.0)])
    relative: Any = GRPO.advantages
    assert GRPO.is_flat(slow_and_fast)
    assert RLOO.is_flat(slow_and_fast)  # with its penalty in the reward, which doesn't count here
    for discounted in (replace(relative, gamma=0.9), StepGroups(gamma=0.9)):
        assert not Algorithm(advantages=discounted).is_flat(slow_and_fast)
    assert Algorithm(advantages=TokenReturns(gamma=0.9)).is_flat(slow_and_fast)
    other_turns = experience_of([one_token(0, 1.0, 0.0), one_token(0, 0.0, 1.0)])
    assert GRPO.is_flat(other_turns)
    assert not Algorithm(advantages=replace(relative, returns="turn")).is_flat(other_turns)


def test_what_becomes_of_each_kind_of_group() -> None:
    groups = GroupFilter(single="resample", zero_variance="resample")
    assert groups.classify(0, zero_variance=True) == groups.classify(1, zero_variance=True) == ("single", "resample")
    assert groups.classify(2, zero_variance=True) == ("zero_variance", "resample")
    assert groups.classify(2, zero_variance=False) == ("ok", "keep")


@pytest.mark.parametrize("broken", ["drop", "resample"])
def test_a_broken_group_is_broken_whatever_is_left_of_it(broken: Literal["drop", "resample"]) -> None:
    for left, flat in ((0, True), (2, True), (2, False)):
        assert GroupFilter(has_failures=broken).classify(left, zero_variance=flat, failed=1) == ("has_failures", broken)


def test_a_broken_group_that_is_kept_is_judged_by_what_is_left_of_it() -> None:
    groups = GroupFilter(has_failures="keep", single="drop", zero_variance="resample")
    assert groups.classify(2, zero_variance=False, failed=2) == ("has_failures", "keep")
    assert groups.classify(1, zero_variance=True, failed=2) == ("single", "drop")
    assert groups.classify(2, zero_variance=True, failed=2) == ("zero_variance", "resample")


def test_step_groups_are_by_what_was_seen_and_hidden_states_are_an_option() -> None:
    """Two episodes see the same in hidden states that differ: by the observation they are compared."""
    episodes = [Play(0, [Step(paid, [Token()], state=number, seen=5)]) for number, paid in enumerate((1.0, 0.0))]
    knobs = StepGroups(scale="none")
    assert advantages(knobs, episodes).tolist() == [1.0, -1.0]
    assert advantages(replace(knobs, anchor="state"), episodes).tolist() == [0.5, -0.5]
    unseen = replace(experience_of(episodes), observation_EK=None)
    with pytest.raises(ValueError, match="no observations to find step groups by; set anchor to 'state'"):
        knobs.estimate(unseen, None, alone)


@some
@given(plays(groups=3), st.integers(1, 3))
def test_how_large_step_groups_are(episodes: list[Play], processes: int) -> None:
    anchors = Counter((play.group, step.seen) for play in episodes for step in play.steps if step.tokens)
    shares = [[play for play in episodes if play.group % processes == rank] for rank in range(processes)]
    found = at_once(lambda rank, total: GiGPO.advantages.estimate(experience_of(shares[rank]), None, total), processes)
    grouped = sum(size for size in anchors.values() if size > 1)
    expected = {
        "step_group_size": statistics.fmean(anchors.values()) if anchors else 0.0,
        "step_grouped": grouped / max(1, anchors.total()),
    }
    assert all(assigned.metrics == pytest.approx(expected) for assigned in found)
    assert GiGPO.advantages.estimate(experience_of(episodes), None, alone).metrics == pytest.approx(expected)


def test_resampling_needs_a_round() -> None:
    with pytest.raises(ValueError, match=r"rounds must be at least 1, not 0"):
        GroupFilter(zero_variance="resample", rounds=0)
