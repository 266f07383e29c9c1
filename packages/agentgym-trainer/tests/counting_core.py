"""A core that counts, for tests of who waits, who is served and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import pytest
from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams, Weights
from agentgym_trainer.engines.batching import Batching

WEIGHTS = Weights(7, lambda: iter(()))
BOTH = pytest.mark.parametrize("in_thread", [False, True])


class CountingCore:
    """Says the length of the context, one token a step, as often as it may. What it has done is written down."""

    max_context = 100

    def __init__(self, usage: EngineUsage, diary: list[Any], *, dies: Callable[[int], bool] = lambda _: False) -> None:
        self.usage = usage
        self.diary = diary
        self.dies = dies
        self.version = 0
        self.steps = 0
        self.going: dict[int, tuple[int, int]] = {}

    def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
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
        self.version = weights.version
        self.diary.append(f"load {weights.version}")

    def sleep(self) -> None:
        assert not self.going
        self.diary.append("rest")

    def close(self) -> None:
        self.diary.append("close")


def engine_of(diary: list[Any], *, in_thread: bool = False, dies: Sequence[Callable[[int], bool]] = ()) -> Batching:
    """An engine of cores that die one after the other, each in its own way, and then of one that doesn't."""
    coming = iter(dies)
    return Batching(lambda usage: CountingCore(usage, diary, dies=next(coming, lambda _: False)), in_thread=in_thread)


async def ask(engine: Batching, context: int, tokens: int) -> Completion:
    return await engine.generate((5,) * context, SamplingParams(max_tokens=tokens))


def run_out(engine: Batching, play: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns; and that nothing is left behind."""

    async def main() -> Any:
        try:
            return await play
        finally:
            await engine.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert (engine._waiting, engine._under_way, engine._driver) == ({}, {}, None)

    return asyncio.run(main())


async def load_between(engine: Batching, diary: list[Any]) -> tuple[int, int]:
    """Versions at the end of a reply that is under way when new weights come, and of one asked for behind them."""
    early = asyncio.create_task(ask(engine, 1, 50))
    while not diary:
        await asyncio.sleep(0)
    loading = asyncio.create_task(engine.load(WEIGHTS))
    await asyncio.sleep(0)
    late = asyncio.create_task(ask(engine, 2, 1))
    await loading
    return (await early).version, (await late).version
