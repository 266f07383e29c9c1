"""Tests of the asynchronous collector, with a policy that the tests can block."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from agentgym_envs import EpisodeSpec, ExpertStart
from agentgym_trainer.algorithms import GRPO, GroupFilter
from agentgym_trainer.config import AsyncRollout, WorldConfig
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.gateway.harness import HarnessTask, Outcome
from agentgym_trainer.gateway.recording import EpisodeLimits
from agentgym_trainer.rollout.async_collector import AsyncCollector
from agentgym_trainer.rollout.async_metrics import staleness_metrics
from agentgym_trainer.rollout.collector import RolloutCollector
from agentgym_trainer.rollout.environments import episode_specs
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.harness_player import HarnessPlayer
from agentgym_trainer.rollout.runner import RolloutRequest
from agentgym_trainer.run.metrics import batch_fill
from agentgym_trainer.tokens.chat import Chat
from async_collectors import CollectorSetup
from coin_configs import SAMPLES, TASKS, coin_config, count_other_tasks
from coin_world import ENV, OTHER
from patience import PATIENCE, eventually, eventually_async

MakeSetup = Callable[..., CollectorSetup]


@pytest.fixture
def make_setup() -> Generator[MakeSetup]:
    """A function that creates a collector. Everything it opens is closed after the test."""
    with ExitStack() as stack:
        yield lambda **settings: CollectorSetup(coin_config(**settings), stack)


def _tasks(groups: list[EpisodeGroup]) -> list[str]:
    return [group.outcome.task for group in groups]


def _ids(*numbers: int) -> list[str]:
    return [f"coin/train/{number}" for number in numbers]


def test_synchronous_collect_plays_exactly_one_step(make_setup: MakeSetup) -> None:
    setup = make_setup()
    for step in range(3):
        groups = setup.collect(step)
        assert _tasks(groups) == _ids(*range(step * TASKS, step * TASKS + TASKS))
        assert [[e.sample for e in group.episodes] for group in groups] == [list(range(SAMPLES))] * TASKS
        assert all(group.outcome.lag(step) == 0 for group in groups)
        assert len(setup.policy.started) == (step + 1) * TASKS * SAMPLES == setup.policy.forgotten


def test_the_expert_plays_each_task_once_to_find_where_its_episodes_begin(
    make_setup: MakeSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    played, original = list[str](), ExpertStart._demonstrated

    async def counted(start: ExpertStart, slot: Any, spec: EpisodeSpec) -> Any:
        played.append(spec.task_id or "")
        return await original(start, slot, spec)

    monkeypatch.setattr(ExpertStart, "_demonstrated", counted)
    setup = make_setup()
    groups = setup.collector.collect(TrainingState(Stage(2, remaining=1)))
    assert [[turn.reply.expert for turn in e.turns] for g in groups for e in g.episodes] == [
        [True, True, False]
    ] * TASKS * SAMPLES
    assert sorted(played) == _ids(*range(TASKS))


@pytest.mark.parametrize("max_staleness", [1, 2])
def test_episodes_in_flight_are_bounded_by_max_staleness(make_setup: MakeSetup, max_staleness: int) -> None:
    setup = make_setup(async_rollout=AsyncRollout(max_staleness))
    for step in range(5):
        setup.collect(step)
        drawn = min(step + 1 + max_staleness, 5) * TASKS
        assert len(setup.policy.started) == drawn * SAMPLES
    # All drawn episodes have trained, so none remain at the end.
    assert setup.policy.forgotten == 5 * TASKS * SAMPLES


def test_episodes_are_played_between_collects(make_setup: MakeSetup) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1))
    setup.policy.blocked_tasks |= set(_ids(3, 4, 5))
    setup.collect(0)
    assert setup.policy.forgotten == TASKS * SAMPLES
    setup.policy.blocked_tasks.clear()
    eventually(lambda: setup.policy.forgotten == 2 * TASKS * SAMPLES)


def test_groups_train_in_draw_order_waiting_for_slow_groups(make_setup: MakeSetup) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1))
    setup.policy.blocked_tasks |= set(_ids(1))
    collected: list[list[EpisodeGroup]] = []
    learner = threading.Thread(target=lambda: collected.append(setup.collect(0)))
    learner.start()
    # All other drawn episodes finish in the meantime.
    eventually(lambda: setup.policy.forgotten == (2 * TASKS - 1) * SAMPLES)
    assert not collected
    setup.policy.blocked_tasks.clear()
    learner.join()
    assert _tasks(collected[0]) == _ids(0, 1, 2)
    groups = setup.collect(1)
    assert _tasks(groups) == _ids(3, 4, 5)
    assert [group.outcome.lag(1) for group in groups] == [1, 1, 1]


@pytest.mark.parametrize("on_stale", ["keep", "drop"])
def test_keep_and_drop_train_complete_groups_without_waiting(make_setup: MakeSetup, on_stale: Any) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1, on_stale))
    setup.policy.blocked_tasks |= set(_ids(1))
    assert _tasks(setup.collect(0)) == _ids(0, 2, 3)
    setup.policy.blocked_tasks.clear()
    setup.collector.settle()
    groups = setup.collect(1)
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


def _collect_with_a_stale_group(setup: CollectorSetup) -> list[EpisodeGroup]:
    """Return the groups of the third step. The first task of the first step was blocked until then."""
    setup.policy.blocked_tasks |= set(_ids(0))
    setup.collect(0)
    setup.collect(1)
    setup.policy.blocked_tasks.clear()
    setup.collector.settle()
    return setup.collect(2)


def test_stale_groups_are_dropped_counted_and_replaced(make_setup: MakeSetup) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1, on_stale="drop"))
    groups = _collect_with_a_stale_group(setup)
    assert groups[0].outcome.task == _ids(0)[0]
    assert [(group.outcome.lag(2) > 1, group.treatment) for group in groups] == [
        (True, "resample"),
        *[(False, "keep")] * TASKS,
    ]
    outcomes = [group.outcome for group in groups]
    assert staleness_metrics(outcomes, 2, 1)["stale"] == 1
    assert batch_fill(outcomes, setup.config) == 1.0  # others were played instead, so the step trains in full
    assert len(setup.policy.started) == (4 * TASKS + 1) * SAMPLES


def test_stale_groups_are_trained_with_keep(make_setup: MakeSetup) -> None:
    groups = _collect_with_a_stale_group(make_setup(async_rollout=AsyncRollout(1, on_stale="keep")))
    assert groups[0].outcome.task == _ids(0)[0]
    assert [group.treatment for group in groups] == ["keep"] * TASKS
    assert staleness_metrics([group.outcome for group in groups], 2, 1) == {
        "mean": pytest.approx(4 / 3),
        "max": 2,
        "stale": 1,
        # Only the first replies of the blocked episodes are that old; later ones are from newer weights.
        "token_mean": pytest.approx(10 / 9),
        "tokens": {"1": 8 * SAMPLES, "2": SAMPLES},
    }


@pytest.mark.parametrize("rounds", [1, 2])
def test_resampled_groups_are_replaced_by_the_next_groups(make_setup: MakeSetup, rounds: int) -> None:
    groups = GroupFilter(zero_variance="resample", rounds=rounds)  # constant replies give zero-variance groups
    setup = make_setup(async_rollout=AsyncRollout(1), algorithm=replace(GRPO, groups=groups))
    groups = setup.collect(0)
    assert [group.treatment for group in groups] == ["resample"] * TASKS * (1 + rounds)
    assert len(set(_tasks(groups))) == len(groups)


def test_groups_keep_the_horizon_at_which_they_were_drawn(make_setup: MakeSetup) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1))
    turns = [[group.outcome.episodes[0].turns for group in setup.collect(step, 1 + step)] for step in range(3)]
    assert turns == [[1] * 3, [1] * 3, [2] * 3]


def test_a_task_drawn_in_two_steps_gives_two_groups(make_setup: MakeSetup) -> None:
    world = WorldConfig(ENV, (f"train={TASKS}",), agent="bare", instructions=False, backend="inline")
    setup = make_setup(world=world, async_rollout=AsyncRollout(1))
    setup.policy.blocked_tasks |= set(_ids(0, 1))
    threading.Timer(0.2, setup.policy.blocked_tasks.clear).start()
    groups = setup.collect(0)
    assert len(groups) == len({group.number for group in groups}) == TASKS
    assert all(len(group.episodes) == SAMPLES for group in groups)


def test_a_task_drawn_repeatedly_in_a_step_gives_one_large_group(make_setup: MakeSetup) -> None:
    setup = make_setup(world=WorldConfig(ENV, ("train=1",), agent="bare", instructions=False, backend="inline"))
    (group,) = setup.collect(0)
    assert [e.sample for e in group.episodes] == list(range(TASKS * SAMPLES))
    assert len(setup.collect(1)) == 1


def test_all_environments_of_a_mixture_are_played(make_setup: MakeSetup) -> None:
    other = WorldConfig(OTHER, agent="bare", instructions=False, backend="inline")
    setup = make_setup(extra_worlds=(other,), tasks_per_step=4, async_rollout=AsyncRollout(1))
    groups = [group for step in range(5) for group in setup.collect(step)]
    assert Counter(group.outcome.world for group in groups) == {"coin/Coin-v0": 10, "coin/OneSided-v0": 10}


def test_broken_environments_give_groups_of_failed_episodes(make_setup: MakeSetup) -> None:
    broken = WorldConfig(ENV, ("fault_on_reset=(1,)",), agent="bare", instructions=False, backend="inline")
    groups = make_setup(world=broken, async_rollout=AsyncRollout(1)).collect(0)
    assert [[e.stop for e in group.outcome.episodes] for group in groups] == [
        ["terminated"] * SAMPLES,
        ["failed"] * SAMPLES,
        ["terminated"] * SAMPLES,
    ]
    assert [group.outcome.lag(4) for group in groups] == [4, 0, 4]


def test_all_groups_are_played_with_few_slots(make_setup: MakeSetup) -> None:
    setup = make_setup(slots=2, async_rollout=AsyncRollout(2))
    assert len(setup.worlds[0].pool) == 2
    tasks = [task for step in range(5) for task in _tasks(setup.collect(step))]
    assert len(tasks) == 5 * TASKS
    assert setup.policy.forgotten == 5 * TASKS * SAMPLES


def test_processes_play_their_shares_with_distinct_group_numbers(make_setup: MakeSetup) -> None:
    numbers: list[set[int]] = []
    for index, share in ((0, 2), (1, 1)):
        setup = make_setup()
        setup.ranks.index, setup.ranks.count = index, 2
        collector = AsyncCollector(
            setup.rollouts, setup.policy, setup.config, setup.worlds, setup.draw, ranks=setup.ranks
        )
        groups = collector.collect(TrainingState(Stage(3)))
        assert len(groups) == share
        numbers.append({group.number for group in groups})
    assert not numbers[0] & numbers[1]


def test_processes_play_their_groups_with_distinct_seeds(make_setup: MakeSetup, chat: Chat) -> None:
    seeds: list[set[int]] = []
    for index in range(2):
        setup = make_setup(async_rollout=AsyncRollout(1))
        setup.ranks.index, setup.ranks.count = index, 2
        collector = RolloutCollector(setup.config, setup.worlds, chat, setup.rollouts, setup.ranks).async_collector
        assert collector is not None
        draws = [spec for number in range(2) for spec in collector._draw(number, TrainingState(Stage(3)))]
        seeds.append({episode.seed for spec in draws for episode in spec.episodes})
        assert all(len({episode.seed for episode in spec.episodes}) == 1 for spec in draws)
    assert [len(each) for each in seeds] == [2, 2]
    assert not seeds[0] & seeds[1]


def test_a_process_without_tasks_plays_nothing(make_setup: MakeSetup) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1))
    collector = AsyncCollector(
        setup.rollouts, setup.policy, setup.config, setup.worlds, lambda *_: [], ranks=setup.ranks
    )
    assert collector.collect(TrainingState(Stage(3))) == []


def test_a_resumed_run_draws_from_its_current_step(make_setup: MakeSetup) -> None:
    assert _tasks(make_setup(async_rollout=AsyncRollout(1)).collect(3)) == _ids(9, 10, 11)


# Pausing and closing.


def test_all_slots_are_free_between_settle_and_the_next_collect(make_setup: MakeSetup) -> None:
    setup = make_setup(slots=2, async_rollout=AsyncRollout(2))
    setup.collect(0)
    setup.collector.settle()
    started = len(setup.policy.started)
    assert started == setup.policy.forgotten
    world = setup.worlds[0]
    held_out = episode_specs(list(world.tasks.test), samples=1, seed=0)
    assert len(list(setup.rollouts.play([RolloutRequest(world, held_out)], setup.policy))) == 4
    assert len(setup.collect(1)) == TASKS
    assert len(setup.policy.started) > started + 4


def test_settle_waits_for_those_episodes_of_a_harness_alone_that_play(make_setup: MakeSetup, chat: Chat) -> None:
    setup, started = make_setup(async_rollout=AsyncRollout(1), harness_concurrency=2), list[str]()
    collector = _with_harness(setup, chat, started)
    setup.policy.blocked_tasks |= set(_ids(3, 4, 5))
    collector.collect(TrainingState(Stage(3)))
    eventually(lambda: len(started) == TASKS * SAMPLES + 2)
    collector.settle()
    assert len(started) == TASKS * SAMPLES + 2
    setup.policy.blocked_tasks.clear()
    assert len(collector.collect(TrainingState(Stage(3), step=1))) == TASKS
    collector.close()


def test_the_environments_of_a_harness_share_its_slots(make_setup: MakeSetup, chat: Chat) -> None:
    other = WorldConfig(OTHER, agent="bare", instructions=False, backend="inline")
    setup = make_setup(async_rollout=AsyncRollout(1), harness_concurrency=2, tasks_per_step=4, extra_worlds=(other,))
    started = list[str]()
    collector = _with_harness(setup, chat, started)
    setup.policy.blocked_tasks |= set(setup.worlds[0].tasks.train.ids[2:4]) | set(setup.worlds[1].tasks.train.ids[2:4])
    groups = collector.collect(TrainingState(Stage(3)))
    assert [group.outcome.world for group in groups] == [world.name for world in setup.worlds for _ in range(2)]
    eventually(lambda: len(started) == 4 * SAMPLES + 2)
    collector.settle()
    assert len(started) == 4 * SAMPLES + 2
    setup.policy.blocked_tasks.clear()
    groups = collector.collect(TrainingState(Stage(3), step=1))
    assert [group.outcome.world for group in groups] == [world.name for world in setup.worlds for _ in range(2)]
    collector.close()


def _with_harness(setup: CollectorSetup, chat: Chat, started: list[str]) -> AsyncCollector:
    """A collector whose harness plays two episodes at a time, those of blocked tasks until it settles."""

    async def run(task: HarnessTask, base_url: str, api_key: str) -> Outcome:
        started.append(task.id)
        await eventually_async(lambda: collector._settling or task.id not in setup.policy.blocked_tasks)
        return Outcome(0.0)

    gateway, slots = setup.rollouts.gateway(chat, "tiny"), asyncio.Semaphore(2)
    player = HarnessPlayer(run, gateway, EpisodeLimits(), timeout=PATIENCE, slots=slots)
    collector = AsyncCollector(setup.rollouts, player, setup.config, setup.worlds, setup.draw, ranks=setup.ranks)
    return collector


def test_policy_errors_between_collects_are_raised_by_collect(make_setup: MakeSetup) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1))
    setup.policy.blocked_tasks |= set(_ids(3, 4, 5))
    setup.collect(0)
    setup.policy.error = RuntimeError("the engine is gone")
    setup.policy.blocked_tasks.clear()
    with pytest.raises(RuntimeError, match="the engine is gone"):
        setup.collect(1)
    setup.collector.close()
    assert setup.policy.forgotten == len(setup.policy.started)


def test_close_cancels_episodes_and_frees_environments(make_setup: MakeSetup) -> None:
    setup = make_setup(async_rollout=AsyncRollout(1))
    setup.policy.blocked_tasks |= set(_ids(3, 4, 5))
    setup.collect(0)
    setup.collector.close()
    setup.collector.close()
    assert setup.policy.forgotten == len(setup.policy.started) == 2 * TASKS * SAMPLES
    setup.policy.blocked_tasks.clear()
    world = setup.worlds[0]
    episodes = list(
        setup.rollouts.play(
            [RolloutRequest(world, episode_specs(list(world.tasks.test), samples=3, seed=0))], setup.policy
        )
    )
    assert [e.stop for e in episodes] == ["terminated"] * 12
    assert count_other_tasks(setup.rollouts) == 0
