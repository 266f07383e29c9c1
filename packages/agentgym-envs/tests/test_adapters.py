"""Worlds as other libraries take them: functions as methods, SkyRL-gym and MCP, each played through the
library's own door where it has one."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import skyrl_gym
from agentgym_envs import WORLDS, EnvFault, make, text_env
from agentgym_envs.adapters.mcp import main as mcp_main
from agentgym_envs.adapters.mcp import mcp_server
from agentgym_envs.adapters.skyrl import SkyRLWorld
from agentgym_envs.adapters.tools import ToolWorld, tool_environment
from agentgym_envs.functions import call_for
from door_world import ENV_ID, Door, made
from mcp import Client

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


# SkyRL-gym.


def test_skyrl_plays_it() -> None:
    skyrl_gym.register(id="agentgym-test", entry_point="agentgym_envs.adapters.skyrl:SkyRLWorld")
    row = {"world": "textcraft", "task": STAIRS, "max_turns": 4, "data_source": "SkyRL's own"}
    env = skyrl_gym.make("agentgym-test", env_config={"agent": "react"}, extras=row)
    (system, user), info = env.init([])
    assert "Action:" in system["content"]
    assert "red sandstone stairs" in user["content"]
    assert info["task_id"] == STAIRS
    step = env.step("Action: get 24 red sand")
    assert (step["observations"], step["done"]) == ([{"role": "user", "content": "Got 24 red sand"}], False)
    assert env.step("Let me think.")["metadata"]["valid"] is False
    env.step("Action: craft 6 red sandstone using 24 red sand")
    last = env.step("Action: craft 4 red sandstone stairs using 6 red sandstone")
    assert (last["observations"], last["reward"], last["done"]) == ([], 1.0, True)
    assert env.get_metrics() == {"score": 1.0, "success": 1.0, "turns": 4}
    env.close()
    env.close()


def test_skyrl_conversations_keep_what_the_row_says() -> None:
    env = SkyRLWorld({}, {"world": "textcraft", "agent": "function-call", "options": {"depth": (1, 1)}, "max_turns": 1})
    own = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    conversation, _ = env.init(own)
    assert conversation[:2] == own
    assert len(conversation) == 3
    assert '"inventory"' in env.init([])[0][0]["content"]
    assert env.step('{"function_name": "inventory", "arguments": {}}')["done"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "names its 'world'"),
        ({"world": "textcraft", "agent": "react+plan"}, "no habits: react, not react\\+plan"),
        ({"world": "textkraft"}, "no world 'textkraft'"),
    ],
)
def test_a_row_that_skyrl_cannot_play_is_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SkyRLWorld({}, row)


# MCP.


def test_an_mcp_client_plays_it() -> None:
    async def play() -> None:
        async with Client(mcp_server("textcraft", max_episode_steps=4)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["reset", "get", "craft", "inventory"]
            assert tools["get"].input_schema["required"] == ["amount", "item"]
            early = await client.call_tool("inventory", {})
            assert early.is_error
            assert "begin one first" in early.content[0].text
            await client.call_tool("reset", {"task": STAIRS})
            assert (await client.call_tool("get", {"amount": 24, "item": "red sand"})).content[0].text
            amiss = await client.call_tool("get", {"amount": 24})
            assert not amiss.is_error  # for the world it is a turn like any other
            assert amiss.structured_content["valid"] is False
            await client.call_tool("craft", {"amount": 6, "item": "red sandstone", "ingredients": "24 red sand"})
            stairs = {"amount": 4, "item": "red sandstone stairs", "ingredients": ["6 red sandstone"]}
            last = await client.call_tool("craft", stairs)
            assert last.content[0].text.endswith("The task is over; its score is 1.")
            assert last.structured_content["success"] is True
            for wrong, said in (({"task": "nowhere"}, "no task 'nowhere'"), ({"taks": 1}, "taks")):
                refused = await client.call_tool("reset", wrong)
                assert refused.is_error
                assert said in refused.content[0].text

    asyncio.run(play())


@pytest.mark.parametrize(
    ("arguments", "said"), [(["nothing"], "no world 'nothing'"), (["textcraft", "--option", "x"], "KEY=VALUE")]
)
def test_an_mcp_server_of_nothing_says_so(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mcp_main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_world_of_ones_own_plays_as_well() -> None:
    with made(Door):
        env = tool_environment(ENV_ID)()
        env.reset(task="door/train/0")
        assert env.act(action="open") == "The door opens."
        assert env.get_reward() == 1.0
