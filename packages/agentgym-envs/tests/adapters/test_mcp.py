"""Tests of the MCP adapter with MCP's own client."""

from __future__ import annotations

import asyncio

import pytest
from dev_packages import require_packages

require_packages("mcp")

from agentgym_envs.adapters.mcp import main, mcp_server
from mcp import Client

STAIRS = "textcraft/test/red_sandstone_stairs"


def test_mcp_client_plays_an_episode() -> None:
    async def play() -> None:
        async with Client(mcp_server("textcraft", max_episode_steps=4)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["reset", "get", "craft", "inventory"]
            assert tools["get"].input_schema["required"] == ["amount", "item"]
            before_reset = await client.call_tool("inventory", {})
            assert before_reset.is_error
            assert "begin one first" in before_reset.content[0].text
            await client.call_tool("reset", {"task": STAIRS})
            assert (await client.call_tool("get", {"amount": 24, "item": "red sand"})).content[0].text
            incomplete = await client.call_tool("get", {"amount": 24})
            assert not incomplete.is_error  # it counts as an invalid turn
            assert incomplete.structured_content["valid"] is False
            await client.call_tool("craft", {"amount": 6, "item": "red sandstone", "ingredients": "24 red sand"})
            stairs = {"amount": 4, "item": "red sandstone stairs", "ingredients": ["6 red sandstone"]}
            result = await client.call_tool("craft", stairs)
            assert result.content[0].text.endswith("The task is over; its score is 1.")
            assert result.structured_content["success"] is True
            for arguments, message in (({"task": "nowhere"}, "no task 'nowhere'"), ({"taks": 1}, "taks")):
                response = await client.call_tool("reset", arguments)
                assert response.is_error
                assert message in response.content[0].text

    asyncio.run(play())


@pytest.mark.parametrize("seed", [1.5, True, -1, "x"])
def test_invalid_seeds_are_reported(seed: object) -> None:
    async def reset() -> None:
        async with Client(mcp_server("textcraft")) as client:
            response = await client.call_tool("reset", {"seed": seed})
            assert response.is_error
            assert response.content[0].text == f"The seed must be an integer of at least 0, not {seed!r}."
            assert not (await client.call_tool("reset", {"seed": 1})).is_error

    asyncio.run(reset())


@pytest.mark.parametrize(
    ("arguments", "message"), [(["nothing"], "no environment 'nothing'"), (["textcraft", "--option", "x"], "KEY=VALUE")]
)
def test_invalid_arguments_are_reported(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
