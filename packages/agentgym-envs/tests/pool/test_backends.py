"""Tests of pools with every backend."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import agentgym_envs
import gymnasium
import pytest
from agentgym_envs.core.text_env import EnvFault, Malformed
from agentgym_envs.pool import EnvPool, Result, SlotBusy, WorldSpec
from agentgym_envs.pool.backends import default_backend
from faulty_worlds import SHY, TOY, Toy
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled, ResetNeeded

BACKENDS = ("inline", "thread", "process")
TEXTCRAFT = "agentgym/TextCraft-v0"
OPTIONS = {"max_episode_steps": 1000}
Gather = Callable[[EnvPool, int], dict[int, Result]]
Pools = Callable[[str], EnvPool]


@pytest.fixture(scope="module")
def pools() -> Iterator[Callable[[str], EnvPool]]:
    """Return a pool of three toys of a backend, shared by many tests because a process takes 0.3 seconds to start."""
    with ExitStack() as stack:

        @cache
        def pool(backend: str) -> EnvPool:
            return stack.enter_context(EnvPool(TOY, 3, backend, options=OPTIONS))

        yield pool


def receive_one(pool: EnvPool) -> Result:
    (result,) = pool.recv()
    return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_transcripts_match_the_environment_without_a_pool(pools: Pools, backend: str) -> None:
    env = agentgym_envs.make(TOY, **OPTIONS)
    pool = pools(backend)
    for slot, task in enumerate(("door/test/1", "door/test/2")):
        pool.reset(slot, task, seed=5)
        observation, info = env.reset(seed=5, options={"task": task})
        assert receive_one(pool) == Result(slot, observation, info=info)
        terminated = False
        for action in ("fly", Malformed("hm", "Say an action."), *[None] * (slot + 2)):
            action = action or env.get_wrapper_attr("oracle")()
            pool.send(slot, action)
            observation, reward, terminated, truncated, info = env.step(action)
            assert receive_one(pool) == Result(slot, observation, reward, terminated, truncated, info)
        assert terminated
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_environments_draw_tasks_from_a_split(pools: Pools, backend: str) -> None:
    env = agentgym_envs.make(TOY)
    pool = pools(backend)
    pool.reset(0, split="test", seed=3)
    drawn = [receive_one(pool).info["task_id"]]
    pool.reset(0, split="test")
    drawn.append(receive_one(pool).info["task_id"])
    first = env.reset(seed=3, options={"split": "test"})[1]["task_id"]
    assert drawn == [first, env.reset(options={"split": "test"})[1]["task_id"]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_keep_their_class_and_message(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.reset(0, "door/test/99")
    error = receive_one(pool).error
    assert isinstance(error, KeyError) and "There is no task 'door/test/99'" in str(error)
    pool.reset(0, split="exam")  # type: ignore[arg-type]
    error = receive_one(pool).error
    assert isinstance(error, ValueError) and "There is no split 'exam'" in str(error)
    pool.reset(0, "door/test/1")
    assert receive_one(pool).error is None
    for action, kind, message in (
        ("raise fault", EnvFault, "the tower fell"),
        ("raise local", EnvFault, "the tower fell"),
        ("raise odd", ValueError, "7 is odd"),
        ("raise key", KeyError, "'no such key'"),
        ("raise value", ValueError, "no such value"),
    ):
        pool.send(0, action)
        error = receive_one(pool).error
        assert isinstance(error, kind) and str(error) == message
    pool.send(0, 7)  # type: ignore[arg-type]
    assert isinstance(receive_one(pool).error, TypeError)
    pool.send(0, "knock")
    assert receive_one(pool).observation == "You knocked 1 times."


@pytest.mark.parametrize("backend", BACKENDS)
def test_ask_works_before_reset_and_until_close(backend: str) -> None:
    with EnvPool(TOY, 1, backend, options={"render_mode": "ansi"}) as pool:
        pool.ask(0, "instructions")
        assert receive_one(pool).value == "Knock as often as you are told to, then open."
        pool.send(0, "knock")
        assert isinstance(receive_one(pool).error, ResetNeeded)
        pool.ask(0, "nonsense")
        assert isinstance(receive_one(pool).error, AttributeError)
        pool.reset(0, "door/test/2")
        assert receive_one(pool).error is None
        for name, value in (("oracle", "knock"), ("render", "Hello. Knock 2 times.")):
            pool.ask(0, name)
            assert receive_one(pool).value == value
        pool.ask(0, "pid")
        assert (receive_one(pool).value == os.getpid()) == (backend != "process")
    pool.close()  # again
    for call in (lambda: pool.send(0, "knock"), lambda: pool.reset(0), lambda: pool.replace(0)):
        with pytest.raises(RuntimeError, match="This pool is closed; create a new one"):
            call()
    with pytest.raises(RuntimeError, match="No call is pending"):
        pool.recv()
    assert pool.recv(timeout=0) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_can_be_asked_for_only_within_the_process(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.ask(0, "tasks")
    result = receive_one(pool)
    if backend == "process":
        assert isinstance(result.error, TypeError) and "TaskSet can't be sent" in str(result.error)
    else:
        assert result.value.test.ids == ["door/test/0", "door/test/1", "door/test/2"]


@pytest.mark.parametrize("backend", ("inline", "thread"))  # in a process: test_host.py
def test_failed_construction_is_reported_at_every_call(backend: str) -> None:
    with EnvPool([TOY, TOY], backend=backend, options=[{"lacking": True}, {"colour": "red"}]) as pool:
        for _ in range(2):
            pool.reset(0)
            error = receive_one(pool).error
            assert isinstance(error, DependencyNotInstalled) and "pip install child" in str(error)
            pool.reset(1)
            error = receive_one(pool).error
            assert isinstance(error, ValueError) and "colour" in str(error)


@pytest.mark.parametrize("backend", ["inline", "thread", None])
def test_slots_can_have_different_environments_and_options(backend: str | None, gather: Gather) -> None:
    specs = [TEXTCRAFT, WorldSpec(TOY, {"greeting": "Hi!"}), SHY]
    with EnvPool(specs, backend=backend, options=[{}, {"max_episode_steps": 1}, {}]) as pool:
        assert len(pool) == 3
        for slot in range(3):
            pool.reset(slot, seed=0)
        first = gather(pool, 3)
        assert first[0].observation.startswith("Crafting commands:")
        assert first[1].observation.startswith("Hi! Knock") and first[2].observation.startswith("Knock")
        for slot in range(3):
            pool.send(slot, "knock")
        second = gather(pool, 3)
    assert [second[slot].truncated for slot in range(3)] == [False, True, False]
    assert second[1].over and not second[2].over


@pytest.mark.parametrize("backend", ("thread", "process"))
def test_results_arrive_in_order_of_completion(pools: Pools, backend: str, gates: Any) -> None:
    pool = pools(backend)
    for slot in range(3):
        pool.reset(slot, "door/test/0")
        assert receive_one(pool).slot == slot
    for slot in range(3):
        pool.send(slot, gates.wait_action(f"gate-{slot}"))
    assert pool.recv(timeout=0) == []
    for slot in (2, 0, 1):
        gates.open(f"gate-{slot}")
        result = receive_one(pool)
        assert (result.slot, result.observation) == (slot, f"gate-{slot} is there.")


@pytest.mark.parametrize("backend", ("thread", "process"))
def test_fast_environments_do_not_wait_for_a_slow_one(pools: Pools, backend: str, gates: Any) -> None:
    pool = pools(backend)
    for slot in range(2):
        pool.reset(slot, "door/test/0")
        receive_one(pool)
    pool.send(0, gates.wait_action("gate"))
    for knocks in range(1, 11):
        pool.send(1, "knock")
        assert receive_one(pool).observation == f"You knocked {knocks} times."
    gates.open("gate")
    assert receive_one(pool).slot == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_slot_is_busy_until_its_result_is_received(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.reset(0)
    with pytest.raises(SlotBusy, match="Slot 0 has a call whose result was not received yet"):
        pool.send(0, "knock")
    pool.reset(1)
    received = pool.recv()
    while len(received) < 2:
        received += pool.recv()
    pool.send(0, "knock")
    assert receive_one(pool).error is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_texts_are_transferred(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.reset(0, "door/test/0")
    receive_one(pool)
    pool.send(0, f"echo {1 << 20}")
    assert receive_one(pool).observation == "o" * (1 << 20)
    pool.send(0, "x" * (1 << 20))
    assert receive_one(pool).info["valid"] is False


def test_invalid_arguments_are_rejected_immediately() -> None:
    for arguments, options, message in (
        (("agentgym/TextCaft-v0", 2), {}, "Did you mean agentgym/TextCraft-v0?"),
        (("no_such_module:toys/Toy-v0", 2, "thread"), {}, "no_such_module"),
        ((".faulty_worlds:toys/Toy-v0", 2, "thread"), {}, "can't be imported"),
        ((TOY, 2, "fork"), {}, "There is no backend 'fork'; choose one of inline, thread, process, or the URL"),
        ((TOY,), {}, "give slots=N"),
        ((TOY, 0), {}, "give slots=N"),
        (([TOY, TOY], 3), {}, "does not match"),
        (([],), {}, "does not match"),
        ((TOY, 2), {"options": [{}, {}, {}]}, "options for 3 slots, but 2 slots"),
        ((TOY, 2), {"deadline": 0}, "A deadline must be above 0 seconds"),
        ((TOY, 2), {"deadline": math.nan}, "A deadline must be above 0 seconds"),
        ((TOY, 1, "process"), {"options": {"judge": lambda: 1}}, "can't be sent to another process"),
    ):
        with pytest.raises(ValueError) as caught:
            EnvPool(*arguments, **options)
        assert message in str(caught.value)
    with EnvPool(TOY, 2) as pool:
        for slot in (-1, 2):
            with pytest.raises(IndexError, match=f"There is no slot {slot}; this pool has slots 0 to 1"):
                pool.send(slot, "knock")
        with pytest.raises(ValueError, match="above 0"):
            pool.send(0, "knock", deadline=-1)
        with pytest.raises(RuntimeError, match=r"call send\(\) or reset\(\)"):
            pool.recv()


@pytest.mark.parametrize(
    ("world", "backend"),
    [
        ("agentgym/TextCraft-v0", "inline"),
        ("agentgym/BabyAI-v0", "inline"),
        ("agentgym/SciWorld-v0", "thread"),
        ("agentgym/SearchQA-v0", "thread"),
        ("agentgym/WebArena-v0", "thread"),
        (TOY, "process"),
        ("faulty_worlds:toys/Built-v0", "thread"),
    ],
)
def test_default_backend_follows_the_cost_of_a_step(world: str, backend: str) -> None:
    assert default_backend(WorldSpec(world)) == backend


def test_notebook_environment_runs_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    world = type("Own", (Toy,), {"__module__": "__main__"})
    monkeypatch.setitem(gymnasium.registry, "own/Own-v0", EnvSpec("own/Own-v0", world))
    assert default_backend(WorldSpec("own/Own-v0")) == "thread"
    with pytest.raises(ValueError, match=r"own/Own-v0 is defined in a script or a notebook, .*put it in a module"):
        EnvPool("own/Own-v0", 1, "process")
