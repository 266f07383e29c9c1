"""A world as an MCP server, played by MCP's own client."""

from __future__ import annotations

import asyncio

import pytest
from dev_packages import need

need("mcp")

from agentgym_envs.adapters.mcp import main, mcp_server
from mcp import Client

STAIRS = "textcraft/test/red_sandstone_stairs"


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
    ("arguments", "said"), [(["nothing"], "no environment 'nothing'"), (["textcraft", "--option", "x"], "KEY=VALUE")]
)
def test_an_mcp_server_of_nothing_says_so(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
