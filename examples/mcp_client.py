"""An MCP client that plays an environment of a running `serve`, as an assistant with MCP servers would.

Needs: pip install "agentgym-envs[textcraft,serve]" "mcp>=2"
Takes the address of the server as its only argument.
"""

import asyncio
import sys
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client


async def play(url: str) -> dict[str, Any]:
    """Play a task on the server at `url`, and return the structured result of the last call."""
    command = ["-m", "agentgym_envs.adapters.mcp", "textcraft", "--url", url]
    async with Client(stdio_client(StdioServerParameters(command=sys.executable, args=command))) as client:
        print("tools:", *(tool.name for tool in (await client.list_tools()).tools))
        await client.call_tool("reset", {"task": "textcraft/test/red_sandstone_stairs"})
        await client.call_tool("get", {"amount": 24, "item": "red sand"})
        red_sandstone = {"amount": 6, "item": "red sandstone", "ingredients": ["24 red sand"]}
        await client.call_tool("craft", red_sandstone)
        stairs = {"amount": 4, "item": "red sandstone stairs", "ingredients": ["6 red sandstone"]}
        result = await client.call_tool("craft", stairs)
    print(result.content[0].text)
    return result.structured_content or {}


def main(url: str) -> dict[str, Any]:
    """See `play`."""
    return asyncio.run(play(url))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
