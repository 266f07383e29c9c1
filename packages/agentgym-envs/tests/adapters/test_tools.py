"""Worlds as tools: functions as methods, as trainers of others call them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from agentgym_envs import WORLDS, EnvFault, make, text_env
from agentgym_envs.adapters.tools import ToolWorld, tool_environment
from agentgym_envs.core.action_schema import call_for
from door_world import ENV_ID, Door, made

STAIRS = "textcraft/test/red_sandstone_stairs"


@pytest.fixture
def break_down(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """TextCraft, whose steps and starts raise what stands in this list, as long as something stands there."""
    faults: list[str] = []
    world = type(text_env(make("agentgym/TextCraft-v0")))
    for hook in ("_act", "_start"):
        whole = getattr(world, hook)

        def broken(self: Any, asked: Any, whole: Any = whole) -> Any:
            if faults:
                raise EnvFault(faults.pop())
            return whole(self, asked)

        monkeypatch.setattr(world, hook, broken)
    return faults


# Functions as methods.


@pytest.mark.parametrize("world", ["agentgym/TextCraft-v0", "agentgym/BabyAI-v0"])
def test_the_expert_solves_a_task_by_calling_methods(world: str) -> None:
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
def test_methods_say_what_they_take(world: str) -> None:
    cls = tool_environment(world)
    functions = text_env(make(world)).functions
    public = {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}
    assert public == {function.name for function in functions} | {"reset", "get_reward"}
    for function in functions:
        method = getattr(cls, function.name)
        parameters = {name: part for name, part in inspect.signature(method).parameters.items() if name != "self"}
        assert parameters.keys() == function.properties.keys()
        left_out = {name for name, part in parameters.items() if part.default is None}
        assert left_out == set(function.optional)
        assert method.__doc__.startswith(function.description)
        assert all(f"    {name}: " in method.__doc__ for name in parameters)


def test_a_call_that_cannot_be_understood_costs_a_turn() -> None:
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


def test_a_world_that_broke_has_no_reward(break_down: list[str]) -> None:
    env = tool_environment("textcraft")()
    break_down.append("once")
    env.reset(task=STAIRS)  # built anew
    break_down.append("for good")
    for ask in (env.inventory, env.inventory, env.get_reward):
        with pytest.raises(EnvFault, match="for good"):
            ask()
    env.reset(task=STAIRS)
    assert env.get_reward() == 0.0


def test_a_task_that_is_not_there_was_not_begun() -> None:
    world = ToolWorld("textcraft", {})
    world.begin(STAIRS)
    with pytest.raises(KeyError, match="no task 'nowhere'"):
        world.begin("nowhere")
    with pytest.raises(RuntimeError, match="begin one first"):
        world.call("inventory", {})


def test_a_world_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="Did you mean agentgym/TextCraft-v0"):
        tool_environment("agentgym/TextCraft-v1")


def test_a_world_of_ones_own_plays_as_well() -> None:
    with made(Door):
        env = tool_environment(ENV_ID)()
        env.reset(task="door/train/0")
        assert env.act(action="open") == "The door opens."
        assert env.get_reward() == 1.0
