"""Coroutines over a pool play the episodes that `play_many` plays, and nobody waits for anybody else."""

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
from faulty_worlds import SHY, TOY
from growth import growth
from patience import eventually, eventually_async

BACKENDS = ("inline", "thread", pytest.param("process", marks=pytest.mark.long))
WRAPPERS = {
    "told": ReAct,
    "untold": partial(ReAct, instructions=""),
    "bare": Bare,
    "with habits": partial(ReAct, scaffold=Scaffold(plan=2, window=2, reflect=2, retry=1)),
}
CUT = Reply("half a", finish="length", sample=Sample((1,), (2,), (-1.0,)))


class Says(Policy):
    """Says what a function of the seat says, and remembers who came and who left."""

    name = "says"

    def __init__(self, say: Callable[[TurnContext], str | Reply | Coroutine[Any, Any, str]]) -> None:
        self._say = say
        self.seen: list[int] = []
        self.left: list[int] = []

    async def reply(self, seat: TurnContext) -> Reply:
        if seat.key not in self.seen:
            self.seen.append(seat.key)
        said = self._say(seat)
        if isinstance(said, Coroutine):
            said = await said
        return said if isinstance(said, Reply) else Reply(said)

    def forget(self, key: int) -> None:
        self.left.append(key)


def told(seat: TurnContext) -> int:
    """How often the door wants to be knocked at."""
    return int(seat.conversation[-1].content.split()[2])


def turn(seat: TurnContext) -> int:
    return sum(message.role == "assistant" for message in seat.conversation)


def gamble(seat: TurnContext) -> str | Reply:
    """Sometimes right, sometimes malformed, sometimes cut off."""
    if (drawn := seat.rng.random()) < 0.05:
        return CUT
    if drawn < 0.1:
        return "Action: one\nAction: two"
    if drawn < 0.15:
        raise EnvFault("the player stumbled")
    return f"Thought: hm\nAction: {'knock' if drawn < 0.8 else 'open'}"


class Gambler(Policy):
    """The same policy, for environments of this process."""

    name = "says"
    needs_env = True

    async def reply(self, context: TurnContext) -> Reply:
        answer = gamble(context)
        return answer if isinstance(answer, Reply) else Reply(answer)


def jobs(samples: int = 1, knocks: Iterable[int] = range(6)) -> list[EpisodeSpec]:
    return [EpisodeSpec(f"door/train/{goal}", sample, 7) for sample in range(samples) for goal in knocks]


def bare(episodes: Iterable[Episode]) -> dict[tuple[str, int], Episode]:
    """Without times, by task and sample."""
    return {(e.task_id, e.sample): dataclasses.replace(e, seconds={}) for e in episodes}


async def episodes_of(pool: EnvPool, player: Policy, todo: Iterable[EpisodeSpec], **options: Any) -> list[Episode]:
    options.setdefault("env", Bare(make(TOY)))
    async with aclosing(play_pool(pool, player, todo, **options)) as episodes:
        return [episode async for episode in episodes]


def played(
    player: Policy, todo: Iterable[EpisodeSpec], slots: int = 3, backend: str = "inline", **options: Any
) -> list[Episode]:
    with EnvPool(TOY, slots, backend) as pool:
        return asyncio.run(episodes_of(pool, player, todo, **options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=list(WRAPPERS))
def test_the_episodes_are_those_of_play_many(backend: str, wrapper: Callable[[Any], ReplyWrapper]) -> None:
    envs = [wrapper(make(TOY)) for _ in range(4)]
    expected = bare(play_many(envs[0], Gambler(), jobs(12), horizon=5))
    found = played(Says(gamble), jobs(12), 2 if backend == "process" else 5, backend, env=wrapper(make(TOY)), horizon=5)
    assert len(found) == 72
    assert bare(found) == expected
    assert {episode.stop for episode in found} >= {"terminated", "truncated", "length", "failed"} - (
        {"terminated"} if wrapper is Bare else set()
    )


def test_without_waiting_worlds_and_players_the_order_is_always_the_same() -> None:
    def order(slots: int) -> list[tuple[str, int]]:
        return [(e.task_id, e.sample) for e in played(Says(gamble), jobs(5), slots, env=ReAct(make(TOY)))]

    assert order(4) == order(4)
    assert sorted(order(4)) == sorted(order(1))


def test_episodes_come_as_they_end_also_when_nobody_ever_waits() -> None:
    drawn = itertools.count()

    async def first() -> int:
        todo = (job for job in jobs(50) if next(drawn) >= 0)
        with EnvPool(TOY, 2, "inline") as pool:
            async with aclosing(play_pool(pool, Says(lambda seat: "open"), todo, env=Bare(make(TOY)))) as episodes:
                await anext(episodes)
                return next(drawn)

    assert asyncio.run(first()) <= 4


def test_the_first_end_waits_for_no_other_player() -> None:
    async def play() -> list[int]:
        others_are_done = asyncio.Event()

        async def say(seat: TurnContext) -> str:
            if seat.info["task_id"] == "door/train/5" and turn(seat) == 2:
                await others_are_done.wait()
            return "knock" if turn(seat) < 4 else "open"

        ended: list[int] = []
        with EnvPool(TOY, 2, "inline") as pool:
            async for episode in play_pool(pool, Says(say), reversed(jobs()), env=Bare(make(TOY))):
                ended.append(episode.difficulty)
                if len(ended) == 5:
                    others_are_done.set()
        return ended

    assert asyncio.run(play()) == [4, 3, 2, 1, 0, 5]


def test_a_slow_world_holds_up_nobody(gates: Any) -> None:
    async def play() -> list[int]:
        ended: list[int] = []
        player = Says(lambda seat: gates.closed("gate") if turn(seat) == 0 and told(seat) == 0 else "open")
        with EnvPool(TOY, 2, "thread") as pool:
            async for episode in play_pool(pool, player, jobs(), env=Bare(make(TOY))):
                ended.append(episode.difficulty)
                if len(ended) == 5:
                    gates.open("gate")
        return ended

    assert asyncio.run(play()) == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize(("hangs", "stop"), [(1, "terminated"), (2, "failed")])
def test_a_world_that_hangs_is_abandoned_and_the_task_retried_on_a_fresh_one(hangs: int, stop: str, gates: Any) -> None:
    class Pool(EnvPool):
        """Only the call that never ends has a deadline to miss."""

        async def call(self, slot: int, call: Call, *, deadline: float | None = None) -> Result:
            assert deadline == 60
            hangs = isinstance(call, Step) and call.action.startswith("await")
            return await super().call(slot, call, deadline=0.05 if hangs else deadline)

    left = itertools.count(hangs, -1)
    player = Says(lambda seat: gates.closed("never") if told(seat) == 3 and next(left) > 0 else "open")
    with Pool(TOY, 1, "thread") as pool:
        episodes = asyncio.run(episodes_of(pool, player, jobs(knocks=[2, 3, 4]), deadline=60))
    assert [episode.stop for episode in episodes] == ["terminated", stop, "terminated"]
    failed = episodes[1].error
    assert failed is None if stop == "terminated" else "did not answer within 0.05 seconds" in str(failed)


@pytest.mark.parametrize("action", ["raise fault", pytest.param("kill", marks=pytest.mark.long)])
def test_a_world_that_breaks_is_begun_again(action: str) -> None:
    player = Says(lambda seat: action if len(player.seen) == 1 else "open")
    backend = "process" if action == "kill" else "inline"
    (episode,) = played(player, jobs(knocks=[0]), 1, backend)
    assert (episode.stop, episode.score, len(episode.turns)) == ("terminated", 1.0, 1)
    assert len(set(player.left)) == len(player.left) == 2


def test_a_world_that_never_begins_fails_its_jobs_with_the_reason() -> None:
    async def play() -> list[Episode]:
        with EnvPool(SHY, 2, "inline", options={"open_today": False}) as pool:
            return await episodes_of(pool, Says(lambda seat: "open"), jobs(), env=Bare(make(SHY)), retries=2)

    episodes = asyncio.run(play())
    assert [(e.stop, e.error, e.turns) for e in episodes] == [("failed", "EnvFault: no door today", ())] * 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_instructions_that_a_world_has_after_reset_are_those_of_the_world_that_is_played(backend: str) -> None:
    world = ReAct(make(SHY))
    seen = set[str]()

    def say(seat: TurnContext) -> str:
        seen.add(seat.conversation[0].content)
        return "Action: open"

    with EnvPool(SHY, 2, backend) as pool:
        episodes = asyncio.run(episodes_of(pool, Says(say), jobs(knocks=[1, 2]), env=world))
    assert seen == {episode.instructions for episode in episodes}
    assert seen == {f"Today's number is {knocks}.\n\n{ReAct.format_instructions}" for knocks in (1, 2)}


def test_the_world_draws_with_the_seed_of_the_job() -> None:
    todo = [EpisodeSpec("door/train/1", sample, seed) for sample in range(3) for seed in (3, 4)]
    with EnvPool(SHY, 3, "inline") as pool:
        episodes = asyncio.run(episodes_of(pool, Says(lambda seat: "open"), todo, env=Bare(make(SHY))))
    assert len({episode.turns[0].observation for episode in episodes}) == 2


def test_any_other_error_of_a_player_ends_it_all_and_leaves_nothing_behind(gates: Any) -> None:
    class GoneError(Exception):
        pass

    async def say(seat: TurnContext) -> str:
        match told(seat):
            case 0:
                return gates.closed("never")
            case 1:
                await asyncio.Event().wait()
            case 2:
                await eventually_async(lambda: gates.reached("never"))
                raise GoneError("the engine is gone")
            case _:
                raise AssertionError("nobody else is asked")
        return "open"

    async def play() -> list[Episode]:
        player = Says(say)
        with EnvPool(TOY, 3, "thread") as pool:
            with pytest.raises(GoneError, match="the engine is gone"):
                await episodes_of(pool, player, jobs())
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert set(player.left) >= set(player.seen)
            return await episodes_of(pool, Says(lambda seat: "open"), jobs())  # all slots are free

    assert len(asyncio.run(play())) == 6


def test_an_episode_that_is_cancelled_from_within_is_no_end_like_any_other() -> None:
    async def say(seat: TurnContext) -> str:
        if told(seat) == 3:
            raise asyncio.CancelledError
        return "open"

    with pytest.raises(RuntimeError, match="says or the environment cancelled an episode"):
        played(Says(say), jobs())


def test_who_stops_listening_stops_the_play(gates: Any) -> None:
    async def play() -> None:
        player = Says(lambda seat: "open" if told(seat) == 0 else gates.closed("never"))
        with EnvPool(TOY, 3, "thread") as pool:
            async with aclosing(play_pool(pool, player, jobs(), env=Bare(make(TOY)))) as episodes:
                assert (await anext(episodes)).difficulty == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert set(player.left) >= set(player.seen)
            await pool.start(2)

    asyncio.run(play())


def test_a_cancelled_episode_frees_its_slot(gates: Any) -> None:
    async def play() -> None:
        player = Says(lambda seat: gates.closed("never"))
        with EnvPool(TOY, 2, "thread") as pool:
            one = asyncio.create_task(play_episode(PoolSlot(pool, 1, Bare(make(TOY))), player, *jobs(knocks=[1])))
            await eventually_async(lambda: gates.reached("never"))
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
            assert player.left == player.seen
            episode = await play_episode(PoolSlot(pool, 1, Bare(make(TOY))), Says(lambda _: "open"), *jobs(knocks=[0]))
            assert episode.success

    asyncio.run(play())


def test_only_the_slots_that_are_named_are_played_in() -> None:
    async def play() -> None:
        with EnvPool(TOY, 3, "inline") as pool:
            assert len(await episodes_of(pool, Says(lambda seat: "open"), jobs(), slots=[2, 0])) == 6
            with pytest.raises(Exception, match="reset"):
                await pool.step(1, "open")

    asyncio.run(play())


@pytest.mark.parametrize(
    ("job", "options", "sentence"),
    [
        (EpisodeSpec(), {}, "names its task"),
        (EpisodeSpec("door/train/1"), {"horizon": 0}, "at least 1 turn, not 0"),
        (EpisodeSpec("door/train/1"), {"retries": -1}, "at least 0, not -1"),
    ],
    ids=str,
)
def test_what_can_not_be_played_is_refused(job: EpisodeSpec, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        played(Says(lambda seat: "open"), [job], **options)


@pytest.mark.long
@pytest.mark.parametrize(("backend", "slots"), [("inline", 64), ("thread", 32), ("process", 2)])
def test_many_episodes_leave_nothing_behind(backend: str, slots: int) -> None:
    async def say(seat: TurnContext) -> str:
        await asyncio.sleep(0)
        return gamble(seat) if seat.rng.random() < 0.5 else "knock"  # pyright: ignore[reportReturnType]

    async def play(samples: int) -> None:
        count = 0
        async for _ in play_pool(pool, Says(say), jobs(samples), env=world):
            count += 1
        assert count == 6 * samples
        assert asyncio.all_tasks() == {asyncio.current_task()}

    process, world = psutil.Process(), ReAct(make(TOY))
    with EnvPool(TOY, slots, backend) as pool:
        asyncio.run(play(20))
        descriptors, threads = process.num_fds(), {*threading.enumerate()}
        assert growth(lambda: asyncio.run(play(50))) < 600 * 50  # bytes; an episode that is kept has thousands
        assert {*threading.enumerate()} <= threads
        eventually(lambda: process.num_fds() <= descriptors)
