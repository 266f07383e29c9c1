from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agentgym_trainer.engines.base import Completion, SamplingParams, Weights
from agentgym_trainer.engines.scripted import ScriptedEngine

END = 1


def _weights(version: int) -> Weights:
    return Weights(version, tensors=lambda: iter(()))


def test_it_sees_whole_contexts_and_cuts_replies_at_the_budget() -> None:
    seen: list[tuple[int, ...]] = []

    def script(context: tuple[int, ...]) -> list[int]:
        seen.append(context)
        return [7, 8, END]

    async def play() -> None:
        engine = ScriptedEngine(script, end_id=END)
        assert await engine.generate([5], SamplingParams()) == Completion((7, 8, END), (-1.0,) * 3, "stop", 0)
        cut = await engine.generate([5, 7, 8, END, 6], SamplingParams(max_tokens=2))
        assert cut == Completion((7, 8), (-1.0,) * 2, "length", 0)
        assert (engine.usage.prefilled, engine.usage.generated) == (6, 5)

    asyncio.run(play())
    assert seen == [(5,), (5, 7, 8, END, 6)]


def test_a_context_that_leaves_no_room_for_the_budget_is_refused() -> None:
    engine = ScriptedEngine(lambda _: [END], end_id=END, max_context=8)
    assert asyncio.run(engine.generate([5] * 6, SamplingParams(max_tokens=2))).ids == (END,)
    with pytest.raises(ValueError, match="A context of 7 tokens and a reply of up to 2 are more than the 8"):
        asyncio.run(engine.generate([5] * 7, SamplingParams(max_tokens=2)))


class _Clock:
    """Time as an engine's loop sees it: what is slept through takes none."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.loop.time = lambda: self.now  # type: ignore[method-assign]
        self._select = self.loop._selector.select  # type: ignore[attr-defined]
        self.loop._selector.select = self._pass  # type: ignore[attr-defined]

    def _pass(self, timeout: float | None) -> Any:
        self.now += timeout or 0.0
        return self._select(0)


def test_replies_take_the_time_they_are_told_to_and_no_more_at_once_than_there_is_room_for() -> None:
    clock = _Clock()

    async def ends(capacity: int | None) -> list[float]:
        engine = ScriptedEngine(
            lambda context: [3] * context[0], end_id=END,
            seconds_per_request=1.0, seconds_per_token=0.5, capacity=capacity,
        )  # fmt: skip
        began = clock.now

        async def ask(tokens: int) -> float:
            await engine.generate([tokens], SamplingParams())
            return clock.now - began

        return list(await asyncio.gather(*map(ask, (2, 4, 2))))

    assert clock.loop.run_until_complete(ends(None)) == pytest.approx([2.0, 3.0, 2.0])
    assert clock.loop.run_until_complete(ends(2)) == pytest.approx([2.0, 3.0, 4.0])
    assert clock.loop.run_until_complete(ends(1)) == pytest.approx([2.0, 5.0, 7.0])
    clock.loop.close()


def test_a_reply_is_of_the_version_that_it_began_with() -> None:
    async def play() -> list[int]:
        engine = ScriptedEngine(lambda _: [END], end_id=END)
        before = [asyncio.create_task(engine.generate([i], SamplingParams())) for i in range(3)]
        await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load(_weights(4)))
        await asyncio.sleep(0)
        after = [asyncio.create_task(engine.generate([i], SamplingParams())) for i in range(2)]
        await loading
        return [(await reply).version for reply in (*before, *after)]

    assert asyncio.run(play()) == [0, 0, 0, 4, 4]


def test_a_request_that_nobody_waits_for_makes_room() -> None:
    async def play() -> Completion:
        engine = ScriptedEngine(lambda context: [3] * context[0], end_id=END, seconds_per_token=1.0, capacity=1)
        endless = asyncio.create_task(engine.generate([500], SamplingParams()))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(engine.generate([0], SamplingParams()))
        await asyncio.sleep(0)
        endless.cancel()
        return await waiting

    assert asyncio.run(play()).ids == ()
