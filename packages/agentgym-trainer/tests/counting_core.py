"""An engine core that counts and logs its calls, for tests of scheduling and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import pytest
from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams, Weights
from agentgym_trainer.engines.batching import Batching

WEIGHTS = Weights(7, lambda: iter(()))
with_and_without_thread = pytest.mark.parametrize("in_thread", [False, True])


class CountingCore:
    """A core that samples one token per step up to the limit, and logs its calls. The token is the context's length."""

    max_context = 100

    def __init__(
        self, usage: EngineUsage, log: list[Any], *, fails_at: Callable[[int], bool] = lambda _: False
    ) -> None:
        self.usage = usage
        self.log = log
        self.fails_at = fails_at
        self.version = 0
        self.steps = 0
        self.running: dict[int, tuple[int, int]] = {}

    def admit(self, request: int, ids: Sequence[int], sampling: SamplingParams) -> None:
        self.running[request] = len(ids), sampling.max_tokens
        self.usage.prefilled += len(ids)

    def step(self) -> list[tuple[int, Completion]]:
        assert self.running
        self.steps += 1
        self.log.append(sorted(length for length, _ in self.running.values()))
        if self.fails_at(self.steps):
            raise OSError("the core is cold")
        done: list[tuple[int, Completion]] = []
        for request, (length, remaining) in self.running.items():
            self.running[request] = length, remaining - 1
            if remaining == 1:
                done.append((request, Completion((length,), (-1.0,), "length", self.version)))
        for request, _ in done:
            del self.running[request]
        return done

    def abort(self, numbers: Collection[int]) -> None:
        for request in numbers:
            self.running.pop(request, None)
        self.log.append(f"abort {len(numbers)}")

    def load(self, weights: Weights) -> None:
        self.version = weights.version
        self.log.append(f"load {weights.version}")

    def sleep(self) -> None:
        assert not self.running
        self.log.append("rest")

    def close(self) -> None:
        self.log.append("close")


def counting_engine(
    log: list[Any], *, in_thread: bool = False, fails_at: Sequence[Callable[[int], bool]] = ()
) -> Batching:
    """Return an engine whose nth core fails in the steps for which `fails_at[n]` is true; later cores don't fail."""
    remaining = iter(fails_at)
    return Batching(
        lambda usage: CountingCore(usage, log, fails_at=next(remaining, lambda _: False)), in_thread=in_thread
    )


async def generate(engine: Batching, context: int, tokens: int) -> Completion:
    return await engine.generate((5,) * context, SamplingParams(max_tokens=tokens))


def run_and_close(engine: Batching, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine, close the engine, and assert that no task or request remains."""

    async def main() -> Any:
        try:
            return await coroutine
        finally:
            await engine.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert (engine._waiting, engine._under_way, engine._driver) == ({}, {}, None)

    return asyncio.run(main())


async def load_while_sampling(engine: Batching, log: list[Any]) -> tuple[int, int]:
    """Return the versions of a reply in progress when weights are loaded, and of one requested after them."""
    early = asyncio.create_task(generate(engine, 1, 50))
    while not log:
        await asyncio.sleep(0)
    loading = asyncio.create_task(engine.load(WEIGHTS))
    await asyncio.sleep(0)
    late = asyncio.create_task(generate(engine, 2, 1))
    await loading
    return (await early).version, (await late).version
