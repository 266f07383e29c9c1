"""Tests of the asynchronous collector in simulated time. Half of the tasks are five times as slow as the others."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import pytest
from agentgym_envs import Reply, Sample
from agentgym_envs.episodes.play import TurnContext
from agentgym_trainer.algorithms import GRPO, GroupFilter
from agentgym_trainer.config import AsyncRollout, RLConfig, WorldConfig
from agentgym_trainer.rollout.async_collector import AsyncCollector
from agentgym_trainer.rollout.async_metrics import length_metrics, staleness_metrics
from agentgym_trainer.rollout.environments import GroupSpec
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.runner import RolloutRunner
from async_collectors import BlockablePolicy, CollectorSetup, unused_engine
from coin_configs import SAMPLES, coin_config
from coin_world import ENV

T = TypeVar("T")
STEPS, TASKS, UPDATE = 12, 4, 6
"""Steps of a run, tasks per step, and ticks per update: as long as two fast episodes, while a slow one takes five."""


class Clock:
    """Simulated time in ticks. A tick passes once everything that takes no time is done."""

    def __init__(self) -> None:
        self._now = 0
        self._sleeping: list[tuple[int, asyncio.Future[None]]] = []

    async def sleep(self, ticks: int) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping.append((self._now + ticks, woken))
        await woken

    async def run(self) -> None:
        while True:
            for _ in range(30):
                await asyncio.sleep(0)
            self._now += 1
            due = [woken for until, woken in self._sleeping if until <= self._now]
            self._sleeping = [(until, woken) for until, woken in self._sleeping if until > self._now]
            for woken in due:
                if not woken.done():
                    woken.set_result(None)


class TimedRollouts(RolloutRunner):
    """A runner in simulated time, which passes only while the main thread waits for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(unused_engine())
        self.clock = clock

    def run(self, coroutine: Coroutine[Any, Any, T], **how: Any) -> T:
        return super().run(self._timed(coroutine), **how)

    async def _timed(self, coroutine: Coroutine[Any, Any, T]) -> T:
        ticking = asyncio.get_running_loop().create_task(self.clock.run())
        try:
            return await coroutine
        finally:
            ticking.cancel()


class HalfSlow(BlockablePolicy):
    """A policy whose replies take five ticks and five tokens in half of the tasks, and one in the others."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    async def reply(self, context: TurnContext) -> Reply:
        versions = list[int]()
        for _ in range(5 if slow(context.info["task_id"]) else 1):
            await self.clock.sleep(1)
            versions.append(self.version)
        token_versions = tuple(versions) if len(set(versions)) > 1 else ()
        count, fresh = len(versions), len(context.conversation) == 1
        return Reply("heads", "stop", Sample((1,), (2,) * count, (-0.5,) * count, versions[0], fresh, token_versions))


def slow(task: str) -> bool:
    """Return whether a task is slow: two of four per step, and one of two per step in each of two processes."""
    return int(task.rpartition("/")[2]) % 4 in (1, 2)


class Run:
    """A run of `STEPS` steps, or one process of it."""

    def __init__(self, config: RLConfig, stack: ExitStack, *, index: int = 0, count: int = 1) -> None:
        self.clock = Clock()
        self.setup = CollectorSetup(config, stack, HalfSlow(self.clock), TimedRollouts(self.clock))
        self.setup.ranks.index, self.setup.ranks.count = index, count
        self.drawn: dict[int, list[str]] = {}
        self.in_flight: list[dict[str, Any]] = []
        self.setup.reopen(self._draw)

    def resume(self) -> None:
        """Resume as a killed run does, from the state of its last checkpoint."""
        self.resume_from([self.setup.collector.in_flight()])

    def resume_from(self, in_flight: list[dict[str, Any]]) -> None:
        """Resume from the groups that all processes had in flight."""
        self.in_flight = json.loads(json.dumps(in_flight))
        self.setup.collector.close()
        self.setup.reopen(self._draw)

    def _draw(self, number: int, progress: Any) -> Sequence[GroupSpec]:
        specs = self.setup.ranks.share(self.setup.draw(number, progress))
        assert number not in self.drawn
        self.drawn[number] = [spec.episodes[0].task_id for spec in specs]
        return specs

    def steps(self, first: int = 0, last: int = STEPS, *, turns: int = 3) -> list[list[EpisodeGroup]]:
        """Return the groups of some steps in a stage. Each step is followed by an update, which takes time."""
        collected: list[list[EpisodeGroup]] = []
        for step in range(first, last):
            collected.append(self.setup.collect(step, turns, self.in_flight))
            self.setup.rollouts.run(self.clock.sleep(UPDATE))
        return collected

    def all_drawn(self) -> list[str]:
        return [task for number in range(STEPS) for task in self.drawn[number]]


Start = Callable[..., Run]


@pytest.fixture
def start() -> Generator[Start]:
    """A function that starts a run. Everything it opens is closed after the test."""
    with ExitStack() as stack:

        def make(async_rollout: AsyncRollout, *, index: int = 0, count: int = 1, **settings: Any) -> Run:
            world = WorldConfig(ENV, (f"train={TASKS * STEPS}",), agent="bare", instructions=False, backend="inline")
            config = coin_config(
                **{"world": world, "tasks_per_step": TASKS, "steps": STEPS, "slots": 64} | settings,
                async_rollout=async_rollout,
            )
            return Run(config, stack, index=index, count=count)

        yield make


def _trained(steps: Sequence[Sequence[EpisodeGroup]]) -> list[str]:
    return [group.outcome.task for groups in steps for group in groups if group.treatment == "keep"]


def _lengths(steps: Sequence[Sequence[EpisodeGroup]]) -> tuple[float, float]:
    """Return the mean completion tokens of drawn and of trained episodes, over all steps."""
    metrics = length_metrics([group.outcome for groups in steps for group in groups])
    return metrics["drawn"]["tokens"]["mean"], metrics["trained"]["tokens"]["mean"]


@pytest.mark.parametrize(("max_staleness", "slots"), [(1, 64), (2, 64), (2, 5)])
def test_every_step_trains_all_its_groups_including_slow_ones(start: Start, max_staleness: int, slots: int) -> None:
    run = start(AsyncRollout(max_staleness), slots=slots)
    steps = run.steps()
    for step, groups in enumerate(steps):
        assert _trained([groups]) == run.drawn[step]
        assert sum(map(slow, run.drawn[step])) == TASKS / 2
        staleness = staleness_metrics([group.outcome for group in groups], step, max_staleness)
        assert staleness["max"] <= max_staleness
        assert staleness["stale"] == 0
        lengths = length_metrics([group.outcome for group in groups])
        assert lengths["trained"] == lengths["drawn"]
        assert lengths["drawn"]["tokens"] == {"mean": 9.0, "p10": 3.0, "p50": 9.0, "p90": 15.0, "max": 15.0}
    # Sampling did overlap with updates.
    assert max(group.outcome.lag(step) for step, groups in enumerate(steps) for group in groups) > 0


def test_keep_trains_all_groups_some_of_them_late(start: Start) -> None:
    run = start(AsyncRollout(1, on_stale="keep"))
    steps = run.steps()
    assert _trained(steps) != run.all_drawn()
    assert Counter(_trained(steps)) == Counter(run.all_drawn())
    assert max(staleness_metrics([g.outcome for g in groups], step, 1)["max"] for step, groups in enumerate(steps)) > 1
    assert _lengths(steps) == (9.0, 9.0)


def test_drop_removes_slow_groups_and_shortens_trained_episodes(start: Start) -> None:
    run = start(AsyncRollout(1, on_stale="drop"))
    steps = run.steps()
    played = [group.outcome.task for group in chain(*steps)]
    dropped = [group.outcome.task for group in chain(*steps) if group.treatment == "resample"]
    assert dropped
    assert all(map(slow, dropped))
    assert sum(map(slow, _trained(steps))) / len(_trained(steps)) < 0.4 < sum(map(slow, played)) / len(played)
    drawn, trained = _lengths(steps)
    assert trained < drawn - 1


@pytest.mark.parametrize("on_stale", ["wait", "keep"])
def test_resumed_runs_train_every_group_exactly_once(start: Start, on_stale: Any) -> None:
    run = start(AsyncRollout(2, on_stale))
    steps = run.steps(last=3)
    for first, last in ((3, 4), (4, STEPS)):  # with groups of two steps in flight
        run.resume()
        steps += run.steps(first, last)
    assert Counter(_trained(steps)) == Counter(run.all_drawn())
    assert (_trained(steps) == run.all_drawn()) == (on_stale == "wait")
    assert _lengths(steps) == (9.0, 9.0)


def test_resumed_groups_keep_the_stage_in_which_they_were_started(start: Start) -> None:
    turns = list[dict[str, int]]()
    for resumed in (False, True):
        run = start(AsyncRollout(2))
        run.steps(last=2)
        if resumed:
            run.resume()
        later = run.steps(2, STEPS, turns=2)
        turns.append({group.outcome.task: group.outcome.episodes[0].turns for groups in later for group in groups})
    assert turns[0] == turns[1]
    assert [*turns[0].values()] == [3] * 2 * TASKS + [2] * (STEPS - 4) * TASKS


def test_resumed_runs_with_resampling_continue_drawing_new_tasks(start: Start) -> None:
    groups = GroupFilter(zero_variance="resample", rounds=1)  # constant replies give zero-variance groups
    run = start(AsyncRollout(1), algorithm=replace(GRPO, groups=groups))
    steps = run.steps(last=2)
    run.resume()
    steps += run.steps(2, 4)
    tasks = [group.outcome.task for groups in steps for group in groups]
    assert len(tasks) == len(set(tasks)) == 4 * 2 * TASKS


def test_one_process_resumes_groups_in_flight_of_two_processes(start: Start) -> None:
    shares = [start(AsyncRollout(2, "keep"), index=index, count=2) for index in range(2)]
    trained_before = [_trained(run.steps(last=3)) for run in shares]
    single = start(AsyncRollout(2, "keep"))
    # Some early groups haven't been trained, although some later ones have.
    assert set(chain(*trained_before)) != {f"coin/train/{n}" for n in range(3 * TASKS)}
    single.resume_from([run.setup.collector.in_flight() for run in shares])
    steps_after = single.steps(3)
    assert sorted([*chain(*trained_before), *_trained(steps_after)]) == sorted(
        f"coin/train/{n}" for n in range(TASKS * STEPS)
    )


def test_pauses_for_evaluation_do_not_change_the_trained_groups(start: Start) -> None:
    run, steps = start(AsyncRollout(2)), list[list[EpisodeGroup]]()
    for step in range(STEPS):
        steps += run.steps(step, step + 1)
        run.setup.collector.settle()
    assert _trained(steps) == run.all_drawn()


def test_each_process_trains_its_share_of_every_step(start: Start) -> None:
    shares = [start(AsyncRollout(1), index=index, count=2) for index in range(2)]
    steps = [run.steps() for run in shares]
    single = start(AsyncRollout(1))
    single.steps()
    for step in range(STEPS):
        assert [_trained([share[step]]) for share in steps] == [run.drawn[step] for run in shares]
        assert sorted(_trained([share[step] for share in steps])) == sorted(single.drawn[step])


def test_token_staleness_counts_the_weights_that_sampled_each_token(
    start: Start,
) -> None:
    steps = start(AsyncRollout(1)).steps()
    mixed_episodes = 0
    for step, groups in enumerate(steps):
        outcomes, lags = [group.outcome for group in groups], list[int]()
        for episode in chain(*(group.episodes for group in groups)):
            samples = [turn.reply.sample for turn in episode.turns if turn.reply.sample]
            versions = [version for sample in samples for version in sample.token_versions]
            assert versions == sorted(versions)
            mixed_episodes += len(set(versions)) > 1
            lags += [step - version for version in versions]
        metrics = staleness_metrics(outcomes, step, 1)
        assert metrics["tokens"] == {str(lag): count for lag, count in sorted(Counter(lags).items())}
        assert metrics["token_mean"] == pytest.approx(sum(lags) / len(lags))
        assert metrics["token_mean"] <= metrics["mean"]
    assert mixed_episodes >= (STEPS - 2) * SAMPLES


def test_failed_masked_and_dropped_episodes_count_only_as_drawn(start: Start) -> None:
    (groups,) = start(AsyncRollout(1)).steps(last=1)
    first, second, *_ = (group.outcome for group in groups)
    turns = [
        (first.episodes[0], 1, "terminated"),
        (first.episodes[1], 2, "truncated"),
        (first.episodes[0], 4, "failed"),
    ]
    episodes = tuple(replace(episode, turns=count, stop=stop) for episode, count, stop in turns)
    outcomes = [replace(first, episodes=episodes, masked=frozenset({"truncated"})), replace(second, treatment="drop")]
    lengths = length_metrics(outcomes)
    assert lengths["drawn"]["turns"] == {"mean": 13 / 5, "p10": 1.4, "p50": 3.0, "p90": 3.6, "max": 4.0}
    assert lengths["trained"]["turns"] == dict.fromkeys(("mean", "p10", "p50", "p90", "max"), 1.0)
    assert staleness_metrics(outcomes, 0, 1)["tokens"] == {"0": episodes[0].completion_tokens}


def test_length_metrics_of_no_groups_are_none() -> None:
    none = dict.fromkeys(("mean", "p10", "p50", "p90", "max"))
    assert length_metrics([]) == {kind: {"turns": none, "tokens": none} for kind in ("drawn", "trained")}


@pytest.mark.parametrize(("max_staleness", "rounds"), [(1, 1), (1, 3), (2, 1)])
def test_groups_are_not_staler_after_a_step_without_any_that_trains(
    start: Start, monkeypatch: pytest.MonkeyPatch, max_staleness: int, rounds: int
) -> None:
    groups = GroupFilter(zero_variance="resample", rounds=rounds)
    run = start(AsyncRollout(max_staleness), algorithm=replace(GRPO, groups=groups))
    classified = AsyncCollector._classified

    def flat_in_step_3(self: AsyncCollector, flight: Any, step: int) -> EpisodeGroup:
        return replace(classified(self, flight, step), treatment="resample" if step == 3 else "keep")

    monkeypatch.setattr(AsyncCollector, "_classified", flat_in_step_3)
    for step in range(8):
        (played,) = run.steps(step, step + 1)
        staleness = staleness_metrics([group.outcome for group in played], step, max_staleness)
        assert staleness["stale"] == 0
        assert len(played) == (TASKS * (1 + rounds) if step == 3 else TASKS)
