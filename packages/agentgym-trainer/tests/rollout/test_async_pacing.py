"""Sampling ahead where half the tasks are five times as slow as the others, in a time of the tests' own."""

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
from agentgym_trainer.rollout.async_metrics import length_metrics, staleness_metrics
from agentgym_trainer.rollout.environments import GroupSpec
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.runner import RolloutRunner
from async_collectors import Table, Teller, silent_engine
from coin_configs import SAMPLES, coins
from coin_world import ENV

T = TypeVar("T")
STEPS, TASKS, UPDATE = 12, 4, 6
"""An update takes as long as two fast episodes; a slow one takes five."""


class Clock:
    """Counts ticks. One passes when all is done that takes no time."""

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
    """Time passes in them while the main thread waits for them, and stands still otherwise."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(silent_engine())
        self.clock = clock

    def run(self, coroutine: Coroutine[Any, Any, T], **how: Any) -> T:
        return super().run(self._timed(coroutine), **how)

    async def _timed(self, coroutine: Coroutine[Any, Any, T]) -> T:
        ticking = asyncio.get_running_loop().create_task(self.clock.run())
        try:
            return await coroutine
        finally:
            ticking.cancel()


class HalfSlow(Teller):
    """Takes five ticks and five tokens for each reply in half of the tasks, and one elsewhere."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    async def reply(self, seat: TurnContext) -> Reply:
        versions = list[int]()
        for _ in range(5 if slow(seat.info["task_id"]) else 1):
            await self.clock.sleep(1)
            versions.append(self.version)
        mixed = tuple(versions) if len(set(versions)) > 1 else ()
        said, fresh = len(versions), len(seat.conversation) == 1
        return Reply("heads", "stop", Sample((1,), (2,) * said, (-0.5,) * said, versions[0], fresh, mixed))


def slow(task: str) -> bool:
    """Two of the four of each step, and one of the two of each of two processes."""
    return int(task.rpartition("/")[2]) % 4 in (1, 2)


class Run:
    """A run over `STEPS` steps, or what a process plays of one."""

    def __init__(self, config: RLConfig, stack: ExitStack, *, index: int = 0, count: int = 1) -> None:
        self.clock = Clock()
        self.table = Table(config, stack, HalfSlow(self.clock), TimedRollouts(self.clock))
        self.table.ranks.index, self.table.ranks.count = index, count
        self.drawn: dict[int, list[str]] = {}
        self.before: list[dict[str, Any]] = []
        self.table.reopen(self._draw)

    def resume(self) -> None:
        """Go on as a run that was killed does, from what its last checkpoint says."""
        self.resume_from([self.table.ahead.in_flight()])

    def resume_from(self, before: list[dict[str, Any]]) -> None:
        """The same, from what all processes had under way before."""
        self.before = json.loads(json.dumps(before))
        self.table.ahead.close()
        self.table.reopen(self._draw)

    def _draw(self, number: int, progress: Any) -> Sequence[GroupSpec]:
        dealt = self.table.ranks.share(self.table.draw(number, progress))
        assert number not in self.drawn
        self.drawn[number] = [deal.episodes[0].task_id for deal in dealt]
        return dealt

    def steps(self, first: int = 0, last: int = STEPS) -> list[list[EpisodeGroup]]:
        """The groups of these steps. The update after each takes its time."""
        collected: list[list[EpisodeGroup]] = []
        for step in range(first, last):
            collected.append(self.table.collect(step, before=self.before))
            self.table.rollouts.run(self.clock.sleep(UPDATE))
        return collected

    def all_drawn(self) -> list[str]:
        return [task for number in range(STEPS) for task in self.drawn[number]]


Start = Callable[..., Run]


@pytest.fixture
def start() -> Generator[Start]:
    """Starts a run; what it opens is closed after the test."""
    with ExitStack() as stack:

        def make(overlap: AsyncRollout, *, index: int = 0, count: int = 1, **settings: Any) -> Run:
            world = WorldConfig(ENV, (f"train={TASKS * STEPS}",), agent="bare", instructions=False, backend="inline")
            config = coins(
                **{"world": world, "tasks_per_step": TASKS, "steps": STEPS, "slots": 64} | settings,
                async_rollout=overlap,
            )
            return Run(config, stack, index=index, count=count)

        yield make


def _trained(steps: Sequence[Sequence[EpisodeGroup]]) -> list[str]:
    return [group.outcome.task for groups in steps for group in groups if group.treatment == "keep"]


def _lengths(steps: Sequence[Sequence[EpisodeGroup]]) -> tuple[float, float]:
    """Mean completion tokens of the episodes that were drawn and of those that train, over all steps."""
    figures = length_metrics([group.outcome for groups in steps for group in groups])
    return figures["drawn"]["tokens"]["mean"], figures["trained"]["tokens"]["mean"]


@pytest.mark.parametrize(("versions", "slots"), [(1, 64), (2, 64), (2, 5)])
def test_every_step_trains_what_was_drawn_for_it_however_slow(start: Start, versions: int, slots: int) -> None:
    run = start(AsyncRollout(versions), slots=slots)
    steps = run.steps()
    for step, groups in enumerate(steps):
        assert _trained([groups]) == run.drawn[step]
        assert sum(map(slow, run.drawn[step])) == TASKS / 2
        figures = staleness_metrics([group.outcome for group in groups], step, versions)
        assert figures["max"] <= versions
        assert figures["stale"] == 0
        lengths = length_metrics([group.outcome for group in groups])
        assert lengths["trained"] == lengths["drawn"]
        assert lengths["drawn"]["tokens"] == {"mean": 9.0, "p10": 3.0, "p50": 9.0, "p90": 15.0, "max": 15.0}
    # It was no run that takes turns.
    assert max(group.outcome.lag(step) for step, groups in enumerate(steps) for group in groups) > 0


def test_kept_groups_all_train_by_the_end_some_of_them_late(start: Start) -> None:
    run = start(AsyncRollout(1, on_stale="keep"))
    steps = run.steps()
    assert _trained(steps) != run.all_drawn()
    assert Counter(_trained(steps)) == Counter(run.all_drawn())
    assert max(staleness_metrics([g.outcome for g in groups], step, 1)["max"] for step, groups in enumerate(steps)) > 1
    assert _lengths(steps) == (9.0, 9.0)


def test_dropped_groups_are_the_slow_ones_and_the_lengths_show_it(start: Start) -> None:
    run = start(AsyncRollout(1, on_stale="drop"))
    steps = run.steps()
    played = [group.outcome.task for group in chain(*steps)]
    dropped = [group.outcome.task for group in chain(*steps) if group.treatment == "drop"]
    assert dropped
    assert all(map(slow, dropped))
    assert sum(map(slow, _trained(steps))) / len(_trained(steps)) < 0.4 < sum(map(slow, played)) / len(played)
    drawn, trained = _lengths(steps)
    assert trained < drawn - 1


@pytest.mark.parametrize("beyond", ["wait", "keep"])
def test_a_run_that_is_resumed_loses_no_group_and_trains_none_twice(start: Start, beyond: Any) -> None:
    run = start(AsyncRollout(2, beyond))
    steps = run.steps(last=3)
    for first, last in ((3, 4), (4, STEPS)):  # with the groups of two steps under way
        run.resume()
        steps += run.steps(first, last)
    assert Counter(_trained(steps)) == Counter(run.all_drawn())
    assert (_trained(steps) == run.all_drawn()) == (beyond == "wait")
    assert _lengths(steps) == (9.0, 9.0)


def test_a_run_that_resamples_is_resumed_where_it_has_drawn_to(start: Start) -> None:
    rules = GroupFilter(zero_variance="resample", rounds=1)  # who always says heads makes flat groups
    run = start(AsyncRollout(1), algorithm=replace(GRPO, groups=rules))
    steps = run.steps(last=2)
    run.resume()
    steps += run.steps(2, 4)
    tasks = [group.outcome.task for groups in steps for group in groups]
    assert len(tasks) == len(set(tasks)) == 4 * 2 * TASKS


def test_what_two_processes_had_under_way_one_goes_on_with(start: Start) -> None:
    shares = [start(AsyncRollout(2, "keep"), index=index, count=2) for index in range(2)]
    before = [_trained(run.steps(last=3)) for run in shares]
    whole = start(AsyncRollout(2, "keep"))
    # Something of what was drawn first is not yet done, and some of what was drawn after it is.
    assert set(chain(*before)) != {f"coin/train/{n}" for n in range(3 * TASKS)}
    whole.resume_from([run.table.ahead.in_flight() for run in shares])
    after = whole.steps(3)
    assert sorted([*chain(*before), *_trained(after)]) == sorted(f"coin/train/{n}" for n in range(TASKS * STEPS))


def test_an_evaluation_in_between_changes_nothing_of_what_trains(start: Start) -> None:
    run, steps = start(AsyncRollout(2)), list[list[EpisodeGroup]]()
    for step in range(STEPS):
        steps += run.steps(step, step + 1)
        run.table.ahead.settle()
    assert _trained(steps) == run.all_drawn()


def test_each_process_trains_its_share_of_every_step(start: Start) -> None:
    shares = [start(AsyncRollout(1), index=index, count=2) for index in range(2)]
    steps = [run.steps() for run in shares]
    whole = start(AsyncRollout(1))
    whole.steps()
    for step in range(STEPS):
        assert [_trained([own[step]]) for own in steps] == [run.drawn[step] for run in shares]
        assert sorted(_trained([own[step] for own in steps])) == sorted(whole.drawn[step])


def test_an_episode_under_way_goes_on_with_the_new_weights_and_each_token_counts_as_what_sampled_it(
    start: Start,
) -> None:
    steps = start(AsyncRollout(1)).steps()
    across = 0
    for step, groups in enumerate(steps):
        outcomes, lags = [group.outcome for group in groups], list[int]()
        for episode in chain(*(group.episodes for group in groups)):
            samples = [turn.reply.sample for turn in episode.turns if turn.reply.sample]
            versions = [version for sample in samples for version in sample.token_versions]
            assert versions == sorted(versions)
            across += len(set(versions)) > 1
            lags += [step - version for version in versions]
        figures = staleness_metrics(outcomes, step, 1)
        assert figures["tokens"] == {str(lag): count for lag, count in sorted(Counter(lags).items())}
        assert figures["token_mean"] == pytest.approx(sum(lags) / len(lags))
        assert figures["token_mean"] <= figures["mean"]
    assert across >= (STEPS - 2) * SAMPLES


def test_what_failed_or_is_masked_or_left_out_is_drawn_and_does_not_train(start: Start) -> None:
    (groups,) = start(AsyncRollout(1)).steps(last=1)
    first, second, *_ = (group.outcome for group in groups)
    turns = [
        (first.episodes[0], 1, "terminated"),
        (first.episodes[1], 2, "truncated"),
        (first.episodes[0], 4, "failed"),
    ]
    some = tuple(replace(episode, turns=many, stop=stop) for episode, many, stop in turns)
    known = [replace(first, episodes=some, masked=frozenset({"truncated"})), replace(second, treatment="drop")]
    figures = length_metrics(known)
    assert figures["drawn"]["turns"] == {"mean": 13 / 5, "p10": 1.4, "p50": 3.0, "p90": 3.6, "max": 4.0}
    assert figures["trained"]["turns"] == dict.fromkeys(("mean", "p10", "p50", "p90", "max"), 1.0)
    assert staleness_metrics(known, 0, 1)["tokens"] == {"0": some[0].completion_tokens}


def test_lengths_of_nothing_are_none() -> None:
    nothing = dict.fromkeys(("mean", "p10", "p50", "p90", "max"))
    assert length_metrics([]) == {kind: {"turns": nothing, "tokens": nothing} for kind in ("drawn", "trained")}
