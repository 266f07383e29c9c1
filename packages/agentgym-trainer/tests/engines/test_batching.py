from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams
from agentgym_trainer.engines.batching import Batching
from counting_core import (
    CountingCore,
    counting_engine,
    generate,
    load_while_sampling,
    run_and_close,
    with_and_without_thread,
)


@with_and_without_thread
def test_requests_join_the_next_step_and_leave_when_done(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread)

    async def two_requests() -> list[int]:
        first = await generate(engine, 1, 2)
        return [*first.ids, *(await generate(engine, 3, 1)).ids]

    async def scenario() -> list[Any]:
        return await asyncio.gather(two_requests(), generate(engine, 2, 4))

    assert run_and_close(engine, scenario()) == [[1, 3], Completion((2,), (-1.0,), "length", 0)]
    assert log == [[1, 2], [1, 2], [2, 3], [2], "close"]
    assert engine.usage.prefilled == 6
    assert engine.usage.busy > 0


def test_core_runs_in_the_configured_thread() -> None:
    threads: list[str] = []

    class ThreadRecorder(CountingCore):
        def step(self) -> list[tuple[int, Completion]]:
            threads.append(threading.current_thread().name)
            return super().step()

    for in_thread in (False, True):
        engine = Batching(lambda usage: ThreadRecorder(usage, []), in_thread=in_thread)
        run_and_close(engine, generate(engine, 1, 1))
    assert threads[0] == "MainThread"
    assert threads[1].startswith("engine")


@with_and_without_thread
def test_load_runs_between_steps_and_delays_new_requests(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread)

    assert run_and_close(engine, load_while_sampling(engine, log)) == (7, 7)
    steps_before = log.index("load 7")
    assert 1 <= steps_before < 50
    assert log == [[1]] * steps_before + ["load 7", [1, 2]] + [[1]] * (49 - steps_before) + ["close"]
    assert engine.version == 7


@with_and_without_thread
def test_sleep_waits_for_running_requests(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread)

    async def scenario() -> None:
        request = asyncio.create_task(generate(engine, 1, 2))
        while not log:
            await asyncio.sleep(0)
        await engine.sleep()
        assert request.done()
        await generate(engine, 2, 1)

    run_and_close(engine, scenario())
    assert log == [[1], [1], "rest", [2], "close"]


@with_and_without_thread
def test_cancelled_requests_are_aborted(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread)

    async def scenario() -> None:
        cancelled = [asyncio.create_task(generate(engine, n, 50)) for n in (1, 2)]
        remaining = asyncio.create_task(generate(engine, 3, 60))
        while not log:
            await asyncio.sleep(0)
        for task in cancelled:
            task.cancel()
        await asyncio.wait(cancelled)
        assert all(task.cancelled() for task in cancelled)
        assert (await remaining).ids == (3,)
        late = asyncio.create_task(generate(engine, 4, 50))
        await asyncio.sleep(0)
        late.cancel()

    run_and_close(engine, scenario())
    assert "abort 2" in log
    assert log[log.index("abort 2") + 1] == [3]


@with_and_without_thread
def test_close_fails_running_and_later_requests(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread)

    async def scenario() -> None:
        running = asyncio.create_task(generate(engine, 1, 90))
        while not log:
            await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        for request in (running, generate(engine, 1, 1)):
            # Not CancelledError, which a task group would treat as a normal end.
            with pytest.raises(EngineGone, match="closed"):
                await request

    run_and_close(engine, scenario())
    assert log.count("close") == 1


@pytest.mark.parametrize("when", ["admit", "step"])
def test_keyboard_interrupt_propagates_and_ends_the_engine(when: str) -> None:
    log: list[Any] = []

    class Interrupted(CountingCore):
        def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
            if when == "admit" and number:
                raise KeyboardInterrupt
            super().admit(number, ids, sampling)

        def step(self) -> list[tuple[int, Completion]]:
            super().step()
            raise KeyboardInterrupt

    engine = Batching(lambda usage: Interrupted(usage, log), in_thread=False)

    async def scenario() -> None:
        await asyncio.gather(generate(engine, 1, 1), generate(engine, 2, 2))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scenario())
    assert (engine._waiting, engine._under_way, engine._driver) == ({}, {}, None)
    with pytest.raises(EngineGone, match="in the middle of a step"):
        run_and_close(engine, generate(engine, 1, 1))
    assert log[-1:] == ["close"]
    assert log.count("close") == 1


@with_and_without_thread
def test_engine_works_after_its_event_loop_was_abandoned(in_thread: bool) -> None:
    log: list[Any] = []
    engine = counting_engine(log, in_thread=in_thread)

    async def abandon() -> None:
        requests = [asyncio.create_task(generate(engine, 1, tokens)) for tokens in (1, 2, 50, 60)]
        await requests[1]

    asyncio.run(abandon())
    assert run_and_close(engine, generate(engine, 5, 2)).ids == (5,)
    assert log[-3:] == [[5], [5], "close"]


@pytest.mark.parametrize(("context", "tokens"), [(0, 1), (100, 1), (50, 51)])
def test_requests_beyond_the_context_limit_are_rejected(context: int, tokens: int) -> None:
    engine = counting_engine([])
    with pytest.raises(
        ValueError, match=f"A context of {context} tokens and a reply of up to {tokens} don.t fit: .* 100"
    ):
        run_and_close(engine, generate(engine, context, tokens))
