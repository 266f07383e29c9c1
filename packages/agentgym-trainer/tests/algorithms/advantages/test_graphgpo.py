"""Tests of distances to the goal (GraphGPO) against a slow reference implementation and by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from agentgym_trainer.algorithms import GoalDistance, GraphGPO, GroupRelative
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook_advantages import (
    advantages,
    anchors,
    baselines,
    expand_to_tokens,
    scales,
    slow_relative,
    slow_turns,
    visits,
)
from token_batches import (
    EpisodeSketch,
    episode_sketches,
    penalty_of,
    single_process_total,
    token_batch_of,
)

pytestmark = pytest.mark.quick

estimators = st.builds(
    GoalDistance,
    step_weight=st.sampled_from([0.0, 0.5, 1.0]),
    omega=st.sampled_from([0.1, 0.5]),
    goal=st.sampled_from([0.0, 1.0]),
    anchor=anchors,
    scale=scales,
    baseline=baselines,
    whiten=st.booleans(),
)


def slow_goal_distance(episodes: list[EpisodeSketch], estimator: GoalDistance) -> list[float]:
    def node(e: int, k: int) -> tuple[int, int]:
        step = episodes[e].steps[k]
        return episodes[e].group, step.state if estimator.anchor == "state" else step.observation

    # Floyd's relaxation, as often as there are turns.
    edges: list[tuple[tuple[int, int], tuple[int, int] | float]] = []
    for e, play in enumerate(episodes):
        reached = sum(step.reward for step in play.steps) >= estimator.goal - 1e-6
        for k in range(len(play.steps)):
            last = k + 1 == len(play.steps)
            edges.append((node(e, k), (0.0 if reached else math.inf) if last else node(e, k + 1)))
    distance = {source: math.inf for source, _ in edges}

    def after(target: tuple[int, int] | float) -> float:
        return distance[target] if isinstance(target, tuple) else target

    for _ in edges:
        for source, target in edges:
            distance[source] = min(distance[source], after(target) + 1)
    farthest = {
        group: max((d for (g, _), d in distance.items() if g == group and d < math.inf), default=0.0)
        for group, _ in distance
    }
    led_to = [min(after(target), farthest[source[0]] + 1) for source, target in edges]
    turns = [(e, k) for e, play in enumerate(episodes) for k in range(len(play.steps))]
    compared = [i for i, (e, k) in enumerate(turns) if episodes[e].steps[k].tokens]
    best = {
        source: min(led_to[i] for i in compared if edges[i][0] == source) for source, _ in (edges[i] for i in compared)
    }
    steps = dict(
        zip(
            [turns[i] for i in compared],
            slow_relative(
                [estimator.omega ** (led_to[i] - best[edges[i][0]]) for i in compared],
                [edges[i][0] for i in compared],
                [len(episodes[turns[i][0]].steps[turns[i][1]].tokens) for i in compared],
                estimator,
            ),
            strict=True,
        )
    )
    returns, groups = [sum(slow_turns(play)) for play in episodes], [play.group for play in episodes]
    whole = slow_relative(returns, groups, [len(play.completion_tokens) for play in episodes], estimator)
    return expand_to_tokens(episodes, estimator, lambda e, k: whole[e] + estimator.step_weight * steps[e, k])


@settings(max_examples=80)
@given(episode_sketches(groups=2), estimators)
def test_advantages_match_the_slow_reference(episodes: list[EpisodeSketch], estimator: GoalDistance) -> None:
    found = advantages(estimator, episodes, penalty_of(episodes))
    assert found.tolist() == pytest.approx(slow_goal_distance(episodes, estimator), abs=1e-4)


def graph_only(estimator: GoalDistance, episodes: list[EpisodeSketch]) -> list[float]:
    """Return the advantages less those of GRPO."""
    episode = GroupRelative(baseline=estimator.baseline, scale=estimator.scale)
    grpo = episode.estimate(token_batch_of(episodes), None, single_process_total).advantages_N
    return (advantages(estimator, episodes) - grpo).tolist()


def test_a_failed_episode_is_credited_for_the_turn_that_led_closer() -> None:
    """From 0, the failed episode goes to 1, from which the other one reaches the goal by a detour through 2."""
    reached, failed = visits(1.0, 0, 2, 1), visits(0.0, 0, 1, 5)
    found = graph_only(GoalDistance(scale="none", omega=0.5), [reached, failed])
    # At 0: to 2 (distance 2) or to 1 (distance 1). At 1: the goal (0), or to 5, which is a turn farther than 0 (2 + 1).
    assert found == pytest.approx([-0.25, 0.0, (1 - 0.5**3) / 2, 0.25, -(1 - 0.5**3) / 2, 0.0])


def test_loops_are_penalized_where_all_episodes_reached_the_goal() -> None:
    direct, loop = visits(1.0, 0, 1), visits(1.0, 0, 0, 1)
    found = advantages(GoalDistance(scale="none", omega=0.5), [direct, loop]).tolist()
    assert found == pytest.approx([1 / 6, 0.0, -1 / 3, 1 / 6, 0.0])


def test_groups_without_a_goal_have_the_advantages_of_grpo() -> None:
    episodes = [visits(0.5, 0, 1), visits(0.0, 0, 2), visits(0.9, 0, 1, 1)]
    assert graph_only(GoalDistance(), episodes) == [0.0] * 7
    assert graph_only(GoalDistance(goal=0.9), episodes) != [0.0] * 7


def test_the_goal_is_reached_by_score_however_rewards_are_shaped() -> None:
    direct, detour = visits(0.98, 0, 1), visits(0.97, 0, 2, 1)  # with a penalty of 0.01 per turn
    batch = token_batch_of([direct, detour])
    scored = replace(batch, score_E=torch.ones(2))
    plain, found = (
        GoalDistance(scale="none").estimate(each, None, single_process_total).advantages_N for each in (batch, scored)
    )
    grpo = GroupRelative(scale="none").estimate(batch, None, single_process_total).advantages_N
    assert plain.tolist() == grpo.tolist()
    assert (found - grpo)[0] > 0 > (found - grpo)[2]  # at the start, to 1 or to 2


def test_distances_are_compared_far_from_the_goal() -> None:
    """With the paper's omega, the worths of turns at distance 12 are 1e-12: their differences still count."""
    chain = list(range(12, 0, -1))
    found = graph_only(GoalDistance(), [visits(1.0, *chain), visits(0.0, 12, 12)])
    # One turn closer to the goal, as far as before, and nowhere: 1, 0.1 and 0.01 after the best is set to 1.
    assert (found[0], found[12], found[13]) == pytest.approx((1.151, -0.493, -0.658), abs=1e-3)


def test_graphs_of_different_tasks_are_separate() -> None:
    """Task 1 visits the same nodes, and never reaches its goal."""
    first, other = [visits(1.0, 0, 1), visits(0.0, 0, 2)], [visits(0.0, 0, 1, group=1), visits(0.0, 0, 2, group=1)]
    found = advantages(GoalDistance(), [*first, *other]).tolist()
    assert found[:4] == pytest.approx(advantages(GoalDistance(), first).tolist())
    assert found[4:] == [0.0] * 4


@pytest.mark.parametrize("omega", [0.0, 1.0, 1.5])
def test_omega_is_between_zero_and_one(omega: float) -> None:
    with pytest.raises(ValueError, match=rf"advantages.omega is {omega}; it must be between 0 and 1"):
        GoalDistance(omega=omega)
    assert GraphGPO.advantages == GoalDistance()
