"""Tests of `LoopThread`, which runs coroutines on an event loop in its own thread."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator

import pytest
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.text_env import EnvFault
from patience import PATIENCE


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("The partner")
    yield loop
    loop.stop()


async def answer(value: int = 42) -> int:
    await asyncio.sleep(0)
    return value


def test_coroutines_run_on_the_loop_thread(loop: LoopThread) -> None:
    async def thread_name() -> str:
        return threading.current_thread().name

    assert loop.run(answer(), PATIENCE) == 42
    assert loop.run(thread_name(), PATIENCE) == "agentgym-loop"


def test_run_works_inside_a_running_loop(loop: LoopThread) -> None:
    async def outer() -> int:
        return loop.run(answer(), PATIENCE)

    assert asyncio.run(outer()) == 42


def test_many_threads_run_coroutines_concurrently(loop: LoopThread) -> None:
    barrier = asyncio.Barrier(8)  # passes only if all 8 run concurrently
    results: list[int] = []

    async def meet(value: int) -> int:
        await barrier.wait()
        return value

    threads = [threading.Thread(target=lambda i=i: results.append(loop.run(meet(i), PATIENCE))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))


def test_timeout_cancels_the_coroutine_and_raises_a_fault(loop: LoopThread) -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(EnvFault, match=r"The partner did not answer within 0\.05 seconds"):
        loop.run(forever(), 0.05)
    assert cancelled.wait(PATIENCE)
    assert loop.run(answer(), PATIENCE) == 42


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("its own"), EnvFault("y")])
def test_exceptions_of_the_coroutine_propagate(loop: LoopThread, error: Exception) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(type(error), match=f"^{error}$"):
        loop.run(fail(), PATIENCE)


def test_run_from_the_loop_thread_is_rejected(loop: LoopThread) -> None:
    async def nested() -> int:
        return loop.run(answer(), PATIENCE)

    with pytest.raises(RuntimeError, match="own thread"):
        loop.run(nested(), PATIENCE)


def test_stop_fails_running_and_later_calls() -> None:
    loop = LoopThread("The partner")
    started = threading.Event()
    caught: list[BaseException] = []

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.run(forever(), 60)
        except EnvFault as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(PATIENCE)
    loop.stop()
    loop.stop()
    thread.join()
    assert "stopped while a request was running" in str(caught[0])
    with pytest.raises(EnvFault, match="is gone"):
        loop.run(answer(), PATIENCE)


def _try(loop: LoopThread, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        loop.run(answer(), PATIENCE)
    except EnvFault as error:
        answers.put(str(error))
    loop.stop()


def test_run_in_a_forked_child_raises_a_fault(loop: LoopThread) -> None:
    loop.run(answer(), PATIENCE)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=_try, args=(loop, answers))
    child.start()
    child.join(PATIENCE)
    assert "forked" in answers.get()
    assert loop.run(answer(), PATIENCE) == 42
