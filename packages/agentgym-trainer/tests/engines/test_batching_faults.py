from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from agentgym_trainer.engines.base import Completion, EngineGone, EngineUsage, Weights
from agentgym_trainer.engines.batching import Batching
from counting_core import BOTH, WEIGHTS, CountingCore, ask, engine_of, load_between, run_out
from patience import PATIENCE, eventually_async


@BOTH
def test_a_core_that_dies_is_made_anew_once_and_everything_played_again(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread, dies=[lambda step: step == 3])

    async def play() -> list[Completion]:
        await engine.load(WEIGHTS)
        return await asyncio.gather(ask(engine, 1, 4), ask(engine, 2, 1), ask(engine, 3, 3))

    completions = run_out(engine, play())
    assert [c.ids for c in completions] == [(1,), (2,), (3,)]
    assert {c.version for c in completions} == {7}
    died = ["load 7", [1, 2, 3], [1, 3], [1, 3], "close"]
    assert diary == [*died, "load 7", [1, 3], [1, 3], [1, 3], [1], "close"]


@BOTH
def test_a_core_that_has_completed_something_may_die_again(in_thread: bool) -> None:
    engine = engine_of([], in_thread=in_thread, dies=[lambda step: step == 2, lambda step: step == 3])

    async def play() -> list[Completion]:
        return await asyncio.gather(ask(engine, 1, 2), ask(engine, 2, 4))

    assert [c.ids for c in run_out(engine, play())] == [(1,), (2,)]


@BOTH
def test_a_core_that_dies_again_is_gone_for_all(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = engine_of(diary, in_thread=in_thread, dies=[lambda step: step == 2, lambda step: step == 1])

    async def play() -> list[Any]:
        asked = [ask(engine, n, 5) for n in (1, 2)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for later in (ask(engine, 1, 1), engine.load(WEIGHTS), engine.sleep()):
            with pytest.raises(EngineGone, match="died again"):
                await later
        return answers

    for answer in run_out(engine, play()):
        assert isinstance(answer, EngineGone)
        assert "the core is cold" in str(answer)
        assert isinstance(answer.__cause__, OSError)
    assert diary.count("close") == 2


@BOTH
def test_replies_under_way_are_begun_again_by_a_core_that_new_weights_have_made_necessary(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = Batching(lambda usage: _Clumsy(usage, diary), in_thread=in_thread)

    assert run_out(engine, load_between(engine, diary)) == (7, 7)
    at = diary.index("load 7")
    assert diary == [[1]] * at + ["load 7", "close", "load 7", [1, 2]] + [[1]] * 49 + ["close"]


@BOTH
@pytest.mark.parametrize("times", [1, 2])
def test_a_core_that_dies_at_rest_is_made_anew_and_put_to_rest(in_thread: bool, times: int) -> None:
    diary: list[Any] = []

    class Restless(CountingCore):
        def sleep(self) -> None:
            super().sleep()
            if diary.count("rest") <= times:
                raise OSError("bad dreams")

    engine = Batching(lambda usage: Restless(usage, diary), in_thread=in_thread)

    async def play() -> int:
        await engine.load(WEIGHTS)
        await engine.sleep()
        return (await ask(engine, 1, 1)).version

    if times == 1:
        assert run_out(engine, play()) == 7
    else:
        with pytest.raises(EngineGone, match="bad dreams"):
            run_out(engine, play())
    assert diary == ["load 7", "rest", "close", "load 7", "rest", *([[1]] if times == 1 else []), "close"]


@BOTH
def test_a_core_made_anew_that_does_not_take_the_weights_is_closed(in_thread: bool) -> None:
    diary: list[Any] = []

    class Picky(CountingCore):
        def load(self, weights: Weights) -> None:
            super().load(weights)
            raise OSError("not these")

    engine = Batching(lambda usage: Picky(usage, diary), in_thread=in_thread)
    with pytest.raises(EngineGone, match="not these"):
        run_out(engine, engine.load(WEIGHTS))
    assert diary == ["load 7", "close", "load 7", "close"]


def test_closing_in_the_middle_of_making_a_core_anew_closes_that_one() -> None:
    diary: list[Any] = []
    making, go_on = threading.Event(), threading.Event()

    def make(usage: EngineUsage) -> CountingCore:
        if diary:
            making.set()
            assert go_on.wait(PATIENCE)
        diary.append("made")
        return CountingCore(usage, diary, dies=lambda _: True)

    engine = Batching(make, in_thread=True)

    async def play() -> None:
        asked = asyncio.create_task(ask(engine, 1, 1))
        await eventually_async(making.is_set)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        with pytest.raises(EngineGone):
            await asked

    run_out(engine, play())
    assert diary == ["made", [1], "close", "made", "abort 1", "close"]


def test_a_core_that_can_not_be_made_anew_is_gone_too() -> None:
    made: list[int] = []

    def make(usage: EngineUsage) -> CountingCore:
        made.append(1)
        if len(made) > 1:
            raise MemoryError("no room")
        return CountingCore(usage, [], dies=lambda _: True)

    engine = Batching(make, in_thread=False)
    with pytest.raises(EngineGone, match="no room"):
        run_out(engine, ask(engine, 1, 1))


def test_a_core_that_dies_of_new_weights_gets_them_again() -> None:
    diary: list[Any] = []

    engine = Batching(lambda usage: _Clumsy(usage, diary), in_thread=False)

    async def play() -> Completion:
        await engine.load(WEIGHTS)
        return await ask(engine, 1, 1)

    assert run_out(engine, play()).version == 7
    assert diary == ["load 7", "close", "load 7", [1], "close"]


class _Clumsy(CountingCore):
    """Dies of the first weights that any such core is given."""

    def load(self, weights: Weights) -> None:
        super().load(weights)
        if self.diary.count("load 7") == 1:
            raise OSError("dropped them")
