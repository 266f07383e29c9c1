"""Tests of environments that hang, crash or end their process: only their own slot gets a fault."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool import EnvPool, Reset, Result, SlotBusy, Step, WorldSpec
from agentgym_envs.pool.slots import InlineSlot
from faulty_worlds import TOY, Toy
from gymnasium.error import ResetNeeded
from patience import all_end, eventually

LONG_PROCESS = pytest.param("process", marks=pytest.mark.long)
POLL = 0.01  # seconds after which a thread checks whether another received its result
Gather = Callable[[EnvPool, int], dict[int, Result]]


def receive_one(pool: EnvPool) -> Result:
    (result,) = pool.recv()
    return result


def reset_all(pool: EnvPool) -> None:
    for slot in range(len(pool)):
        pool.reset(slot, "door/test/1")
        assert receive_one(pool).error is None


def pid(pool: EnvPool, slot: int) -> int:
    pool.ask(slot, "pid")
    return receive_one(pool).value


@pytest.mark.parametrize("backend", ("thread", "process"))
def test_hanging_environment_is_replaced_without_affecting_others(backend: str, gates: Any) -> None:
    with EnvPool(TOY, 2, backend) as pool:
        reset_all(pool)
        pool.send(0, gates.wait_action("gate"), deadline=0.05)
        pool.send(1, "knock")
        results = {result.slot: result for result in (receive_one(pool), receive_one(pool))}  # in any order
        assert results[1].observation == "You knocked 1 times."
        result = results[0]
        assert isinstance(result.error, EnvFault)
        assert str(result.error) == f"{TOY} in slot 0 did not answer within 0.05 seconds and was replaced."
        pool.send(0, "knock")
        assert isinstance(receive_one(pool).error, ResetNeeded)
        pool.reset(0, "door/test/2")
        assert receive_one(pool).observation == "Hello. Knock 2 times."
        gates.open("gate")  # the late result of the old environment is dropped
        pool.send(0, "knock")
        assert receive_one(pool).observation == "You knocked 1 times."
        pool.send(1, "knock")
        assert receive_one(pool).observation == "You knocked 2 times."
        with pytest.raises(RuntimeError, match="No call is pending"):
            pool.recv()


def test_death_of_a_process_is_reported() -> None:
    with EnvPool(TOY, 1, "process") as pool:
        reset_all(pool)
        first = pid(pool, 0)
        os.kill(first, signal.SIGKILL)
        pool.send(0, "knock")
        assert isinstance(receive_one(pool).error, EnvFault)
        pool.ask(0, "oracle")
        assert isinstance(receive_one(pool).error, EnvFault)
        for action, message in (("exit 3", "ended with status 3"), ("kill", "was ended by signal 9")):
            reset_all(pool)
            assert pid(pool, 0) != first
            pool.send(0, action)
            error = receive_one(pool).error
            assert isinstance(error, EnvFault) and f"{TOY} in slot 0" in str(error) and message in str(error)


@pytest.mark.long
def test_process_that_stops_reading_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.pool.connection._SEND_TIMEOUT", 1)
    with EnvPool(TOY, 1, "process") as pool:
        reset_all(pool)
        stopped = psutil.Process(pid(pool, 0))
        stopped.suspend()
        pool.send(0, "x" * (1 << 18), deadline=0.05)  # more than the pipe holds
        assert isinstance(receive_one(pool).error, EnvFault)
    assert all_end([stopped])


def test_sys_exit_of_an_environment_is_a_fault() -> None:
    with EnvPool(TOY, 1, "thread") as pool:
        reset_all(pool)
        pool.send(0, "leave 3")
        error = receive_one(pool).error
        assert isinstance(error, EnvFault) and "SystemExit(3)" in str(error)
        reset_all(pool)


class PanicException(BaseException):
    """Raised by panics of packages in Rust, as this one is no `Exception`."""


@pytest.mark.parametrize(
    "error", [SystemExit(0), asyncio.CancelledError("stop"), PanicException("index out of bounds")]
)
@pytest.mark.parametrize("hook", ["__init__", "_act"])
def test_what_would_end_the_caller_is_a_fault_also_in_the_main_thread(
    hook: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(Toy, hook, leave)
    with EnvPool(TOY, 1, "inline") as pool:
        pool.reset(0, "door/test/1")
        if hook == "_act":
            assert receive_one(pool).error is None
            pool.send(0, "knock")
        fault = receive_one(pool).error
        assert isinstance(fault, EnvFault) and type(error).__name__ in str(fault)


@pytest.mark.parametrize(
    "error",
    [ValueError("stuck"), SystemExit("bye"), asyncio.CancelledError("stop"), PanicException("index out of bounds")],
)
def test_what_an_environment_raises_on_closing_keeps_no_other_from_closing(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[Toy] = []

    def close(toy: Toy) -> None:
        closed.append(toy)
        raise error

    monkeypatch.setattr(Toy, "close", close)
    with EnvPool(TOY, 2, "inline") as pool:
        reset_all(pool)
    assert len(closed) == 2
    assert caplog.text.count("did not close") == caplog.text.count(str(error)) == 2


def test_keyboard_interrupt_of_an_environment_is_a_fault_where_ctrl_c_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Toy, "_act", Mock(side_effect=KeyboardInterrupt))
    with EnvPool(TOY, 1, "thread") as pool:
        reset_all(pool)
        pool.send(0, "knock")
        fault = receive_one(pool).error
    assert isinstance(fault, EnvFault) and "raised KeyboardInterrupt()" in str(fault)


@pytest.mark.parametrize("error", [SystemExit(143), asyncio.CancelledError("stop"), PanicException("stop")])
def test_what_a_signal_handler_raises_is_not_the_environments(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Toy, "_act", lambda *_: os.kill(os.getpid(), signal.SIGUSR2))
    before = signal.signal(signal.SIGUSR2, terminate)
    try:
        with EnvPool(TOY, 1, "inline") as pool:
            reset_all(pool)
            with pytest.raises(type(error)):
                pool.send(0, "knock")
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("backend", ("thread", LONG_PROCESS))
def test_replace_ends_the_pending_call(backend: str, gates: Any) -> None:
    with EnvPool(TOY, 1, backend) as pool:
        reset_all(pool)
        pool.send(0, gates.wait_action("gate"))
        pool.replace(0)
        error = receive_one(pool).error
        assert isinstance(error, EnvFault) and "was replaced before it answered" in str(error)
        reset_all(pool)
        pool.replace(0)
        pool.send(0, "knock")
        assert isinstance(receive_one(pool).error, ResetNeeded)


def test_replace_ends_a_call_without_a_deadline(gates: Any) -> None:
    with EnvPool(TOY, 1, "thread") as pool:
        reset_all(pool)
        pool.send(0, gates.wait_action("gate"), deadline=math.inf)
        pool.replace(0)
        assert "was replaced before it answered" in str(receive_one(pool).error)


def test_hanging_environment_is_detected_while_others_always_answer(
    gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym_envs.pool.pool._CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(Toy, "step_waits", True)  # gives it a thread, while the other one is played inline
    with EnvPool([TOY, "agentgym/TextCraft-v0"], options=[{"greeting": "Hi."}, {"max_episode_steps": 10**6}]) as pool:
        pool.reset(0, "door/test/1")
        assert receive_one(pool).error is None
        pool.reset(1)
        assert receive_one(pool).error is None
        pool.send(0, gates.wait_action("gate"), deadline=0.05)
        results: list[Result] = []
        while not any(result.slot == 0 for result in results):
            pool.send(1, "inventory")  # its result is available before `recv` is called
            results = pool.recv()
    assert "did not answer within 0.05 seconds" in str(results[0].error or results[-1].error)


@pytest.mark.parametrize("backend", ("thread", LONG_PROCESS))
def test_close_ends_pending_calls(backend: str, gates: Any, gather: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.pool.pool._CLOSE_TIMEOUT", 0.05)
    pool = EnvPool(TOY, 2, backend)
    reset_all(pool)
    pool.send(0, gates.wait_action("gate"))
    pool.send(1, "knock")
    eventually(lambda: pool._answered)
    pool.close()
    results = gather(pool, 2)
    assert isinstance(results[0].error, EnvFault) and "was closed before it answered" in str(results[0].error)
    assert results[1].observation == "You knocked 1 times."


def test_slot_can_be_reset_after_an_interrupted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Toy, action: str) -> None:
        raise KeyboardInterrupt

    with EnvPool(TOY, 1, "inline") as pool:
        reset_all(pool)
        with monkeypatch.context() as patch:
            patch.setattr(Toy, "_act", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.send(0, "knock")
        pool.send(0, "knock")
        assert isinstance(receive_one(pool).error, ResetNeeded)
        reset_all(pool)


def test_slot_can_be_replaced_after_ctrl_c_at_any_line() -> None:
    """Interrupt at each line of the pool's own code that `send` and `recv` execute."""
    lines = 0

    def play(pool: EnvPool, until: int) -> bool:
        """Return whether `send` and `recv` completed in fewer than `until` lines."""
        nonlocal lines
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if frame.f_code.co_filename != pool_code:
                return None
            lines += event == "line"
            if lines == until and event == "line":
                raise KeyboardInterrupt
            return trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            pool.send(0, "knock")
            pool.recv()
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(previous)
        return True

    pool_code = EnvPool.recv.__code__.co_filename
    with EnvPool(TOY, 1, "inline") as pool:
        until = 1
        while True:
            reset_all(pool)
            if play(pool, until):
                break
            pool.replace(0)
            pool.recv(0)
            until += 1
    assert until > 20


def test_environment_replaced_during_a_step_is_closed_afterwards(gates: Any) -> None:
    slot = InlineSlot(0, WorldSpec(TOY))
    results: list[Result] = []
    closed = Toy.closed
    slot.submit(Reset("door/test/0"), results.append)
    thread = threading.Thread(target=slot.submit, args=(Step(gates.wait_action("gate")), results.append))
    thread.start()
    eventually(lambda: gates.reached("gate"))
    slot.replace()
    assert Toy.closed == closed
    gates.open("gate")
    thread.join()
    assert Toy.closed == closed + 1
    assert results[-1].observation == "gate is there."
    slot.submit(Step("knock"), results.append)
    assert isinstance(results[-1].error, ResetNeeded)
    slot.close()
    assert Toy.closed == closed + 2
    slot.submit(Step("knock"), results.append)
    assert isinstance(results[-1].error, EnvFault) and "is closed" in str(results[-1].error)


@pytest.mark.parametrize("backend", ("inline", "thread", LONG_PROCESS))
def test_threads_can_share_a_pool(backend: str) -> None:
    """Each thread plays its own slot and receives for all; no result is lost, duplicated or mixed up."""
    rounds, slots = 30, 2
    results: list[Result] = []
    with EnvPool(TOY, slots, backend, options={"max_episode_steps": 1000}) as pool:
        reset_all(pool)
        received = [threading.Semaphore(0) for _ in range(slots)]

        def play(slot: int) -> None:
            for _ in range(rounds):
                pool.send(slot, "knock")
                while not received[slot].acquire(blocking=False):
                    for result in pool.recv(timeout=POLL):
                        results.append(result)
                        received[result.slot].release()

        threads = [threading.Thread(target=partial(play, slot)) for slot in range(slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for slot in range(slots):
        observed = [result.observation for result in results if result.slot == slot]
        assert observed == [f"You knocked {knocks} times." for knocks in range(1, rounds + 1)]


def test_concurrent_calls_to_a_slot_are_rejected(gates: Any) -> None:
    with EnvPool(TOY, 1, "thread") as pool:
        reset_all(pool)
        barrier = threading.Barrier(8)
        rejected: list[bool] = []

        def try_send() -> None:
            barrier.wait()
            try:
                pool.send(0, gates.wait_action("gate"))
            except SlotBusy:
                rejected.append(True)

        threads = [threading.Thread(target=try_send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(rejected) == 7
        gates.open("gate")
        assert receive_one(pool).observation == "gate is there."


@pytest.mark.parametrize("backend", ("thread", LONG_PROCESS))
def test_late_results_never_belong_to_another_call(backend: str) -> None:
    """Deadlines are about as long as a step; in either order, a result belongs to the call it is received for."""
    faults = answers = 0
    with EnvPool(TOY, 1, backend, options={"max_episode_steps": 10_000}) as pool:
        reset_all(pool)
        for number in range(60 if backend == "thread" else 9):
            pool.send(0, f"echo {number}", deadline=(1e-9, 1e-4, 10.0)[number % 3])
            result = receive_one(pool)
            if result.error is None:
                answers += 1
                assert len(result.observation) == number
            else:
                faults += 1
                assert isinstance(result.error, EnvFault)
                reset_all(pool)
    assert answers > 0 and faults > 0
