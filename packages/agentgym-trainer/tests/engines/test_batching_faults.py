from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.base import Completion, EngineGone, EngineUsage, Weights
from agentgym_trainer.engines.batching import Batching
from counting_core import (
    WEIGHTS,
    CountingCore,
    counting_engine,
    generate,
    load_while_sampling,
    run_and_close,
    with_and_without_thread,
)
from patience import PATIENCE, eventually_async


@with_and_without_thread
def test_failed_core_is_rebuilt_and_requests_are_replayed(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread, fails_at=[lambda step: step == 3])

    async def scenario() -> list[Completion]:
        await engine.load(WEIGHTS)
        return await asyncio.gather(generate(engine, 1, 4), generate(engine, 2, 1), generate(engine, 3, 3))

    completions = run_and_close(engine, scenario())
    assert [c.ids for c in completions] == [(1,), (2,), (3,)]
    assert {c.version for c in completions} == {7}
    until_failure = ["load 7", [1, 2, 3], [1, 3], [1, 3], "close"]
    assert log == [*until_failure, "load 7", [1, 3], [1, 3], [1, 3], [1], "close"]


@with_and_without_thread
def test_rebuilt_core_may_fail_again_after_a_completion(in_thread: bool) -> None:
    engine = counting_engine([], in_thread=in_thread, fails_at=[lambda step: step == 2, lambda step: step == 3])

    async def scenario() -> list[Completion]:
        return await asyncio.gather(generate(engine, 1, 2), generate(engine, 2, 4))

    assert [c.ids for c in run_and_close(engine, scenario())] == [(1,), (2,)]


@with_and_without_thread
def test_second_failure_without_a_completion_ends_the_engine(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread, fails_at=[lambda step: step == 2, lambda step: step == 1])

    async def scenario() -> list[Any]:
        requests = [generate(engine, n, 5) for n in (1, 2)]
        errors = await asyncio.gather(*requests, return_exceptions=True)
        for later in (generate(engine, 1, 1), engine.load(WEIGHTS), engine.sleep()):
            with pytest.raises(EngineGone, match="died again"):
                await later
        return errors

    for error in run_and_close(engine, scenario()):
        assert isinstance(error, EngineGone)
        assert "the core is cold" in str(error)
        assert isinstance(error.__cause__, OSError)
    assert log.count("close") == 2


@with_and_without_thread
def test_core_without_memory_has_freed_its_tensors_when_it_is_rebuilt(in_thread: bool) -> None:
    taken: list[weakref.ref[Any]] = []

    class Full(CountingCore):
        def step(self) -> list[tuple[int, Completion]]:
            if taken:
                return super().step()
            cache = torch.zeros(8)
            taken.append(weakref.ref(cache))
            raise torch.OutOfMemoryError(f"No memory beside {len(cache)} numbers")

    def make(usage: EngineUsage) -> CountingCore:
        assert [cache() for cache in taken] in ([], [None])
        return Full(usage, [])

    engine = Batching(make, in_thread=in_thread)
    assert run_and_close(engine, generate(engine, 1, 2)).ids == (1,)
    assert taken


@with_and_without_thread
def test_running_requests_restart_if_load_fails(in_thread: bool) -> None:
    log: list[Any] = []
    engine = Batching(lambda usage: _FailsInFirstLoad(usage, log), in_thread=in_thread)

    assert run_and_close(engine, load_while_sampling(engine, log)) == (7, 7)
    steps_before = log.index("load 7")
    assert log == [[1]] * steps_before + ["load 7", "close", "load 7", [1, 2]] + [[1]] * 49 + ["close"]


@with_and_without_thread
@pytest.mark.parametrize("times", [1, 2])
def test_core_that_fails_in_sleep_is_rebuilt_once(in_thread: bool, times: int) -> None:
    log: list[Any] = []

    class FailsInSleep(CountingCore):
        def sleep(self) -> None:
            super().sleep()
            if log.count("rest") <= times:
                raise OSError("bad dreams")

    engine = Batching(lambda usage: FailsInSleep(usage, log), in_thread=in_thread)

    async def scenario() -> int:
        await engine.load(WEIGHTS)
        await engine.sleep()
        return (await generate(engine, 1, 1)).version

    if times == 1:
        assert run_and_close(engine, scenario()) == 7
    else:
        with pytest.raises(EngineGone, match="bad dreams"):
            run_and_close(engine, scenario())
    assert log == ["load 7", "rest", "close", "load 7", "rest", *([[1]] if times == 1 else []), "close"]


@with_and_without_thread
def test_rebuilt_core_that_cannot_load_weights_is_closed(in_thread: bool) -> None:
    log: list[Any] = []

    class FailsInLoad(CountingCore):
        def load(self, weights: Weights) -> None:
            super().load(weights)
            raise OSError("not these")

    engine = Batching(lambda usage: FailsInLoad(usage, log), in_thread=in_thread)
    with pytest.raises(EngineGone, match="not these"):
        run_and_close(engine, engine.load(WEIGHTS))
    assert log == ["load 7", "close", "load 7", "close"]


def test_close_during_a_rebuild_closes_the_new_core() -> None:
    log: list[Any] = []
    rebuilding, may_finish = threading.Event(), threading.Event()

    def make(usage: EngineUsage) -> CountingCore:
        if log:
            rebuilding.set()
            assert may_finish.wait(PATIENCE)
        log.append("made")
        return CountingCore(usage, log, fails_at=lambda _: True)

    engine = Batching(make, in_thread=True)

    async def scenario() -> None:
        request = asyncio.create_task(generate(engine, 1, 1))
        await eventually_async(rebuilding.is_set)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        may_finish.set()
        await closing
        with pytest.raises(EngineGone):
            await request

    run_and_close(engine, scenario())
    assert log == ["made", [1], "close", "made", "abort 1", "close"]


def test_engine_ends_if_the_core_cannot_be_rebuilt() -> None:
    calls: list[int] = []

    def make(usage: EngineUsage) -> CountingCore:
        calls.append(1)
        if len(calls) > 1:
            raise MemoryError("no room")
        return CountingCore(usage, [], fails_at=lambda _: True)

    engine = Batching(make, in_thread=False)
    with pytest.raises(EngineGone, match="no room"):
        run_and_close(engine, generate(engine, 1, 1))


def test_core_that_fails_in_load_is_rebuilt_with_the_weights() -> None:
    log: list[Any] = []

    engine = Batching(lambda usage: _FailsInFirstLoad(usage, log), in_thread=False)

    async def scenario() -> Completion:
        await engine.load(WEIGHTS)
        return await generate(engine, 1, 1)

    assert run_and_close(engine, scenario()).version == 7
    assert log == ["load 7", "close", "load 7", [1], "close"]


class _FailsInFirstLoad(CountingCore):
    """Fails in the first `load` of all cores that share a log."""

    def load(self, weights: Weights) -> None:
        super().load(weights)
        if self.log.count("load 7") == 1:
            raise OSError("dropped them")
