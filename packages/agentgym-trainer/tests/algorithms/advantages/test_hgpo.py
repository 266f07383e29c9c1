"""Tests of nested step groups (HGPO) against a slow reference implementation and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agentgym_trainer.algorithms import HGPO, NestedStepGroups, StepGroups
from agentgym_trainer.algorithms.advantages.group_relative import Scale
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
    visits,
)
from token_batches import (
    EpisodeSketch,
    episode_sketches,
    penalty_of,
    run_processes,
    single_process_total,
    token_batch_of,
)

pytestmark = pytest.mark.quick

estimators = st.builds(
    NestedStepGroups,
    history=st.integers(0, 3),
    weight_power=st.sampled_from([0.0, 1.0, 2.0]),
    gamma=st.sampled_from([0.5, 1.0]),
    anchor=anchors,
    scale=scales,
    baseline=baselines,
    whiten=st.booleans(),
)


def slow_nested_step_groups(episodes: list[EpisodeSketch], estimator: NestedStepGroups) -> list[float]:
    turns = [(e, k) for e, play in enumerate(episodes) for k, step in enumerate(play.steps) if step.tokens]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {turn: [] for turn in turns}
    for level in range(estimator.history + 1):
        members = [(e, k) for e, k in turns if k >= level]
        contexts = [
            (
                episodes[e].group,
                *(
                    step.state if estimator.anchor == "state" else step.observation
                    for step in episodes[e].steps[k - level : k + 1]
                ),
            )
            for e, k in members
        ]
        values = [slow_to_go(episodes[e], estimator.gamma)[k] for e, k in members]
        lengths = [len(episodes[e].steps[k].tokens) for e, k in members]
        for turn, advantage in zip(members, slow_relative(values, contexts, lengths, estimator), strict=True):
            if abs(advantage) > 1e-9:
                found[turn].append(((level + 1) ** estimator.weight_power, advantage))
    mean = {
        turn: sum(w * a for w, a in levels) / sum(w for w, _ in levels) if levels else 0.0
        for turn, levels in found.items()
    }
    return expand_to_tokens(episodes, estimator, lambda e, k: mean[e, k])


@settings(max_examples=60)
@given(episode_sketches(groups=2), estimators)
def test_advantages_match_the_slow_reference(episodes: list[EpisodeSketch], estimator: NestedStepGroups) -> None:
    found = advantages(estimator, episodes, penalty_of(episodes))
    assert found.tolist() == pytest.approx(slow_nested_step_groups(episodes, estimator), abs=1e-5)


def test_longer_equal_histories_weigh_more() -> None:
    """The last turns reply to observation 9: two of them after 1, of which one succeeds, and two after 2."""
    episodes = [visits(1.0, 1, 9), visits(0.0, 1, 9), visits(0.0, 2, 9), visits(0.0, 2, 9)]
    estimator = NestedStepGroups(history=1, scale="none", gamma=1.0)
    last = advantages(estimator, episodes).tolist()[1::2]
    # Level 0: 1 - 1/4 and -1/4. Level 1: 1/2 and -1/2 after 1; after 2 all are equal, so level 0 stands alone.
    assert last == pytest.approx([(0.75 + 2 * 0.5) / 3, (-0.25 - 2 * 0.5) / 3, -0.25, -0.25])
    assert advantages(NestedStepGroups(history=1, weight_power=0.0, scale="none", gamma=1.0), episodes).tolist()[
        1::2
    ] == pytest.approx([0.625, -0.375, -0.25, -0.25])


@pytest.mark.parametrize("scale", ["std", "none"])
def test_levels_at_which_a_return_is_the_mean_up_to_rounding_do_not_count(scale: Scale) -> None:
    """After 1, the return 0.2 is the mean of 0.1, 0.2 and 0.3, which aren't exact in binary."""
    episodes = [visits(0.1, 1, 9), visits(0.2, 1, 9), visits(0.3, 1, 9), visits(0.0, 2, 9)]
    estimator = NestedStepGroups(history=1, scale=scale, gamma=1.0)
    first_level = replace(estimator, history=0)
    assert advantages(estimator, episodes)[3] == pytest.approx(advantages(first_level, episodes)[3])
    assert advantages(estimator, episodes).tolist() == pytest.approx(slow_nested_step_groups(episodes, estimator))


def test_turns_that_are_alone_have_no_advantage() -> None:
    episodes = [visits(1.0, 1, 2), visits(0.0, 1, 3)]
    assert advantages(NestedStepGroups(scale="none", gamma=1.0), episodes).tolist() == [0.5, 0.0, -0.5, 0.0]


def test_without_history_only_the_step_advantage_of_gigpo_is_left() -> None:
    episodes = [visits(1.0, 1, 9, 4), visits(0.0, 1, 9), visits(0.5, 2, 9, 9)]
    steps = StepGroups(step_weight=1.0).estimate(token_batch_of(episodes), None, single_process_total).advantages_N
    episode = StepGroups(step_weight=0.0).estimate(token_batch_of(episodes), None, single_process_total).advantages_N
    found = advantages(NestedStepGroups(history=0), episodes)
    assert found.tolist() == pytest.approx((steps - episode).tolist(), abs=1e-6)


@settings(max_examples=20)
@given(episode_sketches(groups=4))
def test_processes_together_whiten_like_one(episodes: list[EpisodeSketch]) -> None:
    estimator = NestedStepGroups(whiten=True)
    shares = [[play for play in episodes if play.group % 2 == rank] for rank in range(2)]
    parts = run_processes(lambda rank, total: estimator.estimate(token_batch_of(shares[rank]), None, total))
    whole = estimator.estimate(token_batch_of(shares[0] + shares[1]), None, single_process_total)
    together = [value for part in parts for value in part.advantages_N.tolist()]
    assert together == pytest.approx(whole.advantages_N.tolist(), abs=1e-5)
    assert all(part.metrics == pytest.approx(whole.metrics) for part in parts)


def test_a_negative_history_is_refused() -> None:
    with pytest.raises(ValueError, match=r"advantages.history is -1; it must be at least 0"):
        NestedStepGroups(history=-1)
    assert HGPO.advantages == NestedStepGroups()
