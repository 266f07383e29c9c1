"""What a pool does whichever way its slots hold their worlds."""

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
from faulty_worlds import TOY, Toy
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled, ResetNeeded

BACKENDS = ("inline", "thread", "process")
TEXTCRAFT = "agentgym/TextCraft-v0"
OPTIONS = {"max_episode_steps": 1000}
Gather = Callable[[EnvPool, int], dict[int, Result]]
Pools = Callable[[str], EnvPool]


@pytest.fixture(scope="module")
def pools() -> Iterator[Callable[[str], EnvPool]]:
    """Three toys of a backend, the same for many tests: a process takes a third of a second to start."""
    with ExitStack() as stack:

        @cache
        def pool(backend: str) -> EnvPool:
            return stack.enter_context(EnvPool(TOY, 3, backend, options=OPTIONS))

        yield pool


def only(pool: EnvPool) -> Result:
    (result,) = pool.recv()
    return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_transcripts_are_those_of_the_bare_world(pools: Pools, backend: str) -> None:
    env = agentgym_envs.make(TOY, **OPTIONS)
    pool = pools(backend)
    for slot, task in enumerate(("door/test/1", "door/test/2")):
        pool.reset(slot, task, seed=5)
        observation, info = env.reset(seed=5, options={"task": task})
        assert only(pool) == Result(slot, observation, info=info)
        terminated = False
        for action in ("fly", Malformed("hm", "Say an action."), *[None] * (slot + 2)):
            action = action or env.get_wrapper_attr("oracle")()
            pool.send(slot, action)
            observation, reward, terminated, truncated, info = env.step(action)
            assert only(pool) == Result(slot, observation, reward, terminated, truncated, info)
        assert terminated
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_worlds_draw_their_own_tasks_from_a_split(pools: Pools, backend: str) -> None:
    env = agentgym_envs.make(TOY)
    pool = pools(backend)
    pool.reset(0, split="test", seed=3)
    drawn = [only(pool).info["task_id"]]
    pool.reset(0, split="test")
    drawn.append(only(pool).info["task_id"])
    first = env.reset(seed=3, options={"split": "test"})[1]["task_id"]
    assert drawn == [first, env.reset(options={"split": "test"})[1]["task_id"]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_come_back_with_class_and_words(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.reset(0, "door/test/99")
    error = only(pool).error
    assert isinstance(error, KeyError) and "There is no task 'door/test/99'" in str(error)
    pool.reset(0, split="exam")  # type: ignore[arg-type]
    error = only(pool).error
    assert isinstance(error, ValueError) and "There is no split 'exam'" in str(error)
    pool.reset(0, "door/test/1")
    assert only(pool).error is None
    for action, kind, words in (
        ("raise fault", EnvFault, "the tower fell"),
        ("raise local", EnvFault, "the tower fell"),
        ("raise odd", ValueError, "7 is odd"),
        ("raise key", KeyError, "'no such key'"),
        ("raise value", ValueError, "no such value"),
    ):
        pool.send(0, action)
        error = only(pool).error
        assert isinstance(error, kind) and str(error) == words
    pool.send(0, 7)  # type: ignore[arg-type]
    assert isinstance(only(pool).error, TypeError)
    pool.send(0, "knock")
    assert only(pool).observation == "You knocked 1 times."


@pytest.mark.parametrize("backend", BACKENDS)
def test_worlds_are_asked_before_any_reset_and_until_the_pool_is_closed(backend: str) -> None:
    with EnvPool(TOY, 1, backend, options={"render_mode": "ansi"}) as pool:
        pool.ask(0, "instructions")
        assert only(pool).value == "Knock as often as you are told to, then open."
        pool.send(0, "knock")
        assert isinstance(only(pool).error, ResetNeeded)
        pool.ask(0, "nonsense")
        assert isinstance(only(pool).error, AttributeError)
        pool.reset(0, "door/test/2")
        assert only(pool).error is None
        for name, value in (("oracle", "knock"), ("render", "Hello. Knock 2 times.")):
            pool.ask(0, name)
            assert only(pool).value == value
        pool.ask(0, "pid")
        assert (only(pool).value == os.getpid()) == (backend != "process")
    pool.close()  # again
    for call in (lambda: pool.send(0, "knock"), lambda: pool.reset(0), lambda: pool.replace(0)):
        with pytest.raises(RuntimeError, match="This pool is closed; create a new one"):
            call()
    with pytest.raises(RuntimeError, match="No call is pending"):
        pool.recv()
    assert pool.recv(timeout=0) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_can_be_asked_for_where_no_process_lies_between(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.ask(0, "tasks")
    result = only(pool)
    if backend == "process":
        assert isinstance(result.error, TypeError) and "TaskSet can't be sent" in str(result.error)
    else:
        assert result.value.test.ids == ["door/test/0", "door/test/1", "door/test/2"]


@pytest.mark.parametrize("backend", ("inline", "thread"))  # in a process: test_pool_host.py
def test_what_cannot_be_made_says_so_at_every_call(backend: str) -> None:
    with EnvPool([TOY, TOY], backend=backend, options=[{"lacking": True}, {"colour": "red"}]) as pool:
        for _ in range(2):
            pool.reset(0)
            error = only(pool).error
            assert isinstance(error, DependencyNotInstalled) and "pip install child" in str(error)
            pool.reset(1)
            error = only(pool).error
            assert isinstance(error, ValueError) and "colour" in str(error)


@pytest.mark.parametrize("backend", ["inline", "thread", None])
def test_worlds_and_options_differ_from_slot_to_slot(backend: str | None, gather: Gather) -> None:
    specs = [TEXTCRAFT, WorldSpec(TOY, {"greeting": "Hi!"}), "faulty_worlds:toys/Wooden-v0"]
    with EnvPool(specs, backend=backend, options=[{}, {"max_episode_steps": 1}, {}]) as pool:
        assert len(pool) == 3
        for slot in range(3):
            pool.reset(slot, seed=0)
        first = gather(pool, 3)
        assert first[0].observation.startswith("Crafting commands:")
        assert first[1].observation.startswith("Hi! Knock") and first[2].observation == "wood"
        for slot in range(3):
            pool.send(slot, "knock")
        second = gather(pool, 3)
    assert [second[slot].truncated for slot in range(3)] == [False, True, False]
    assert second[1].over and not second[2].over


@pytest.mark.parametrize("backend", ("thread", "process"))
def test_results_come_in_order_of_completion(pools: Pools, backend: str, gates: Any) -> None:
    pool = pools(backend)
    for slot in range(3):
        pool.reset(slot, "door/test/0")
        assert only(pool).slot == slot
    for slot in range(3):
        pool.send(slot, gates.closed(f"gate-{slot}"))
    assert pool.recv(timeout=0) == []
    for slot in (2, 0, 1):
        gates.open(f"gate-{slot}")
        result = only(pool)
        assert (result.slot, result.observation) == (slot, f"gate-{slot} is there.")


@pytest.mark.parametrize("backend", ("thread", "process"))
def test_fast_worlds_do_not_wait_for_a_slow_one(pools: Pools, backend: str, gates: Any) -> None:
    pool = pools(backend)
    for slot in range(2):
        pool.reset(slot, "door/test/0")
        only(pool)
    pool.send(0, gates.closed("gate"))
    for knocks in range(1, 11):
        pool.send(1, "knock")
        assert only(pool).observation == f"You knocked {knocks} times."
    gates.open("gate")
    assert only(pool).slot == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slot_takes_one_call_until_its_result_is_received(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.reset(0)
    with pytest.raises(SlotBusy, match="Slot 0 has a call whose result was not received yet"):
        pool.send(0, "knock")
    pool.reset(1)
    received = pool.recv()
    while len(received) < 2:
        received += pool.recv()
    pool.send(0, "knock")
    assert only(pool).error is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_texts_pass(pools: Pools, backend: str) -> None:
    pool = pools(backend)
    pool.reset(0, "door/test/0")
    only(pool)
    pool.send(0, f"echo {1 << 20}")
    assert only(pool).observation == "o" * (1 << 20)
    pool.send(0, "x" * (1 << 20))
    assert only(pool).info["valid"] is False


def test_what_is_wrong_with_the_arguments_is_said_at_once() -> None:
    for arguments, options, words in (
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
        assert words in str(caught.value)
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
        ("faulty_worlds:toys/Wooden-v0", "thread"),
    ],
)
def test_the_default_follows_what_a_step_costs(world: str, backend: str) -> None:
    assert default_backend(WorldSpec(world)) == backend


def test_a_world_of_a_notebook_has_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    world = type("Own", (Toy,), {"__module__": "__main__"})
    monkeypatch.setitem(gymnasium.registry, "own/Own-v0", EnvSpec("own/Own-v0", world))
    assert default_backend(WorldSpec("own/Own-v0")) == "thread"
    with pytest.raises(ValueError, match=r"own/Own-v0 is defined in a script or a notebook, .*put it in a module"):
        EnvPool("own/Own-v0", 1, "process")
