from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agentgym_trainer.engines.base import Completion, SamplingParams, Weights
from agentgym_trainer.engines.scripted import ScriptedEngine

END = 1


def _weights(version: int) -> Weights:
    return Weights(version, tensors=lambda: iter(()))


def test_script_gets_full_contexts_and_replies_are_truncated() -> None:
    contexts: list[tuple[int, ...]] = []

    def script(context: tuple[int, ...]) -> list[int]:
        contexts.append(context)
        return [7, 8, END]

    async def scenario() -> None:
        engine = ScriptedEngine(script, end_id=END)
        assert await engine.generate([5], SamplingParams()) == Completion((7, 8, END), (-1.0,) * 3, "stop", 0)
        truncated = await engine.generate([5, 7, 8, END, 6], SamplingParams(max_tokens=2))
        assert truncated == Completion((7, 8), (-1.0,) * 2, "length", 0)
        assert (engine.usage.prefilled, engine.usage.generated) == (6, 5)

    asyncio.run(scenario())
    assert contexts == [(5,), (5, 7, 8, END, 6)]


def test_context_and_budget_beyond_max_context_are_rejected() -> None:
    engine = ScriptedEngine(lambda _: [END], end_id=END, max_context=8)
    assert asyncio.run(engine.generate([5] * 6, SamplingParams(max_tokens=2))).ids == (END,)
    with pytest.raises(ValueError, match="7 tokens and a reply of up to 2 don't fit: this engine takes 1 to 8"):
        asyncio.run(engine.generate([5] * 7, SamplingParams(max_tokens=2)))


class _Clock:
    """The fake clock of an event loop, in which sleeping takes no real time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.loop.time = lambda: self.now  # type: ignore[method-assign]
        self._select = self.loop._selector.select  # type: ignore[attr-defined]
        self.loop._selector.select = self._advance  # type: ignore[attr-defined]

    def _advance(self, timeout: float | None) -> Any:
        self.now += timeout or 0.0
        return self._select(0)


def test_replies_take_the_configured_time_within_capacity() -> None:
    clock = _Clock()

    async def end_times(capacity: int | None) -> list[float]:
        engine = ScriptedEngine(
            lambda context: [3] * context[0], end_id=END,
            seconds_per_request=1.0, seconds_per_token=0.5, capacity=capacity,
        )  # fmt: skip
        start = clock.now

        async def ask(tokens: int) -> float:
            await engine.generate([tokens], SamplingParams())
            return clock.now - start

        return list(await asyncio.gather(*map(ask, (2, 4, 2))))

    assert clock.loop.run_until_complete(end_times(None)) == pytest.approx([2.0, 3.0, 2.0])
    assert clock.loop.run_until_complete(end_times(2)) == pytest.approx([2.0, 3.0, 4.0])
    assert clock.loop.run_until_complete(end_times(1)) == pytest.approx([2.0, 5.0, 7.0])
    clock.loop.close()


def test_replies_have_the_version_they_started_with() -> None:
    async def scenario() -> list[int]:
        engine = ScriptedEngine(lambda _: [END], end_id=END)
        before = [asyncio.create_task(engine.generate([i], SamplingParams())) for i in range(3)]
        await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load(_weights(4)))
        await asyncio.sleep(0)
        after = [asyncio.create_task(engine.generate([i], SamplingParams())) for i in range(2)]
        await loading
        return [(await reply).version for reply in (*before, *after)]

    assert asyncio.run(scenario()) == [0, 0, 0, 4, 4]


def test_cancelled_request_frees_its_slot() -> None:
    async def scenario() -> Completion:
        engine = ScriptedEngine(lambda context: [3] * context[0], end_id=END, seconds_per_token=1.0, capacity=1)
        endless = asyncio.create_task(engine.generate([500], SamplingParams()))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(engine.generate([0], SamplingParams()))
        await asyncio.sleep(0)
        endless.cancel()
        return await waiting

    assert asyncio.run(scenario()).ids == ()
