"""Advantages relative to a group, GRPO to GiGPO, against slow twins that go from episode to episode; and which groups
teach nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from typing import Any, Literal

import pytest
import torch
from agentgym_trainer.algorithms.gigpo import StepGroups
from agentgym_trainer.algorithms.group_relative import GroupRelative
from agentgym_trainer.algorithms.groups import Groups, kind
from experiences import Play, Step, Token, alone, experience_of, penalty_of, plays, slow_normalised
from hypothesis import given, settings
from hypothesis import strategies as st
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
    anchors = [(episodes[e].group, episodes[e].steps[k].state) for e, k in at]
    lengths = [len(episodes[e].steps[k].tokens) for e, k in at]
    of_step = dict(zip(at, slow_relative(values, anchors, lengths, knobs), strict=True))
    return over_tokens(episodes, knobs, lambda e, k: of_episode[e] + knobs.step_weight * of_step[e, k])


def advantages(estimator: Estimator, episodes: list[Play], penalty_N: Tensor | None = None) -> Tensor:
    assigned = estimator.assign(experience_of(episodes), penalty_N, alone)
    assert assigned.target_N is None
    assert assigned.advantage_N.dtype == torch.float32
    return assigned.advantage_N


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
    return Play(group, [Step(reward, [Token()], state) for reward, state in zip(rewards, states, strict=False)])


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
    assert kind([sum(step.reward for step in play.steps) for play in episodes]) == ("flat" if paths[1:] else "lonely")


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([], "lonely"),
        ([0.3], "lonely"),
        ([0.1 + 0.2, 0.3], "flat"),
        ([1e4, 1e4 + 1e-3], "flat"),
        ([0.0, 1e-3], "good"),
        ([0.0, 0.0, 1.0], "good"),
    ],
)
def test_which_kind_a_group_is(returns: list[float], expected: str) -> None:
    assert kind(returns) == expected
    assert Groups(lonely="resample", flat="resample").judge(returns) == (
        expected,
        "keep" if expected == "good" else "resample",
    )


@pytest.mark.parametrize("broken", ["drop", "resample"])
def test_a_broken_group_is_broken_whatever_is_left_of_it(broken: Literal["drop", "resample"]) -> None:
    for returns in ([], [0.0, 0.0], [0.0, 1.0]):
        assert Groups(broken=broken).judge(returns, failed=1) == ("broken", broken)


def test_a_broken_group_that_is_kept_is_judged_by_what_is_left_of_it() -> None:
    groups = Groups(broken="keep", lonely="drop", flat="resample")
    assert groups.judge([0.0, 1.0], failed=2) == ("broken", "keep")
    assert groups.judge([0.0], failed=2) == ("lonely", "drop")
    assert groups.judge([0.0, 0.0], failed=2) == ("flat", "resample")


def test_resampling_needs_a_round() -> None:
    with pytest.raises(ValueError, match=r"rounds must be at least 1, not 0"):
        Groups(flat="resample", rounds=0)
