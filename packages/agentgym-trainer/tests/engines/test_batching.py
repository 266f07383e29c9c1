from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams
from agentgym_trainer.engines.batching import Batching
from counting_core import BOTH, CountingCore, ask, engine_of, load_between, run_out


@BOTH
def test_who_asks_joins_the_next_step_and_leaves_when_it_is_done(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread)

    async def twice() -> list[int]:
        first = await ask(engine, 1, 2)
        return [*first.ids, *(await ask(engine, 3, 1)).ids]

    async def play() -> list[Any]:
        return await asyncio.gather(twice(), ask(engine, 2, 4))

    assert run_out(engine, play()) == [[1, 3], Completion((2,), (-1.0,), "length", 0)]
    assert diary == [[1, 2], [1, 2], [2, 3], [2], "close"]
    assert engine.usage.prefilled == 6
    assert engine.usage.busy > 0


def test_the_core_computes_where_it_was_told_to() -> None:
    threads: list[str] = []

    class Where(CountingCore):
        def step(self) -> list[tuple[int, Completion]]:
            threads.append(threading.current_thread().name)
            return super().step()

    for in_thread in (False, True):
        engine = Batching(lambda usage: Where(usage, []), in_thread=in_thread)
        run_out(engine, ask(engine, 1, 1))
    assert threads[0] == "MainThread"
    assert threads[1].startswith("engine")


@BOTH
def test_new_weights_come_between_two_steps_of_a_reply_and_hold_up_new_ones(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread)

    assert run_out(engine, load_between(engine, diary)) == (7, 7)
    at = diary.index("load 7")
    assert 1 <= at < 50
    assert diary == [[1]] * at + ["load 7", [1, 2]] + [[1]] * (49 - at) + ["close"]
    assert engine.version == 7


@BOTH
def test_rest_waits_likewise(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread)

    async def play() -> None:
        asked = asyncio.create_task(ask(engine, 1, 2))
        while not diary:
            await asyncio.sleep(0)
        await engine.sleep()
        assert asked.done()
        await ask(engine, 2, 1)

    run_out(engine, play())
    assert diary == [[1], [1], "rest", [2], "close"]


@BOTH
def test_whom_nobody_waits_for_is_let_go(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread)

    async def play() -> None:
        asked = [asyncio.create_task(ask(engine, n, 50)) for n in (1, 2)]
        staying = asyncio.create_task(ask(engine, 3, 60))
        while not diary:
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
        assert all(task.cancelled() for task in asked)
        assert (await staying).ids == (3,)
        gone = asyncio.create_task(ask(engine, 4, 50))
        await asyncio.sleep(0)
        gone.cancel()

    run_out(engine, play())
    assert "abort 2" in diary
    assert diary[diary.index("abort 2") + 1] == [3]


@BOTH
def test_closing_ends_what_is_under_way_and_nothing_is_served_any_more(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread)

    async def play() -> None:
        asked = asyncio.create_task(ask(engine, 1, 90))
        while not diary:
            await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        for late in (asked, ask(engine, 1, 1)):
            # Not cancelled: a task group would take that for an end like any other.
            with pytest.raises(EngineGone, match="closed"):
                await late

    run_out(engine, play())
    assert diary.count("close") == 1


@pytest.mark.parametrize("when", ["admit", "step"])
def test_an_interruption_is_not_swallowed_and_leaves_nothing_half_done(when: str) -> None:
    diary: list[Any] = []

    class Interrupted(CountingCore):
        def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
            if when == "admit" and number:
                raise KeyboardInterrupt
            super().admit(number, ids, sampling)

        def step(self) -> list[tuple[int, Completion]]:
            super().step()
            raise KeyboardInterrupt

    engine = Batching(lambda usage: Interrupted(usage, diary), in_thread=False)

    async def play() -> None:
        await asyncio.gather(ask(engine, 1, 1), ask(engine, 2, 2))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(play())
    assert (engine._waiting, engine._under_way, engine._driver) == ({}, {}, None)
    with pytest.raises(EngineGone, match="in the middle of a step"):
        run_out(engine, ask(engine, 1, 1))
    assert diary[-1:] == ["close"]
    assert diary.count("close") == 1


@BOTH
def test_a_loop_that_ends_in_the_middle_leaves_the_engine_to_the_next_one(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread)

    async def leave() -> None:
        asked = [asyncio.create_task(ask(engine, 1, tokens)) for tokens in (1, 2, 50, 60)]
        await asked[1]

    asyncio.run(leave())
    assert run_out(engine, ask(engine, 5, 2)).ids == (5,)
    assert diary[-3:] == [[5], [5], "close"]


@pytest.mark.parametrize(("context", "tokens"), [(0, 1), (100, 1), (50, 51)])
def test_what_does_not_fit_is_refused(context: int, tokens: int) -> None:
    engine = engine_of([])
    with pytest.raises(ValueError, match=f"A context of {context} tokens with a budget of {tokens} .* 100 with the"):
        run_out(engine, ask(engine, context, tokens))
