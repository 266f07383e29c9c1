"""Tests of the interface for coroutines, each of which awaits its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool import EnvPool, Result, SlotBusy
from faulty_worlds import TOY
from gymnasium.error import ResetNeeded
from patience import PATIENCE, eventually_async

BACKENDS = ("inline", "thread", "process")
LONG_PROCESS = pytest.param("process", marks=pytest.mark.long)


async def play_expert(pool: EnvPool, slot: int, knocks: int) -> float:
    first = await pool.start(slot, f"door/train/{knocks}")
    assert first.observation == f"Hello. Knock {knocks} times."
    score = first.reward
    while True:
        result = await pool.step(slot, await pool.inquire(slot, "oracle"))
        assert result.slot == slot
        score += result.reward
        if result.over:
            return score


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_coroutines_play_concurrently(backend: str) -> None:
    async def play() -> list[float]:
        slots = range(len(pool))
        return await asyncio.gather(*(play_expert(pool, slot, 1 + slot % 5) for slot in slots))

    with EnvPool(TOY, 2 if backend == "process" else 16, backend) as pool:
        assert asyncio.run(play()) == [1.0] * len(pool)
        assert asyncio.run(play()) == [1.0] * len(pool)  # in another loop


@pytest.mark.parametrize("backend", ("inline", "thread", LONG_PROCESS))
def test_errors_are_raised(backend: str) -> None:
    async def play() -> None:
        with pytest.raises(ResetNeeded):
            await pool.step(0, "knock")
        with pytest.raises(KeyError, match="There is no task"):
            await pool.start(0, "door/test/99")
        with pytest.raises(AttributeError):
            await pool.inquire(0, "nonsense")
        with pytest.raises(IndexError):
            await pool.step(1, "knock")
        await pool.start(0, "door/test/1")
        with pytest.raises(EnvFault, match="the tower fell"):
            await pool.step(0, "raise fault")

    with EnvPool(TOY, 1, backend) as pool:
        asyncio.run(play())
    with pytest.raises(RuntimeError, match="This pool is closed"):
        asyncio.run(pool.step(0, "knock"))


@pytest.mark.parametrize("backend", ("thread", LONG_PROCESS))
def test_deadline_ends_the_wait(backend: str, gates: Any) -> None:
    async def play() -> None:
        await pool.start(0, "door/test/0")
        other = asyncio.create_task(play_expert(pool, 1, 5))
        with pytest.raises(EnvFault, match=r"did not answer within 0.05 seconds"):
            await pool.step(0, gates.wait_action("gate"), deadline=0.05)
        assert await other == 1.0
        assert await play_expert(pool, 0, 2) == 1.0

    with EnvPool(TOY, 2, backend) as pool:
        asyncio.run(play())


def test_call_of_a_cancelled_coroutine_completes_and_is_dropped(gates: Any) -> None:
    async def play() -> None:
        await pool.start(0, "door/test/0")
        waiting = asyncio.create_task(pool.step(0, gates.wait_action("gate")))
        await eventually_async(lambda: gates.reached("gate"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(SlotBusy):
            await pool.step(0, "knock")
        gates.open("gate")
        assert (await retry_while_busy(lambda: pool.step(0, "knock"))).observation == "You knocked 1 times."

    with EnvPool(TOY, 1, "thread") as pool:
        asyncio.run(play())


class Clock:
    """A fake of the module `time` that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("agentgym_envs.pool.pool.time", clock)
    return clock


def test_cancelled_call_is_abandoned_at_its_deadline(gates: Any, clock: Clock) -> None:
    async def play() -> None:
        await pool.start(0, "door/test/0")
        cancelled = asyncio.create_task(pool.step(0, gates.wait_action("gate"), deadline=60))
        await eventually_async(lambda: gates.reached("gate"))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        clock.now = 59.0
        with pytest.raises(SlotBusy):
            await pool.start(0, "door/test/2")
        clock.now = 60.0
        assert (await pool.start(0, "door/test/2")).observation == "Hello. Knock 2 times."

    with EnvPool(TOY, 1, "thread") as pool:
        asyncio.run(play())


def test_cancelled_call_is_abandoned_by_its_event_loop(gates: Any) -> None:
    async def play() -> None:
        await pool.start(0, "door/test/0")
        cancelled = asyncio.create_task(pool.step(0, gates.wait_action("gate"), deadline=0.1))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await retry_while_busy(lambda: pool.start(0, "door/test/2"))).observation == "Hello. Knock 2 times."

    with EnvPool(TOY, 1, "thread") as pool:
        asyncio.run(play())


def test_call_of_an_ended_loop_is_abandoned_at_its_deadline(gates: Any, clock: Clock) -> None:
    async def leave() -> None:
        await pool.start(0, "door/test/0")
        asyncio.create_task(pool.step(0, gates.wait_action("gate"), deadline=60))  # noqa: RUF006 - abandoned on purpose
        await eventually_async(lambda: gates.reached("gate"))

    with EnvPool(TOY, 1, "thread") as pool:
        asyncio.run(leave())
        clock.now = 60.0
        pool.reset(0, "door/test/2")
        assert [result.observation for result in pool.recv()] == ["Hello. Knock 2 times."]


def test_replace_and_close_wake_waiting_coroutines(gates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.pool.pool._CLOSE_TIMEOUT", 0.05)

    async def play() -> None:
        for end, message in ((lambda: pool.replace(0), "was replaced"), (pool.close, "was closed")):
            await pool.start(0, "door/test/0")
            waiting = asyncio.create_task(pool.step(0, gates.wait_action(message)))
            await eventually_async(partial(gates.reached, message))
            end()
            with pytest.raises(EnvFault, match=f"{message} before it answered"):
                await waiting

    with EnvPool(TOY, 1, "thread") as pool:
        asyncio.run(play())


def test_blocking_and_async_calls_can_be_mixed(gates: Any) -> None:
    async def play() -> None:
        pool.reset(0, "door/test/1")
        assert await play_expert(pool, 1, 3) == 1.0
        (result,) = await asyncio.to_thread(pool.recv)
        assert result.slot == 0 and result.observation == "Hello. Knock 1 times."

    with EnvPool(TOY, 2, "thread") as pool:
        asyncio.run(play())
        with pytest.raises(RuntimeError, match="No call is pending"):
            pool.recv()


async def retry_while_busy(call: Callable[[], Any]) -> Result:
    """Return the result of `call` once its slot is free."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except SlotBusy:
                await asyncio.sleep(0)
