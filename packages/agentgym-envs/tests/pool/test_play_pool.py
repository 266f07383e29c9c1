"""Tests of `play_pool`: it plays the same episodes as `play_many`, and no slot waits for another."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

import psutil
import pytest
from agentgym_envs import (
    Bare,
    EnvFault,
    EnvPool,
    Episode,
    EpisodeSpec,
    Policy,
    PoolSlot,
    ReAct,
    Reply,
    ReplyWrapper,
    Sample,
    TurnContext,
    make,
    play_episode,
    play_many,
    play_pool,
)
from agentgym_envs.episodes.conversation import Scaffold
from agentgym_envs.pool import Result, Step
from agentgym_envs.pool.calls import Call
from allocations import memory_growth
from faulty_worlds import SHY, TOY
from patience import eventually, eventually_async

BACKENDS = ("inline", "thread", pytest.param("process", marks=pytest.mark.long))
WRAPPERS = {
    "react": ReAct,
    "react without instructions": partial(ReAct, instructions=""),
    "bare": Bare,
    "react with habits": partial(ReAct, scaffold=Scaffold(plan=2, window=2, reflect=2, retry=1)),
}
CUT_OFF = Reply("half a", finish="length", sample=Sample((1,), (2,), (-1.0,)))


class FunctionPolicy(Policy):
    """Replies with a function of the context, and records the keys that it saw and those that it forgot."""

    name = "says"

    def __init__(self, answer: Callable[[TurnContext], str | Reply | Coroutine[Any, Any, str]]) -> None:
        self._answer = answer
        self.seen: list[int] = []
        self.forgotten: list[int] = []

    async def reply(self, context: TurnContext) -> Reply:
        if context.key not in self.seen:
            self.seen.append(context.key)
        answer = self._answer(context)
        if isinstance(answer, Coroutine):
            answer = await answer
        return answer if isinstance(answer, Reply) else Reply(answer)

    def forget(self, key: int) -> None:
        self.forgotten.append(key)


def opener() -> FunctionPolicy:
    return FunctionPolicy(lambda _: "open")


def goal_knocks(context: TurnContext) -> int:
    """Return how many knocks the observation asks for."""
    return int(context.conversation[-1].content.split()[2])


def turn(context: TurnContext) -> int:
    return sum(message.role == "assistant" for message in context.conversation)


def reply_at_random(context: TurnContext) -> str | Reply:
    """Reply at random: with an action, malformed, cut off, or with a fault."""
    if (drawn := context.rng.random()) < 0.05:
        return CUT_OFF
    if drawn < 0.1:
        return "Action: one\nAction: two"
    if drawn < 0.15:
        raise EnvFault("the policy failed")
    return f"Thought: hm\nAction: {'knock' if drawn < 0.8 else 'open'}"


class LocalRandomPolicy(Policy):
    """The same policy, for environments in this process."""

    name = "says"
    needs_env = True

    async def reply(self, context: TurnContext) -> Reply:
        answer = reply_at_random(context)
        return answer if isinstance(answer, Reply) else Reply(answer)


def make_specs(samples: int = 1, knocks: Iterable[int] = range(6)) -> list[EpisodeSpec]:
    return [EpisodeSpec(f"door/train/{goal}", sample, 7) for sample in range(samples) for goal in knocks]


def without_times(episodes: Iterable[Episode]) -> dict[tuple[str, int], Episode]:
    """Return the episodes without times, by task and sample."""
    return {(e.task_id, e.sample): dataclasses.replace(e, seconds={}) for e in episodes}


async def play_in_pool(pool: EnvPool, policy: Policy, specs: Iterable[EpisodeSpec], **options: Any) -> list[Episode]:
    options.setdefault("env", Bare(make(TOY)))
    async with aclosing(play_pool(pool, policy, specs, **options)) as episodes:
        return [episode async for episode in episodes]


def play_all(
    policy: Policy, specs: Iterable[EpisodeSpec], slots: int = 3, backend: str = "inline", **options: Any
) -> list[Episode]:
    with EnvPool(TOY, slots, backend) as pool:
        return asyncio.run(play_in_pool(pool, policy, specs, **options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=list(WRAPPERS))
def test_episodes_match_play_many(backend: str, wrapper: Callable[[Any], ReplyWrapper]) -> None:
    envs = [wrapper(make(TOY)) for _ in range(4)]
    expected = without_times(play_many(envs[0], LocalRandomPolicy(), make_specs(12), horizon=5))
    found = play_all(
        FunctionPolicy(reply_at_random),
        make_specs(12),
        2 if backend == "process" else 5,
        backend,
        env=wrapper(make(TOY)),
        horizon=5,
    )
    assert len(found) == 72
    assert without_times(found) == expected
    assert {episode.stop for episode in found} >= {"terminated", "truncated", "length", "failed"} - (
        {"terminated"} if wrapper is Bare else set()
    )


def test_order_is_deterministic_if_nothing_waits() -> None:
    def order(slots: int) -> list[tuple[str, int]]:
        return [
            (e.task_id, e.sample)
            for e in play_all(FunctionPolicy(reply_at_random), make_specs(5), slots, env=ReAct(make(TOY)))
        ]

    assert order(4) == order(4)
    assert sorted(order(4)) == sorted(order(1))


def test_episodes_are_yielded_as_they_end_if_nothing_waits() -> None:
    drawn = itertools.count()

    async def first() -> int:
        specs = (spec for spec in make_specs(50) if next(drawn) >= 0)
        with EnvPool(TOY, 2, "inline") as pool:
            async with aclosing(play_pool(pool, opener(), specs, env=Bare(make(TOY)))) as episodes:
                await anext(episodes)
                return next(drawn)

    assert asyncio.run(first()) <= 4


def test_finished_episodes_do_not_wait_for_a_slow_policy() -> None:
    async def play() -> list[int]:
        others_are_done = asyncio.Event()

        async def answer(context: TurnContext) -> str:
            if context.info["task_id"] == "door/train/5" and turn(context) == 2:
                await others_are_done.wait()
            return "knock" if turn(context) < 4 else "open"

        ended: list[int] = []
        with EnvPool(TOY, 2, "inline") as pool:
            async for episode in play_pool(pool, FunctionPolicy(answer), reversed(make_specs()), env=Bare(make(TOY))):
                ended.append(episode.difficulty)
                if len(ended) == 5:
                    others_are_done.set()
        return ended

    assert asyncio.run(play()) == [4, 3, 2, 1, 0, 5]


def test_slow_environment_does_not_delay_others(gates: Any) -> None:
    async def play() -> list[int]:
        ended: list[int] = []
        policy = FunctionPolicy(
            lambda context: gates.wait_action("gate") if turn(context) == 0 and goal_knocks(context) == 0 else "open"
        )
        with EnvPool(TOY, 2, "thread") as pool:
            async for episode in play_pool(pool, policy, make_specs(), env=Bare(make(TOY))):
                ended.append(episode.difficulty)
                if len(ended) == 5:
                    gates.open("gate")
        return ended

    assert asyncio.run(play()) == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize(("hangs", "stop"), [(1, "terminated"), (2, "failed")])
def test_task_of_a_hanging_environment_is_retried_on_a_new_one(hangs: int, stop: str, gates: Any) -> None:
    class Pool(EnvPool):
        """A pool in which only the call that never ends can miss its deadline."""

        async def call(self, slot: int, call: Call, *, deadline: float | None = None) -> Result:
            assert deadline == 60
            hangs = isinstance(call, Step) and call.action.startswith("await")
            return await super().call(slot, call, deadline=0.05 if hangs else deadline)

    remaining = itertools.count(hangs, -1)
    policy = FunctionPolicy(
        lambda context: gates.wait_action("never") if goal_knocks(context) == 3 and next(remaining) > 0 else "open"
    )
    with Pool(TOY, 1, "thread") as pool:
        episodes = asyncio.run(play_in_pool(pool, policy, make_specs(knocks=[2, 3, 4]), deadline=60))
    assert [episode.stop for episode in episodes] == ["terminated", stop, "terminated"]
    failed = episodes[1].error
    assert failed is None if stop == "terminated" else "did not answer within 0.05 seconds" in str(failed)


@pytest.mark.parametrize("action", ["raise fault", pytest.param("kill", marks=pytest.mark.long)])
def test_broken_environment_is_restarted(action: str) -> None:
    policy = FunctionPolicy(lambda context: action if len(policy.seen) == 1 else "open")
    backend = "process" if action == "kill" else "inline"
    (episode,) = play_all(policy, make_specs(knocks=[0]), 1, backend)
    assert (episode.stop, episode.score, len(episode.turns)) == ("terminated", 1.0, 1)
    assert len(set(policy.forgotten)) == len(policy.forgotten) == 2


def test_environment_that_never_starts_fails_its_episodes() -> None:
    async def play() -> list[Episode]:
        with EnvPool(SHY, 2, "inline", options={"open_today": False}) as pool:
            return await play_in_pool(pool, opener(), make_specs(), env=Bare(make(SHY)), retries=2)

    episodes = asyncio.run(play())
    assert [(e.stop, e.error, e.turns) for e in episodes] == [("failed", "EnvFault: no door today", ())] * 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_instructions_are_those_of_the_pooled_environment_after_reset(backend: str) -> None:
    env = ReAct(make(SHY))
    seen = set[str]()

    def answer(context: TurnContext) -> str:
        seen.add(context.conversation[0].content)
        return "Action: open"

    with EnvPool(SHY, 2, backend) as pool:
        episodes = asyncio.run(play_in_pool(pool, FunctionPolicy(answer), make_specs(knocks=[1, 2]), env=env))
    assert seen == {episode.instructions for episode in episodes}
    assert seen == {f"Today's number is {knocks}.\n\n{ReAct.format_instructions}" for knocks in (1, 2)}


def test_environment_is_seeded_by_the_episode_spec() -> None:
    specs = [EpisodeSpec("door/train/1", sample, seed) for sample in range(3) for seed in (3, 4)]
    with EnvPool(SHY, 3, "inline") as pool:
        episodes = asyncio.run(play_in_pool(pool, opener(), specs, env=Bare(make(SHY))))
    assert len({episode.turns[0].observation for episode in episodes}) == 2


def test_policy_exception_ends_all_episodes_and_frees_their_slots(gates: Any) -> None:
    class GoneError(Exception):
        pass

    async def answer(context: TurnContext) -> str:
        match goal_knocks(context):
            case 0:
                return gates.wait_action("never")
            case 1:
                await asyncio.Event().wait()
            case 2:
                await eventually_async(lambda: gates.reached("never"))
                raise GoneError("the engine is gone")
            case _:
                raise AssertionError("no other episode should have started")
        return "open"

    async def play() -> list[Episode]:
        policy = FunctionPolicy(answer)
        with EnvPool(TOY, 3, "thread") as pool:
            with pytest.raises(GoneError, match="the engine is gone"):
                await play_in_pool(pool, policy, make_specs())
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert set(policy.forgotten) >= set(policy.seen)
            return await play_in_pool(pool, opener(), make_specs())  # all slots are free

    assert len(asyncio.run(play())) == 6


def test_cancellation_from_within_an_episode_raises() -> None:
    async def answer(context: TurnContext) -> str:
        if goal_knocks(context) == 3:
            raise asyncio.CancelledError
        return "open"

    with pytest.raises(RuntimeError, match="says or the environment cancelled an episode"):
        play_all(FunctionPolicy(answer), make_specs())


def test_closing_the_iterator_stops_all_episodes(gates: Any) -> None:
    async def play() -> None:
        policy = FunctionPolicy(lambda context: "open" if goal_knocks(context) == 0 else gates.wait_action("never"))
        with EnvPool(TOY, 3, "thread") as pool:
            async with aclosing(play_pool(pool, policy, make_specs(), env=Bare(make(TOY)))) as episodes:
                assert (await anext(episodes)).difficulty == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert set(policy.forgotten) >= set(policy.seen)
            await pool.start(2)

    asyncio.run(play())


def test_cancelled_episode_frees_its_slot(gates: Any) -> None:
    async def play() -> None:
        policy = FunctionPolicy(lambda context: gates.wait_action("never"))
        with EnvPool(TOY, 2, "thread") as pool:
            task = asyncio.create_task(
                play_episode(PoolSlot(pool, 1, Bare(make(TOY))), policy, *make_specs(knocks=[1]))
            )
            await eventually_async(lambda: gates.reached("never"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert policy.forgotten == policy.seen
            episode = await play_episode(PoolSlot(pool, 1, Bare(make(TOY))), opener(), *make_specs(knocks=[0]))
            assert episode.success

    asyncio.run(play())


def test_only_the_given_slots_are_used() -> None:
    async def play() -> None:
        with EnvPool(TOY, 3, "inline") as pool:
            assert len(await play_in_pool(pool, opener(), make_specs(), slots=[2, 0])) == 6
            with pytest.raises(Exception, match="reset"):
                await pool.step(1, "open")

    asyncio.run(play())


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (EpisodeSpec(), {}, "names its task"),
        (EpisodeSpec("door/train/1"), {"horizon": 0}, "at least 1 turn, not 0"),
        (EpisodeSpec("door/train/1"), {"retries": -1}, "at least 0, not -1"),
    ],
    ids=str,
)
def test_invalid_specs_and_options_are_rejected(spec: EpisodeSpec, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        play_all(opener(), [spec], **options)


@pytest.mark.long
@pytest.mark.parametrize(("backend", "slots"), [("inline", 64), ("thread", 32), ("process", 2)])
def test_many_episodes_leave_nothing_behind(backend: str, slots: int) -> None:
    async def answer(context: TurnContext) -> str:
        await asyncio.sleep(0)
        return reply_at_random(context) if context.rng.random() < 0.5 else "knock"  # pyright: ignore[reportReturnType]

    async def play(samples: int) -> None:
        count = 0
        async for _ in play_pool(pool, FunctionPolicy(answer), make_specs(samples), env=env):
            count += 1
        assert count == 6 * samples
        assert asyncio.all_tasks() == {asyncio.current_task()}

    process, env = psutil.Process(), ReAct(make(TOY))
    with EnvPool(TOY, slots, backend) as pool:
        asyncio.run(play(20))
        descriptors, threads = process.num_fds(), {*threading.enumerate()}
        # In bytes; an episode that isn't released takes thousands.
        assert memory_growth(lambda: asyncio.run(play(50))) < 600 * 50
        assert {*threading.enumerate()} <= threads
        eventually(lambda: process.num_fds() <= descriptors)
