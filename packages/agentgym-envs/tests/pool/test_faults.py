"""Worlds that hang, crash or take their process with them: the slot gets a fault and then a fresh world, and the others
never notice."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import psutil
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool import EnvPool, Reset, Result, SlotBusy, Step, WorldSpec
from agentgym_envs.pool.slots import InlineSlot
from faulty_worlds import TOY, Toy
from gymnasium.error import ResetNeeded
from patience import all_end, eventually

LONG_PROCESS = pytest.param("process", marks=pytest.mark.long)
TURN = 0.01  # seconds after which a thread looks whether another received for it
Gather = Callable[[EnvPool, int], dict[int, Result]]


def only(pool: EnvPool) -> Result:
    (result,) = pool.recv()
    return result


def begin(pool: EnvPool) -> None:
    for slot in range(len(pool)):
        pool.reset(slot, "door/test/1")
        assert only(pool).error is None


def pid(pool: EnvPool, slot: int) -> int:
    pool.ask(slot, "pid")
    return only(pool).value


@pytest.mark.parametrize("backend", ("thread", "process"))
def test_a_world_that_hangs_is_replaced_and_the_others_never_notice(backend: str, gates: Any) -> None:
    with EnvPool(TOY, 2, backend) as pool:
        begin(pool)
        pool.send(0, gates.closed("gate"), deadline=0.05)
        pool.send(1, "knock")
        assert only(pool)[:2] == (1, "You knocked 1 times.")
        result = only(pool)
        assert result.slot == 0 and isinstance(result.error, EnvFault)
        assert str(result.error) == f"{TOY} in slot 0 did not answer within 0.05 seconds and was replaced."
        pool.send(0, "knock")
        assert isinstance(only(pool).error, ResetNeeded)
        pool.reset(0, "door/test/2")
        assert only(pool).observation == "Hello. Knock 2 times."
        gates.open("gate")  # what the old world still says is nobody's answer
        pool.send(0, "knock")
        assert only(pool).observation == "You knocked 1 times."
        pool.send(1, "knock")
        assert only(pool).observation == "You knocked 2 times."
        with pytest.raises(RuntimeError, match="No call is pending"):
            pool.recv()


def test_a_process_that_ends_in_a_call_or_between_two_is_no_silent_loss() -> None:
    with EnvPool(TOY, 1, "process") as pool:
        begin(pool)
        first = pid(pool, 0)
        os.kill(first, signal.SIGKILL)
        pool.send(0, "knock")
        assert isinstance(only(pool).error, EnvFault | ResetNeeded)
        for action, words in (("exit 3", "ended with status 3"), ("kill", "was ended by signal 9")):
            begin(pool)
            assert pid(pool, 0) != first
            pool.send(0, action)
            error = only(pool).error
            assert isinstance(error, EnvFault) and f"{TOY} in slot 0" in str(error) and words in str(error)


@pytest.mark.long
def test_a_process_that_takes_nothing_any_more_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.pool.process._SEND_TIMEOUT", 1)
    with EnvPool(TOY, 1, "process") as pool:
        begin(pool)
        stopped = psutil.Process(pid(pool, 0))
        stopped.suspend()
        pool.send(0, "x" * (1 << 18), deadline=0.05)  # more than the pipe holds
        assert isinstance(only(pool).error, EnvFault)
    assert all_end([stopped])


def test_a_world_that_asks_for_the_end_of_its_process_ends_no_thread() -> None:
    with EnvPool(TOY, 1, "thread") as pool:
        begin(pool)
        pool.send(0, "leave 3")
        error = only(pool).error
        assert isinstance(error, EnvFault) and "SystemExit(3)" in str(error)
        begin(pool)


@pytest.mark.parametrize("backend", ("thread", LONG_PROCESS))
def test_replacing_ends_the_call_that_is_on_its_way(backend: str, gates: Any) -> None:
    with EnvPool(TOY, 1, backend) as pool:
        begin(pool)
        pool.send(0, gates.closed("gate"))
        pool.replace(0)
        error = only(pool).error
        assert isinstance(error, EnvFault) and "was replaced before it answered" in str(error)
        begin(pool)
        pool.replace(0)
        pool.send(0, "knock")
        assert isinstance(only(pool).error, ResetNeeded)


def test_a_call_without_a_deadline_can_be_ended(gates: Any) -> None:
    with EnvPool(TOY, 1, "thread") as pool:
        begin(pool)
        pool.send(0, gates.closed("gate"), deadline=math.inf)
        pool.replace(0)
        assert "was replaced before it answered" in str(only(pool).error)


def test_a_world_that_hangs_is_noticed_while_others_always_answer(gates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.pool.pool._CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(Toy, "step_waits", True)  # so that it has a thread, beside one that is played inline
    with EnvPool([TOY, "agentgym/TextCraft-v0"], options=[{"greeting": "Hi."}, {"max_episode_steps": 10**6}]) as pool:
        pool.reset(0, "door/test/1")
        assert only(pool).error is None
        pool.reset(1)
        assert only(pool).error is None
        pool.send(0, gates.closed("gate"), deadline=0.05)
        results: list[Result] = []
        while not any(result.slot == 0 for result in results):
            pool.send(1, "inventory")  # its answer is there before `recv` is called
            results = pool.recv()
    assert "did not answer within 0.05 seconds" in str(results[0].error or results[-1].error)


@pytest.mark.parametrize("backend", ("thread", LONG_PROCESS))
def test_closing_ends_the_calls_that_are_on_their_way(
    backend: str, gates: Any, gather: Gather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym_envs.pool.pool._CLOSE_TIMEOUT", 0.05)
    pool = EnvPool(TOY, 2, backend)
    begin(pool)
    pool.send(0, gates.closed("gate"))
    pool.send(1, "knock")
    pool.close()
    results = gather(pool, 2)
    assert isinstance(results[0].error, EnvFault) and "was closed before it answered" in str(results[0].error)
    assert results[1].observation == "You knocked 1 times."


def test_an_interrupted_step_leaves_a_slot_that_can_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Toy, action: str) -> None:
        raise KeyboardInterrupt

    with EnvPool(TOY, 1, "inline") as pool:
        begin(pool)
        with monkeypatch.context() as patch:
            patch.setattr(Toy, "_act", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.send(0, "knock")
        pool.send(0, "knock")
        assert isinstance(only(pool).error, ResetNeeded)
        begin(pool)


def test_after_ctrl_c_at_any_line_a_slot_can_be_replaced() -> None:
    """An interrupt at each line of the pool's own code in turn that `send` and `recv` run through."""
    lines = 0

    def play(pool: EnvPool, until: int) -> bool:
        """Whether `send` and `recv` came to their end before that many lines."""
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

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            pool.send(0, "knock")
            pool.recv()
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(before)
        return True

    pool_code = EnvPool.recv.__code__.co_filename
    with EnvPool(TOY, 1, "inline") as pool:
        until = 1
        while True:
            begin(pool)
            if play(pool, until):
                break
            pool.replace(0)
            pool.recv(0)
            until += 1
    assert until > 20


def test_a_world_that_is_let_go_of_in_the_middle_is_closed_by_its_player(gates: Any) -> None:
    slot = InlineSlot(0, WorldSpec(TOY))
    results: list[Result] = []
    closed = Toy.closed
    slot.submit(Reset("door/test/0"), results.append)
    player = threading.Thread(target=slot.submit, args=(Step(gates.closed("gate")), results.append))
    player.start()
    eventually(lambda: gates.reached("gate"))
    slot.replace()
    assert Toy.closed == closed
    gates.open("gate")
    player.join()
    assert Toy.closed == closed + 1
    assert results[-1].observation == "gate is there."
    slot.submit(Step("knock"), results.append)
    assert isinstance(results[-1].error, ResetNeeded)
    slot.close()
    assert Toy.closed == closed + 2
    slot.submit(Step("knock"), results.append)
    assert isinstance(results[-1].error, EnvFault) and "is closed" in str(results[-1].error)


@pytest.mark.parametrize("backend", ("inline", "thread", LONG_PROCESS))
def test_threads_may_share_a_pool(backend: str) -> None:
    """Each thread plays a slot of its own, all receive for all, and no result is lost, doubled or another's."""
    rounds, slots = 30, 2
    seen: list[Result] = []
    with EnvPool(TOY, slots, backend, options={"max_episode_steps": 1000}) as pool:
        begin(pool)
        own = [threading.Semaphore(0) for _ in range(slots)]

        def play(slot: int) -> None:
            for _ in range(rounds):
                pool.send(slot, "knock")
                while not own[slot].acquire(blocking=False):
                    for result in pool.recv(timeout=TURN):
                        seen.append(result)
                        own[result.slot].release()

        players = [threading.Thread(target=partial(play, slot)) for slot in range(slots)]
        for player in players:
            player.start()
        for player in players:
            player.join()
    for slot in range(slots):
        observed = [result.observation for result in seen if result.slot == slot]
        assert observed == [f"You knocked {knocks} times." for knocks in range(1, rounds + 1)]


def test_two_threads_never_get_the_same_slot(gates: Any) -> None:
    with EnvPool(TOY, 1, "thread") as pool:
        begin(pool)
        barrier = threading.Barrier(8)
        refused: list[bool] = []

        def race() -> None:
            barrier.wait()
            try:
                pool.send(0, gates.closed("gate"))
            except SlotBusy:
                refused.append(True)

        racers = [threading.Thread(target=race) for _ in range(8)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert len(refused) == 7
        gates.open("gate")
        assert only(pool).observation == "gate is there."


@pytest.mark.parametrize("backend", ("thread", LONG_PROCESS))
def test_a_storm_of_calls_too_late_gives_no_slot_anothers_answer(backend: str) -> None:
    """Deadlines about as long as a step: whichever wins, an answer belongs to the call it is received for."""
    faults = answers = 0
    with EnvPool(TOY, 1, backend, options={"max_episode_steps": 10_000}) as pool:
        begin(pool)
        for number in range(60 if backend == "thread" else 9):
            pool.send(0, f"echo {number}", deadline=(1e-9, 1e-4, 10.0)[number % 3])
            result = only(pool)
            if result.error is None:
                answers += 1
                assert len(result.observation) == number
            else:
                faults += 1
                assert isinstance(result.error, EnvFault)
                begin(pool)
    assert answers > 0 and faults > 0
