"""Tests of the tool adapter, which offers an environment's functions as methods, as other trainers call them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from agentgym_envs import WORLDS, EnvFault, make, text_env
from agentgym_envs.adapters.tools import ToolWorld, tool_environment
from agentgym_envs.core.action_schema import call_for
from door_world import ENV_ID, Door, registered_env

STAIRS = "textcraft/test/red_sandstone_stairs"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list of faults that TextCraft's next starts and steps raise, the last one first."""
    pending: list[str] = []
    world = type(text_env(make("agentgym/TextCraft-v0")))
    for hook in ("_act", "_start"):
        original = getattr(world, hook)

        def broken(self: Any, argument: Any, original: Any = original) -> Any:
            if pending:
                raise EnvFault(pending.pop())
            return original(self, argument)

        monkeypatch.setattr(world, hook, broken)
    return pending


@pytest.mark.parametrize("world", ["agentgym/TextCraft-v0", "agentgym/BabyAI-v0"])
def test_expert_solves_a_task_by_calling_methods(world: str) -> None:
    expert = text_env(make(world))
    env = tool_environment(world)()
    task = expert.tasks.test.ids[0]
    assert env.reset(task=task, prompt="of the row") == expert.reset(options={"task": task})[0]
    success = False
    while not success:
        call = call_for(expert.functions, expert.oracle())
        observation, *_, info = expert.step(expert.oracle())
        assert getattr(env, call.name)(**call.arguments) == observation
        assert env.get_reward() == info["score"]
        success = info["success"]
    assert env.get_reward() == 1.0
    assert "The task is over" in getattr(env, call.name)(**call.arguments)


@pytest.mark.parametrize("world", [world.id for world in WORLDS])
def test_methods_match_the_declared_functions(world: str) -> None:
    cls = tool_environment(world)
    functions = text_env(make(world)).functions
    public = {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}
    assert public == {function.name for function in functions} | {"reset", "get_reward"}
    for function in functions:
        method = getattr(cls, function.name)
        signature = inspect.signature(method)
        parameters = {name: parameter for name, parameter in signature.parameters.items() if name != "self"}
        assert parameters.keys() == function.properties.keys()
        optional = {name for name, parameter in parameters.items() if parameter.default is None}
        assert optional == set(function.optional)
        assert method.__doc__.startswith(function.description)
        assert all(f"    {name}: " in method.__doc__ for name in parameters)


def test_invalid_calls_cost_a_turn() -> None:
    env = tool_environment("textcraft", max_episode_steps=3)()
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.get_reward()
    env.reset(task=STAIRS)
    assert "needs the argument 'item'" in env.get(amount=2)
    assert "has no argument 'colour'" in env.inventory(colour="red")
    with pytest.raises(TypeError, match="inventory takes 0 arguments, not 1"):
        env.inventory(1)
    assert env.get(24, "red sand") == "Got 24 red sand"
    assert "The task is over" in env.inventory()


def test_broken_environment_has_no_reward(faults: list[str]) -> None:
    env = tool_environment("textcraft")()
    faults.append("once")
    env.reset(task=STAIRS)  # recreates the environment after the fault
    faults.append("for good")
    for call in (env.inventory, env.inventory, env.get_reward):
        with pytest.raises(EnvFault, match="for good"):
            call()
    env.reset(task=STAIRS)
    assert env.get_reward() == 0.0


def test_unknown_task_leaves_no_task_begun() -> None:
    world = ToolWorld("textcraft", {})
    world.begin(STAIRS)
    with pytest.raises(KeyError, match="no task 'nowhere'"):
        world.begin("nowhere")
    with pytest.raises(RuntimeError, match="begin one first"):
        world.call("inventory", {})


def test_unknown_environment_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="Did you mean agentgym/TextCraft-v0"):
        tool_environment("agentgym/TextCraft-v1")


def test_custom_environment_can_be_played() -> None:
    with registered_env(Door):
        env = tool_environment(ENV_ID)()
        env.reset(task="door/train/0")
        assert env.act(action="open") == "The door opens."
        assert env.get_reward() == 1.0
