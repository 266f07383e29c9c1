"""Sampling ahead with a player that takes as long as it is told to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from agentgym_trainer.algorithms import GRPO, GroupFilter
from agentgym_trainer.config import AsyncRollout, WorldConfig
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.rollout.async_collector import AsyncCollector
from agentgym_trainer.rollout.async_metrics import staleness_metrics
from agentgym_trainer.rollout.environments import episode_specs
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.runner import RolloutRequest
from async_collectors import Table
from coin_configs import SAMPLES, TASKS, coins, others
from coin_world import ENV, OTHER
from patience import eventually

Open = Callable[..., Table]


@pytest.fixture
def table() -> Generator[Open]:
    """Sets a table; what it opens is closed after the test."""
    with ExitStack() as stack:
        yield lambda **settings: Table(coins(**settings), stack)


def _tasks(groups: list[EpisodeGroup]) -> list[str]:
    return [group.outcome.task for group in groups]


def _ids(*numbers: int) -> list[str]:
    return [f"coin/train/{n}" for n in numbers]


def test_without_overlap_a_step_is_dealt_when_it_is_asked_for_and_awaited_whole(table: Open) -> None:
    playing = table()
    for step in range(3):
        groups = playing.collect(step)
        assert _tasks(groups) == _ids(*range(step * TASKS, step * TASKS + TASKS))
        assert [[e.sample for e in group.episodes] for group in groups] == [list(range(SAMPLES))] * TASKS
        assert all(group.outcome.lag(step) == 0 for group in groups)
        assert len(playing.teller.begun) == (step + 1) * TASKS * SAMPLES == playing.teller.left


@pytest.mark.parametrize("versions", [1, 2])
def test_no_more_groups_are_on_their_way_than_those_of_so_many_steps(table: Open, versions: int) -> None:
    playing = table(async_rollout=AsyncRollout(versions))
    for step in range(5):
        playing.collect(step)
        dealt = min(step + 1 + versions, 5) * TASKS
        assert len(playing.teller.begun) == dealt * SAMPLES
    # All that was dealt has trained: nothing is left over when the run ends.
    assert playing.teller.left == 5 * TASKS * SAMPLES


def test_what_was_dealt_is_played_while_nobody_collects(table: Open) -> None:
    playing = table(async_rollout=AsyncRollout(1))
    playing.teller.held |= set(_ids(3, 4, 5))
    playing.collect(0)
    assert playing.teller.left == TASKS * SAMPLES
    playing.teller.held.clear()
    eventually(lambda: playing.teller.left == 2 * TASKS * SAMPLES)


def test_groups_train_in_the_order_of_dealing_and_a_slow_one_is_waited_for(table: Open) -> None:
    playing = table(async_rollout=AsyncRollout(1))
    playing.teller.held |= set(_ids(1))
    collected: list[list[EpisodeGroup]] = []
    learner = threading.Thread(target=lambda: collected.append(playing.collect(0)))
    learner.start()
    # All else that may be on its way is played meanwhile.
    eventually(lambda: playing.teller.left == (2 * TASKS - 1) * SAMPLES)
    assert not collected
    playing.teller.held.clear()
    learner.join()
    assert _tasks(collected[0]) == _ids(0, 1, 2)
    groups = playing.collect(1)
    assert _tasks(groups) == _ids(3, 4, 5)
    assert [group.outcome.lag(1) for group in groups] == [1, 1, 1]


@pytest.mark.parametrize("beyond", ["keep", "drop"])
def test_where_it_is_asked_for_what_is_complete_trains_and_a_slow_group_holds_up_nobody(
    table: Open, beyond: Any
) -> None:
    playing = table(async_rollout=AsyncRollout(1, beyond))
    playing.teller.held |= set(_ids(1))
    assert _tasks(playing.collect(0)) == _ids(0, 2, 3)
    playing.teller.held.clear()
    playing.ahead.settle()
    groups = playing.collect(1)
    assert _tasks(groups) == _ids(1, 4, 5)
    assert [group.outcome.lag(1) for group in groups] == [1, 1, 1]
    outcomes = [group.outcome for group in groups]
    assert staleness_metrics(outcomes, 1, 1) == {
        "mean": 1.0,
        "max": 1,
        "stale": 0,
        "token_mean": 1.0,
        "tokens": {"1": 3 * 3 * SAMPLES},
    }


def _with_one_too_old(playing: Table) -> list[EpisodeGroup]:
    """The groups of the third step, when the first task of the first one was held up until then."""
    playing.teller.held |= set(_ids(0))
    playing.collect(0)
    playing.collect(1)
    playing.teller.held.clear()
    playing.ahead.settle()
    return playing.collect(2)


def test_a_group_that_is_too_old_is_left_out_counted_and_stood_in_for(table: Open) -> None:
    playing = table(async_rollout=AsyncRollout(1, on_stale="drop"))
    groups = _with_one_too_old(playing)
    assert groups[0].outcome.task == _ids(0)[0]
    assert [(group.outcome.lag(2) > 1, group.treatment) for group in groups] == [
        (True, "drop"),
        *[(False, "keep")] * TASKS,
    ]
    assert staleness_metrics([group.outcome for group in groups], 2, 1)["stale"] == 1
    assert len(playing.teller.begun) == (4 * TASKS + 1) * SAMPLES


def test_a_group_that_is_too_old_trains_where_that_is_asked_for(table: Open) -> None:
    groups = _with_one_too_old(table(async_rollout=AsyncRollout(1, on_stale="keep")))
    assert groups[0].outcome.task == _ids(0)[0]
    assert [group.treatment for group in groups] == ["keep"] * TASKS
    assert staleness_metrics([group.outcome for group in groups], 2, 1) == {
        "mean": pytest.approx(4 / 3),
        "max": 2,
        "stale": 1,
        # Only the first reply of the held episodes is that old; they went on with newer weights.
        "token_mean": pytest.approx(10 / 9),
        "tokens": {"1": 8 * SAMPLES, "2": SAMPLES},
    }


@pytest.mark.parametrize("rounds", [1, 2])
def test_instead_of_what_is_to_be_resampled_the_next_groups_are_taken(table: Open, rounds: int) -> None:
    rules = GroupFilter(zero_variance="resample", rounds=rounds)  # who always says heads makes flat groups
    playing = table(async_rollout=AsyncRollout(1), algorithm=replace(GRPO, groups=rules))
    groups = playing.collect(0)
    assert [group.treatment for group in groups] == ["resample"] * TASKS * (1 + rounds)
    assert len(set(_tasks(groups))) == len(groups)


def test_a_group_is_played_to_the_horizon_of_when_it_was_dealt(table: Open) -> None:
    playing = table(async_rollout=AsyncRollout(1))
    turns = [[group.outcome.episodes[0].turns for group in playing.collect(step, 1 + step)] for step in range(3)]
    assert turns == [[1] * 3, [1] * 3, [2] * 3]


def test_the_same_task_dealt_to_two_steps_is_two_groups(table: Open) -> None:
    world = WorldConfig(ENV, (f"train={TASKS}",), agent="bare", instructions=False, backend="inline")
    playing = table(world=world, async_rollout=AsyncRollout(1))
    playing.teller.held |= set(_ids(0, 1))
    threading.Timer(0.2, playing.teller.held.clear).start()
    groups = playing.collect(0)
    assert len(groups) == len({group.number for group in groups}) == TASKS
    assert all(len(group.episodes) == SAMPLES for group in groups)


def test_a_task_that_is_drawn_twice_in_a_step_stands_for_two(table: Open) -> None:
    playing = table(world=WorldConfig(ENV, ("train=1",), agent="bare", instructions=False, backend="inline"))
    (group,) = playing.collect(0)
    assert [e.sample for e in group.episodes] == list(range(TASKS * SAMPLES))
    assert len(playing.collect(1)) == 1


def test_all_worlds_of_a_mixture_are_played(table: Open) -> None:
    other = WorldConfig(OTHER, agent="bare", instructions=False, backend="inline")
    playing = table(extra_worlds=(other,), tasks_per_step=4, async_rollout=AsyncRollout(1))
    groups = [group for step in range(5) for group in playing.collect(step)]
    assert Counter(group.outcome.world for group in groups) == {"coin/Coin-v0": 10, "coin/OneSided-v0": 10}


def test_a_group_whose_world_is_broken_is_a_group_of_failed_episodes(table: Open) -> None:
    gone = WorldConfig(ENV, ("gone=(1,)",), agent="bare", instructions=False, backend="inline")
    groups = table(world=gone, async_rollout=AsyncRollout(1)).collect(0)
    assert [[e.stop for e in group.outcome.episodes] for group in groups] == [
        ["terminated"] * SAMPLES,
        ["failed"] * SAMPLES,
        ["terminated"] * SAMPLES,
    ]
    assert [group.outcome.lag(4) for group in groups] == [4, 0, 4]


def test_few_slots_are_enough(table: Open) -> None:
    playing = table(slots=2, async_rollout=AsyncRollout(2))
    assert len(playing.worlds[0].pool) == 2
    tasks = [task for step in range(5) for task in _tasks(playing.collect(step))]
    assert len(tasks) == 5 * TASKS
    assert playing.teller.left == 5 * TASKS * SAMPLES


def test_a_process_plays_its_share_and_numbers_of_two_never_meet(table: Open) -> None:
    numbers: list[set[int]] = []
    for index, share in ((0, 2), (1, 1)):
        playing = table()
        playing.ranks.index, playing.ranks.count = index, 2
        ahead = AsyncCollector(
            playing.rollouts, playing.teller, playing.config, playing.worlds, playing.draw, ranks=playing.ranks
        )
        groups = ahead.collect(TrainingState(Stage(3)))
        assert len(groups) == share
        numbers.append({group.number for group in groups})
    assert not numbers[0] & numbers[1]


def test_a_process_for_which_no_task_is_left_plays_nothing(table: Open) -> None:
    playing = table(async_rollout=AsyncRollout(1))
    ahead = AsyncCollector(
        playing.rollouts, playing.teller, playing.config, playing.worlds, lambda *_: [], ranks=playing.ranks
    )
    assert ahead.collect(TrainingState(Stage(3))) == []


def test_a_run_that_goes_on_deals_from_the_step_it_is_at(table: Open) -> None:
    assert _tasks(table(async_rollout=AsyncRollout(1)).collect(3)) == _ids(9, 10, 11)


# Pauses and ends.


def test_between_settling_and_the_next_collect_all_slots_are_free(table: Open) -> None:
    playing = table(slots=2, async_rollout=AsyncRollout(2))
    playing.collect(0)
    playing.ahead.settle()
    begun = len(playing.teller.begun)
    assert begun == playing.teller.left
    world = playing.worlds[0]
    held_out = episode_specs(list(world.tasks.test), samples=1, seed=0)
    assert len(list(playing.rollouts.play([RolloutRequest(world, held_out)], playing.teller))) == 4
    assert len(playing.collect(1)) == TASKS
    assert len(playing.teller.begun) > begun + 4


def test_what_ends_a_player_ends_collecting_also_when_nobody_was_waiting(table: Open) -> None:
    playing = table(async_rollout=AsyncRollout(1))
    playing.teller.held |= set(_ids(3, 4, 5))
    playing.collect(0)
    playing.teller.error = RuntimeError("the engine is gone")
    playing.teller.held.clear()
    with pytest.raises(RuntimeError, match="the engine is gone"):
        playing.collect(1)
    playing.ahead.close()
    assert playing.teller.left == len(playing.teller.begun)


def test_closing_cancels_what_is_in_play_and_frees_its_worlds(table: Open) -> None:
    playing = table(async_rollout=AsyncRollout(1))
    playing.teller.held |= set(_ids(3, 4, 5))
    playing.collect(0)
    playing.ahead.close()
    playing.ahead.close()
    assert playing.teller.left == len(playing.teller.begun) == 2 * TASKS * SAMPLES
    playing.teller.held.clear()
    world = playing.worlds[0]
    played = list(
        playing.rollouts.play(
            [RolloutRequest(world, episode_specs(list(world.tasks.test), samples=3, seed=0))], playing.teller
        )
    )
    assert [e.stop for e in played] == ["terminated"] * 12
    assert others(playing.rollouts) == 0
