"""Tests of the difficulty curve: which tasks it plays, and what it warns about."""

from __future__ import annotations

from itertools import count

import pytest
from agentgym_envs import Task, Tasks, TaskSet
from agentgym_envs.checks.difficulty import difficulty_curve
from door_world import ENV_ID, Door, registered_env, tasks_of

pytestmark = pytest.mark.quick


class Listing(Door):
    def _available_actions(self) -> list[str]:
        return ["knock", "open"]


class Polite(Listing):
    """Only the oracle's actions are available, so random play succeeds."""

    def _available_actions(self) -> list[str]:
        return [self.oracle()]


class Impatient(Listing):
    def oracle(self) -> str:
        return "open" if self.goal > 3 else super().oracle()


def set_of(difficulties: list[int]) -> type[Door]:
    """Return a Door with a training task for each difficulty, all with 0 knocks."""

    def task(task_id: str) -> Task:
        difficulty = int(task_id.split("-")[1])
        return Task(task_id, ENV_ID, "train", "all", difficulty, {"knocks": 0})

    class Chosen(Listing):
        @property
        def tasks(self) -> TaskSet:
            ids = [f"{number}-{difficulty}" for number, difficulty in enumerate(difficulties)]
            return TaskSet(train=Tasks(ids, task), test=tasks_of("test"), dev=tasks_of("train")[:0])

    return Chosen


def test_success_falls_with_difficulty() -> None:
    with registered_env(Listing) as env:
        curve = difficulty_curve(env, samples=20)
    assert [(level.lowest, level.highest, level.tasks) for level in curve.levels] == [
        (0, 1, 2),
        (2, 2, 1),
        (3, 3, 1),
        (4, 4, 1),
        (5, 5, 1),
    ]
    assert [len(level.random) for level in curve.levels] == [40, 20, 20, 20, 20]
    successes = [level.random_success or 0 for level in curve.levels]
    assert successes[0] > 0.2 > successes[-1]
    assert [level.mean_oracle_actions for level in curve.levels] == [1.5, 3, 4, 5, 6]
    assert curve.total.oracle_success == 1
    assert curve.complete
    assert list(curve.warnings) == []


def test_it_is_the_same_each_time() -> None:
    with registered_env(Listing) as env:
        assert difficulty_curve(env) == difficulty_curve(env)


def test_random_success_above_the_threshold_is_a_warning() -> None:
    with registered_env(Polite) as env:
        (warning,) = difficulty_curve(env, tasks=2, samples=1).warnings
    assert "Random actions succeed in 100% of the episodes (more than 50%)" in warning


def test_failures_of_the_oracle_are_a_warning() -> None:
    with registered_env(Impatient) as env:
        curve = difficulty_curve(env, samples=0)
    assert curve.failed == ["door/train/4", "door/train/5"]
    (warning,) = curve.warnings
    assert "The oracle failed 2 of 6 tasks within the limit of turns: door/train/4, door/train/5." in warning
    assert [level.random_success for level in curve.levels] == [None] * 5


def test_a_limit_of_turns_that_is_too_low_for_the_oracle_is_a_warning() -> None:
    with registered_env(Door, max_episode_steps=3) as env:
        curve = difficulty_curve(env)
    assert curve.failed == ["door/train/3", "door/train/4", "door/train/5"]
    assert curve.total.random == []  # Door doesn't list its actions


def test_an_environment_without_limit_and_without_expert_is_played_at_random() -> None:
    class Knocking(Listing):
        has_oracle = False

        def _available_actions(self) -> list[str]:
            return ["knock"]

    with registered_env(Knocking) as env:
        curve = difficulty_curve(env, tasks=1, samples=2)
    assert (curve.total.random, curve.total.oracle) == ([False, False], [])


def test_tasks_are_spread_over_the_difficulties() -> None:
    with registered_env(set_of([1] * 90 + [2] * 9 + [3])) as env:
        levels = difficulty_curve(env, tasks=7, samples=0).levels
        assert [(level.lowest, level.tasks) for level in levels] == [(1, 3), (2, 3), (3, 1)]
        assert difficulty_curve(env, tasks=200, samples=0).total.tasks == 100
    with registered_env(set_of(list(range(1000)))) as env:
        levels = difficulty_curve(env, tasks=5, samples=0).levels
        assert [level.lowest for level in levels] == pytest.approx([0, 250, 500, 750, 1000], abs=3)


def test_no_episode_is_begun_when_time_is_up() -> None:
    with registered_env(Listing) as env:
        curve = difficulty_curve(env, tasks=3, seconds=3.5, clock=count().__next__)
    assert not curve.complete
    assert (len(curve.total.oracle), len(curve.total.random)) == (3, 0)


def test_without_training_tasks_there_is_no_curve() -> None:
    with registered_env(set_of([])) as env, pytest.raises(ValueError, match="no training tasks"):
        difficulty_curve(env)
