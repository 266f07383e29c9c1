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


def test_it_runs_a_coroutine_on_its_own_thread(loop: LoopThread) -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert loop.run(answer(), PATIENCE) == 42
    assert loop.run(where(), PATIENCE) == "agentgym-loop"


def test_it_runs_inside_a_running_loop(loop: LoopThread) -> None:
    async def outer() -> int:
        return loop.run(answer(), PATIENCE)

    assert asyncio.run(outer()) == 42


def test_it_runs_for_many_threads_at_once(loop: LoopThread) -> None:
    meeting = asyncio.Barrier(8)  # nobody gets past it alone
    results: list[int] = []

    async def meet(value: int) -> int:
        await meeting.wait()
        return value

    threads = [threading.Thread(target=lambda i=i: results.append(loop.run(meet(i), PATIENCE))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))


def test_what_takes_too_long_is_cancelled_and_a_fault(loop: LoopThread) -> None:
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
def test_what_the_coroutine_raises_comes_through(loop: LoopThread, error: Exception) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(type(error), match=f"^{error}$"):
        loop.run(fail(), PATIENCE)


def test_it_refuses_to_wait_for_itself(loop: LoopThread) -> None:
    async def knot() -> int:
        return loop.run(answer(), PATIENCE)

    with pytest.raises(RuntimeError, match="own thread"):
        loop.run(knot(), PATIENCE)


def test_after_its_end_everything_is_a_fault() -> None:
    loop = LoopThread("The partner")
    begun = threading.Event()
    caught: list[BaseException] = []

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.run(forever(), 60)
        except EnvFault as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(PATIENCE)
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


def test_a_forked_child_is_told_rather_than_kept_waiting(loop: LoopThread) -> None:
    loop.run(answer(), PATIENCE)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=_try, args=(loop, answers))
    child.start()
    child.join(PATIENCE)
    assert "forked" in answers.get()
    assert loop.run(answer(), PATIENCE) == 42
