from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import pytest
from agentgym_trainer.engines import Completion, EngineGone, Sampling, Usage, Weights
from agentgym_trainer.engines.batching import Batching

WEIGHTS = Weights(7, lambda: iter(()))
BOTH = pytest.mark.parametrize("in_thread", [False, True])


class CountingCore:
    """Says the length of the context, one token a step, as often as it may. What it has done is written down."""

    max_context = 100

    def __init__(self, usage: Usage, diary: list[Any], *, dies: Callable[[int], bool] = lambda _: False) -> None:
        self.usage = usage
        self.diary = diary
        self.dies = dies
        self.version = 0
        self.steps = 0
        self.going: dict[int, tuple[int, int]] = {}

    def admit(self, number: int, ids: Sequence[int], sampling: Sampling) -> None:
        self.going[number] = len(ids), sampling.max_tokens
        self.usage.prefilled += len(ids)

    def step(self) -> list[tuple[int, Completion]]:
        assert self.going
        self.steps += 1
        self.diary.append(sorted(said for said, _ in self.going.values()))
        if self.dies(self.steps):
            raise OSError("the core is cold")
        done: list[tuple[int, Completion]] = []
        for number, (said, left) in self.going.items():
            self.going[number] = said, left - 1
            if left == 1:
                done.append((number, Completion((said,), (-1.0,), "length", self.version)))
        for number, _ in done:
            del self.going[number]
        return done

    def abort(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self.going.pop(number, None)
        self.diary.append(f"abort {len(numbers)}")

    def load(self, weights: Weights) -> None:
        assert not self.going
        self.version = weights.version
        self.diary.append(f"load {weights.version}")

    def rest(self) -> None:
        assert not self.going
        self.diary.append("rest")

    def close(self) -> None:
        self.diary.append("close")


def _engine(diary: list[Any], *, in_thread: bool = False, dies: Sequence[Callable[[int], bool]] = ()) -> Batching:
    """An engine of cores that die one after the other, each in its own way, and then of one that doesn't."""
    coming = iter(dies)
    return Batching(lambda usage: CountingCore(usage, diary, dies=next(coming, lambda _: False)), in_thread=in_thread)


async def _ask(engine: Batching, context: int, tokens: int) -> Completion:
    return await engine.generate((5,) * context, Sampling(max_tokens=tokens))


def _run(engine: Batching, play: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns; and that nothing is left behind."""

    async def main() -> Any:
        try:
            return await play
        finally:
            await engine.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert (engine._waiting, engine._under_way, engine._driver) == ({}, {}, None)

    return asyncio.run(main())


@BOTH
def test_who_asks_joins_the_next_step_and_leaves_when_it_is_done(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread)

    async def twice() -> list[int]:
        first = await _ask(engine, 1, 2)
        return [*first.ids, *(await _ask(engine, 3, 1)).ids]

    async def play() -> list[Any]:
        return await asyncio.gather(twice(), _ask(engine, 2, 4))

    assert _run(engine, play()) == [[1, 3], Completion((2,), (-1.0,), "length", 0)]
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
        _run(engine, _ask(engine, 1, 1))
    assert threads[0] == "MainThread"
    assert threads[1].startswith("engine")


@BOTH
def test_new_weights_wait_for_replies_under_way_and_hold_up_new_ones(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread)

    async def play() -> tuple[int, int]:
        early = asyncio.create_task(_ask(engine, 1, 3))
        while not diary:
            await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load(WEIGHTS))
        await asyncio.sleep(0)
        late = asyncio.create_task(_ask(engine, 2, 1))
        await loading
        return (await early).version, (await late).version

    assert _run(engine, play()) == (0, 7)
    assert diary == [[1], [1], [1], "load 7", [2], "close"]
    assert engine.version == 7


@BOTH
def test_rest_waits_likewise(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread)

    async def play() -> None:
        asked = asyncio.create_task(_ask(engine, 1, 2))
        while not diary:
            await asyncio.sleep(0)
        await engine.rest()
        assert asked.done()
        await _ask(engine, 2, 1)

    _run(engine, play())
    assert diary == [[1], [1], "rest", [2], "close"]


@BOTH
def test_whom_nobody_waits_for_is_let_go(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread)

    async def play() -> None:
        asked = [asyncio.create_task(_ask(engine, n, 50)) for n in (1, 2)]
        staying = asyncio.create_task(_ask(engine, 3, 60))
        while not diary:
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
        assert all(task.cancelled() for task in asked)
        assert (await staying).ids == (3,)
        gone = asyncio.create_task(_ask(engine, 4, 50))
        await asyncio.sleep(0)
        gone.cancel()

    _run(engine, play())
    assert "abort 2" in diary
    assert diary[diary.index("abort 2") + 1] == [3]


@BOTH
def test_a_core_that_dies_is_made_anew_once_and_everything_played_again(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread, dies=[lambda step: step == 3])

    async def play() -> list[Completion]:
        await engine.load(WEIGHTS)
        return await asyncio.gather(_ask(engine, 1, 4), _ask(engine, 2, 1), _ask(engine, 3, 3))

    completions = _run(engine, play())
    assert [c.ids for c in completions] == [(1,), (2,), (3,)]
    assert {c.version for c in completions} == {7}
    died = ["load 7", [1, 2, 3], [1, 3], [1, 3], "close"]
    assert diary == [*died, "load 7", [1, 3], [1, 3], [1, 3], [1], "close"]


@BOTH
def test_a_core_that_has_completed_something_may_die_again(in_thread: bool) -> None:
    engine = _engine([], in_thread=in_thread, dies=[lambda step: step == 2, lambda step: step == 3])

    async def play() -> list[Completion]:
        return await asyncio.gather(_ask(engine, 1, 2), _ask(engine, 2, 4))

    assert [c.ids for c in _run(engine, play())] == [(1,), (2,)]


@BOTH
def test_a_core_that_dies_again_is_gone_for_all(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread, dies=[lambda step: step == 2, lambda step: step == 1])

    async def play() -> list[Any]:
        asked = [_ask(engine, n, 5) for n in (1, 2)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for later in (_ask(engine, 1, 1), engine.load(WEIGHTS), engine.rest()):
            with pytest.raises(EngineGone, match="died again"):
                await later
        return answers

    for answer in _run(engine, play()):
        assert isinstance(answer, EngineGone)
        assert "the core is cold" in str(answer)
        assert isinstance(answer.__cause__, OSError)
    assert diary.count("close") == 2


@BOTH
def test_replies_under_way_are_played_again_with_the_old_weights_also_when_new_ones_wait(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread, dies=[lambda step: step == 2])

    async def play() -> tuple[int, int]:
        early = asyncio.create_task(_ask(engine, 1, 3))
        while not diary:
            await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load(WEIGHTS))
        await asyncio.sleep(0)
        late = asyncio.create_task(_ask(engine, 2, 1))
        await loading
        return (await early).version, (await late).version

    assert _run(engine, play()) == (0, 7)
    assert diary == [[1], [1], "close", [1], [1], [1], "load 7", [2], "close"]


@BOTH
@pytest.mark.parametrize("times", [1, 2])
def test_a_core_that_dies_at_rest_is_made_anew_and_put_to_rest(in_thread: bool, times: int) -> None:
    diary: list[Any] = []

    class Restless(CountingCore):
        def rest(self) -> None:
            super().rest()
            if diary.count("rest") <= times:
                raise OSError("bad dreams")

    engine = Batching(lambda usage: Restless(usage, diary), in_thread=in_thread)

    async def play() -> int:
        await engine.load(WEIGHTS)
        await engine.rest()
        return (await _ask(engine, 1, 1)).version

    if times == 1:
        assert _run(engine, play()) == 7
    else:
        with pytest.raises(EngineGone, match="bad dreams"):
            _run(engine, play())
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
        _run(engine, engine.load(WEIGHTS))
    assert diary == ["load 7", "close", "load 7", "close"]


def test_closing_in_the_middle_of_making_a_core_anew_closes_that_one() -> None:
    diary: list[Any] = []
    making, go_on = threading.Event(), threading.Event()

    def make(usage: Usage) -> CountingCore:
        if diary:
            making.set()
            assert go_on.wait(60)
        diary.append("made")
        return CountingCore(usage, diary, dies=lambda _: True)

    engine = Batching(make, in_thread=True)

    async def play() -> None:
        asked = asyncio.create_task(_ask(engine, 1, 1))
        while not making.is_set():
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        with pytest.raises(EngineGone):
            await asked

    _run(engine, play())
    assert diary == ["made", [1], "close", "made", "abort 1", "close"]


def test_a_core_that_can_not_be_made_anew_is_gone_too() -> None:
    made: list[int] = []

    def make(usage: Usage) -> CountingCore:
        made.append(1)
        if len(made) > 1:
            raise MemoryError("no room")
        return CountingCore(usage, [], dies=lambda _: True)

    engine = Batching(make, in_thread=False)
    with pytest.raises(EngineGone, match="no room"):
        _run(engine, _ask(engine, 1, 1))


def test_a_core_that_dies_of_new_weights_gets_them_again() -> None:
    diary: list[Any] = []

    class Clumsy(CountingCore):
        def load(self, weights: Weights) -> None:
            super().load(weights)
            if diary.count("load 7") == 1:
                raise OSError("dropped them")

    engine = Batching(lambda usage: Clumsy(usage, diary), in_thread=False)

    async def play() -> Completion:
        await engine.load(WEIGHTS)
        return await _ask(engine, 1, 1)

    assert _run(engine, play()).version == 7
    assert diary == ["load 7", "close", "load 7", [1], "close"]


@BOTH
def test_closing_ends_what_is_under_way_and_nothing_is_served_any_more(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread)

    async def play() -> None:
        asked = asyncio.create_task(_ask(engine, 1, 90))
        while not diary:
            await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        for late in (asked, _ask(engine, 1, 1)):
            # Not cancelled: a task group would take that for an end like any other.
            with pytest.raises(EngineGone, match="closed"):
                await late

    _run(engine, play())
    assert diary.count("close") == 1


@pytest.mark.parametrize("when", ["admit", "step"])
def test_an_interruption_is_not_swallowed_and_leaves_nothing_half_done(when: str) -> None:
    diary: list[Any] = []

    class Interrupted(CountingCore):
        def admit(self, number: int, ids: Sequence[int], sampling: Sampling) -> None:
            if when == "admit" and number:
                raise KeyboardInterrupt
            super().admit(number, ids, sampling)

        def step(self) -> list[tuple[int, Completion]]:
            super().step()
            raise KeyboardInterrupt

    engine = Batching(lambda usage: Interrupted(usage, diary), in_thread=False)

    async def play() -> None:
        await asyncio.gather(_ask(engine, 1, 1), _ask(engine, 2, 2))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(play())
    assert (engine._waiting, engine._under_way, engine._driver) == ({}, {}, None)
    with pytest.raises(EngineGone, match="in the middle of a step"):
        _run(engine, _ask(engine, 1, 1))
    assert diary[-1:] == ["close"]
    assert diary.count("close") == 1


@BOTH
def test_a_loop_that_ends_in_the_middle_leaves_the_engine_to_the_next_one(in_thread: bool) -> None:
    diary: list[Any] = []
    engine = _engine(diary, in_thread=in_thread)

    async def leave() -> None:
        asked = [asyncio.create_task(_ask(engine, 1, tokens)) for tokens in (1, 2, 50, 60)]
        await asked[1]

    asyncio.run(leave())
    assert _run(engine, _ask(engine, 5, 2)).ids == (5,)
    assert diary[-3:] == [[5], [5], "close"]


@pytest.mark.parametrize(("context", "tokens"), [(0, 1), (100, 1), (50, 51)])
def test_what_does_not_fit_is_refused(context: int, tokens: int) -> None:
    engine = _engine([])
    with pytest.raises(ValueError, match=f"A context of {context} tokens with a budget of {tokens} .* 100 with the"):
        _run(engine, _ask(engine, context, tokens))
