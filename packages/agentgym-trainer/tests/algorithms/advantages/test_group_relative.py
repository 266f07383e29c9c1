"""Tests of group-relative advantages (GRPO to GiGPO) against slow per-episode reference implementations, and of the
group filter."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
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
from textbook_advantages import (
    advantages,
    anchors,
    baselines,
    expand_to_tokens,
    scales,
    slow_relative,
    slow_to_go,
    slow_turns,
)
from token_batches import (
    EpisodeSketch,
    Step,
    Token,
    episode_sketches,
    penalty_of,
    run_processes,
    single_process_total,
    token_batch_of,
)

pytestmark = pytest.mark.quick

Estimator = GroupRelative | StepGroups
few_examples = settings(max_examples=20)
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
    anchor=anchors,
    scale=scales,
    baseline=baselines,
    whiten=st.booleans(),
)
estimators = st.one_of(relatives, steppers)


def slow_group_relative(episodes: list[EpisodeSketch], estimator: GroupRelative) -> list[float]:
    groups, lengths = [play.group for play in episodes], [len(play.completion_tokens) for play in episodes]
    if estimator.returns == "episode":
        episode_advantages = slow_relative(
            [slow_to_go(play, estimator.gamma)[0] for play in episodes], groups, lengths, estimator
        )
        return expand_to_tokens(episodes, estimator, lambda e, k: episode_advantages[e])
    turns = [(e, k) for e, play in enumerate(episodes) for k, step in enumerate(play.steps) if step.tokens]
    values = [slow_to_go(episodes[e], estimator.gamma)[k] for e, k in turns]
    lengths = [len(episodes[e].steps[k].tokens) for e, k in turns]
    turn_advantages = dict(
        zip(turns, slow_relative(values, [(groups[e], k) for e, k in turns], lengths, estimator), strict=True)
    )
    return expand_to_tokens(episodes, estimator, lambda e, k: turn_advantages[e, k])


def slow_step_groups(episodes: list[EpisodeSketch], estimator: StepGroups) -> list[float]:
    returns, groups = [sum(slow_turns(play)) for play in episodes], [play.group for play in episodes]
    episode_advantages = slow_relative(returns, groups, [len(play.completion_tokens) for play in episodes], estimator)
    turns = [(e, k) for e, play in enumerate(episodes) for k, step in enumerate(play.steps) if step.tokens]
    values = [slow_to_go(episodes[e], estimator.gamma)[k] for e, k in turns]
    steps = [episodes[e].steps[k] for e, k in turns]
    anchor_states = [step.state if estimator.anchor == "state" else step.observation for step in steps]
    anchors = [(episodes[e].group, anchor) for (e, _), anchor in zip(turns, anchor_states, strict=True)]
    lengths = [len(episodes[e].steps[k].tokens) for e, k in turns]
    step_advantages = dict(zip(turns, slow_relative(values, anchors, lengths, estimator), strict=True))
    return expand_to_tokens(
        episodes, estimator, lambda e, k: episode_advantages[e] + estimator.step_weight * step_advantages[e, k]
    )


@few_examples
@given(episode_sketches(groups=2), relatives)
def test_group_relative_advantages_match_the_slow_reference(
    episodes: list[EpisodeSketch], estimator: GroupRelative
) -> None:
    found = advantages(estimator, episodes, penalty_of(episodes))
    assert found.tolist() == pytest.approx(slow_group_relative(episodes, estimator), abs=1e-5)


@few_examples
@given(episode_sketches(groups=2), steppers)
def test_step_group_advantages_match_the_slow_reference(episodes: list[EpisodeSketch], estimator: StepGroups) -> None:
    found = advantages(estimator, episodes, penalty_of(episodes))
    assert found.tolist() == pytest.approx(slow_step_groups(episodes, estimator), abs=1e-5)


def one_token_per_turn(group: int, *rewards: float, states: Sequence[int] = (0, 1, 2, 3)) -> EpisodeSketch:
    return EpisodeSketch(
        group, [Step(reward, [Token()], state, state) for reward, state in zip(rewards, states, strict=False)]
    )


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
def test_advantages_of_one_success_in_four(estimator: GroupRelative, expected: list[float]) -> None:
    episodes = [one_token_per_turn(0, float(e == 0)) for e in range(4)]
    assert advantages(estimator, episodes).tolist() == pytest.approx(expected)


def test_turn_returns_credit_this_and_earlier_turns() -> None:
    episodes = [one_token_per_turn(0, 0.0, 1.0, 0.0), one_token_per_turn(0, 0.0, 0.0, 0.0)]
    found = advantages(GroupRelative(scale="none", returns="turn"), episodes)
    assert found.tolist() == [0.5, 0.5, 0.0, -0.5, -0.5, 0.0]
    found = advantages(GroupRelative(scale="none", returns="turn", gamma=0.5), episodes)
    assert found.tolist() == [0.25, 0.5, 0.0, -0.25, -0.5, 0.0]


def test_step_groups_compare_equal_states_of_the_same_task() -> None:
    same_task = [one_token_per_turn(0, 0.0, 1.0, states=(7, 8)), one_token_per_turn(0, 0.0, 0.0, states=(9, 8))]
    other_task = [one_token_per_turn(1, 0.5, states=(8,)), one_token_per_turn(1, 0.5, states=(8,))]
    found = advantages(StepGroups(scale="none", gamma=1.0), same_task + other_task)
    assert found.tolist() == [0.5, 1.0, -0.5, -1.0, 0.0, 0.0]


def test_step_groups_compare_repeat_visits_of_an_episode() -> None:
    episodes = [one_token_per_turn(0, 0.0, 0.0, 1.0, states=(5, 6, 5)), one_token_per_turn(0, 1.0, states=(4,))]
    found = advantages(StepGroups(scale="none", gamma=0.5), episodes)
    assert found.tolist() == [-0.375, 0.0, 0.375, 0.0]


@few_examples
@given(episode_sketches(groups=2), estimators, st.sampled_from([-3.0, 0.5, 100.0]))
def test_final_bonus_for_the_whole_group_changes_nothing(
    episodes: list[EpisodeSketch], estimator: GroupRelative, bonus: float
) -> None:
    # With a discount, the bonus is equal only for turns at the same distance from the end.
    if estimator.gamma < 1:
        for play in episodes:
            play.steps = play.steps[:1]
    before = advantages(estimator, episodes)
    for play in episodes:
        play.steps[-1].reward += bonus * (play.group + 1)
    torch.testing.assert_close(advantages(estimator, episodes), before, atol=1e-5, rtol=0)


@few_examples
@given(episode_sketches(), estimators, st.integers(0, 99))
def test_episode_order_does_not_change_advantages(
    episodes: list[EpisodeSketch], estimator: Estimator, seed: int
) -> None:
    def by_episode(batch: list[EpisodeSketch]) -> dict[int, list[float]]:
        cuts = accumulate((len(play.completion_tokens) for play in batch), initial=0)
        found = advantages(estimator, batch, penalty_of(batch)).tolist()
        return {id(play): found[a:b] for play, (a, b) in zip(batch, pairwise(cuts), strict=True)}

    before = by_episode(episodes)
    after = by_episode(Random(seed).sample(episodes, len(episodes)))
    for play, found in before.items():
        assert after[play] == pytest.approx(found, abs=1e-6)


@few_examples
@given(episode_sketches(min_size=1), estimators)
def test_other_groups_and_values_do_not_change_advantages(episodes: list[EpisodeSketch], estimator: Estimator) -> None:
    estimator = replace(estimator, whiten=False)
    together = advantages(estimator, episodes)
    first_group = [play for play in episodes if play.group == episodes[0].group]
    for token in (token for play in first_group for token in play.completion_tokens):
        token.value = 1e6
    in_first_group = torch.tensor(
        [play.group == episodes[0].group for play in episodes for _ in play.completion_tokens], dtype=torch.bool
    )
    torch.testing.assert_close(advantages(estimator, first_group), together[in_first_group], atol=1e-6, rtol=0)


@few_examples
@given(st.lists(st.lists(st.floats(0, 1), max_size=4), min_size=1, max_size=6), st.floats(0, 1), estimators)
def test_equal_scores_are_flat_for_any_split_into_rewards(
    paths: list[list[float]], score: float, estimator: Estimator
) -> None:
    """Environments reward score differences, whose float32 sums equal the score only up to rounding."""
    episodes = [
        one_token_per_turn(
            0, *(b - a for a, b in pairwise([0.0, *path, score])), states=(e, e + 9, e + 18, e + 27, e + 36)
        )
        for e, path in enumerate(paths)
    ]
    if isinstance(estimator, GroupRelative):
        estimator = GroupRelative(baseline=estimator.baseline, scale=estimator.scale)
    assert not advantages(estimator, episodes).any()
    assert Algorithm(advantages=estimator).is_flat(token_batch_of(episodes))
    assert Algorithm(advantages=GAE()).is_flat(token_batch_of(episodes))


@pytest.mark.parametrize(
    ("returns", "flat"),
    [([], True), ([0.1 + 0.2, 0.3], True), ([1e4, 1e4 + 1e-3], True), ([0.0, 1e-3], False), ([0.0, 0.0, 1.0], False)],
)
def test_returns_that_differ_by_rounding_are_flat(returns: list[float], flat: bool) -> None:
    group = token_batch_of([one_token_per_turn(0, episode_return) for episode_return in returns])
    assert same(returns) == Algorithm(advantages=GAE()).is_flat(group) == flat
    assert GRPO.is_flat(group) == GiGPO.is_flat(group) == flat


@few_examples
@given(episode_sketches(groups=1, masked=True), estimators)
def test_group_without_advantages_in_the_loss_is_flat(episodes: list[EpisodeSketch], estimator: Estimator) -> None:
    found = advantages(replace(estimator, whiten=False), episodes).tolist()
    in_loss = [play.in_loss for play in episodes for _ in play.completion_tokens]
    flat = not any(advantage for advantage, trains in zip(found, in_loss, strict=True) if trains)
    assert Algorithm(advantages=replace(estimator, whiten=False)).is_flat(token_batch_of(episodes)) == flat


def test_flatness_depends_on_the_compared_returns() -> None:
    slow_and_fast = token_batch_of([one_token_per_turn(0, 0.0, 0.0, 1.0), one_token_per_turn(0, 1.0)])
    relative: Any = GRPO.advantages
    assert GRPO.is_flat(slow_and_fast)
    assert RLOO.is_flat(slow_and_fast)  # ignores its KL penalty in the reward
    for discounted in (replace(relative, gamma=0.9), StepGroups(gamma=0.9)):
        assert not Algorithm(advantages=discounted).is_flat(slow_and_fast)
    assert Algorithm(advantages=TokenReturns(gamma=0.9)).is_flat(slow_and_fast)
    other_turns = token_batch_of([one_token_per_turn(0, 1.0, 0.0), one_token_per_turn(0, 0.0, 1.0)])
    assert GRPO.is_flat(other_turns)
    assert not Algorithm(advantages=replace(relative, returns="turn")).is_flat(other_turns)


def test_group_filter_classifies_groups() -> None:
    group_filter = GroupFilter(single="resample", zero_variance="resample")
    assert (
        group_filter.classify(0, zero_variance=True)
        == group_filter.classify(1, zero_variance=True)
        == ("single", "resample")
    )
    assert group_filter.classify(2, zero_variance=True) == ("zero_variance", "resample")
    assert group_filter.classify(2, zero_variance=False) == ("ok", "keep")


@pytest.mark.parametrize("treatment", ["drop", "resample"])
def test_failures_take_precedence_in_classification(treatment: Literal["drop", "resample"]) -> None:
    for left, flat in ((0, True), (2, True), (2, False)):
        assert GroupFilter(has_failures=treatment).classify(left, zero_variance=flat, failed=1) == (
            "has_failures",
            treatment,
        )


def test_kept_group_with_failures_is_classified_by_the_rest() -> None:
    group_filter = GroupFilter(has_failures="keep", single="drop", zero_variance="resample")
    assert group_filter.classify(2, zero_variance=False, failed=2) == ("has_failures", "keep")
    assert group_filter.classify(1, zero_variance=True, failed=2) == ("single", "drop")
    assert group_filter.classify(2, zero_variance=True, failed=2) == ("zero_variance", "resample")


def test_step_groups_use_observations_or_states() -> None:
    """Two episodes have equal observations in different states."""
    episodes = [
        EpisodeSketch(0, [Step(reward, [Token()], state=number, observation=5)])
        for number, reward in enumerate((1.0, 0.0))
    ]
    estimator = StepGroups(scale="none")
    assert advantages(estimator, episodes).tolist() == [1.0, -1.0]
    assert advantages(replace(estimator, anchor="state"), episodes).tolist() == [0.5, -0.5]
    without_observations = replace(token_batch_of(episodes), observation_EK=None)
    with pytest.raises(ValueError, match="no observations to find step groups by; set anchor to 'state'"):
        estimator.estimate(without_observations, None, single_process_total)


@few_examples
@given(episode_sketches(groups=3), st.integers(1, 3))
def test_metrics_of_step_group_sizes(episodes: list[EpisodeSketch], processes: int) -> None:
    anchors = Counter((play.group, step.observation) for play in episodes for step in play.steps if step.tokens)
    shares = [[play for play in episodes if play.group % processes == rank] for rank in range(processes)]
    results = run_processes(
        lambda rank, total: GiGPO.advantages.estimate(token_batch_of(shares[rank]), None, total), processes
    )
    grouped = sum(size for size in anchors.values() if size > 1)
    expected = {
        "step_group_size": statistics.fmean(anchors.values()) if anchors else 0.0,
        "step_grouped": grouped / max(1, anchors.total()),
    }
    assert all(result.metrics == pytest.approx(expected) for result in results)
    assert GiGPO.advantages.estimate(token_batch_of(episodes), None, single_process_total).metrics == pytest.approx(
        expected
    )


def test_resampling_requires_at_least_one_round() -> None:
    with pytest.raises(ValueError, match=r"rounds must be at least 1, not 0"):
        GroupFilter(zero_variance="resample", rounds=0)
