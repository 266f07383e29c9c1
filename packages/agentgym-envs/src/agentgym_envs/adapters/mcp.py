"""A world as an MCP server: `reset` and a tool for each kind of action, for any client of the Model Context Protocol.

`python -m agentgym_envs.adapters.mcp textcraft` speaks on standard input and output, which is how MCP clients start
servers; with `--url` the world is played on a `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from gymnasium.error import DependencyNotInstalled, Error

from agentgym_envs.adapters.tools import ToolWorld
from agentgym_envs.core.registry import REMOTE, full_id, read_resolved
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.installation import install
from agentgym_envs.util.redaction import redacted, resolved

try:
    from mcp import stdio_server
    from mcp.server import Server, ServerRequestContext
    from mcp.types import (
        CallToolRequestParams,
        CallToolResult,
        ListToolsResult,
        PaginatedRequestParams,
        TextContent,
        Tool,
    )
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(f"An MCP server needs the package mcp, version 2: {install('mcp>=2')}") from missing

_RESET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "Id of the task; left out, one is drawn from the split."},
        "split": {"type": "string", "enum": list(SPLITS), "default": "train", "description": "Where it is drawn from."},
        "seed": {"type": "integer", "minimum": 0, "description": "Draws the same task again."},
    },
    "additionalProperties": False,
}


class _Game:
    """The world of one client, in a thread of its own: what it stands on may be bound to one."""

    def __init__(self, world: str, options: Mapping[str, Any]) -> None:
        self._thread = ThreadPoolExecutor(1, "world")
        self._made = self._thread.submit(ToolWorld, world, options)

    async def tools(self) -> list[Tool]:
        world = await asyncio.wrap_future(self._made)
        schemas = [function.schema["function"] for function in world.world.functions]
        reset = Tool(name="reset", description="Begin a task; everything else plays in it.", input_schema=_RESET)
        return [reset, *(_tool(schema) for schema in schemas)]

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        world = await asyncio.wrap_future(self._made)
        play = (lambda: world.begin(**arguments)) if name == "reset" else (lambda: world.call(name, arguments))
        try:
            said = await asyncio.get_running_loop().run_in_executor(self._thread, play)
        except (EnvFault, KeyError, RuntimeError, TypeError, ValueError) as error:
            told = str(error.args[0]) if isinstance(error, KeyError) else str(error)
            return CallToolResult(content=[TextContent(text=told)], is_error=True)
        last = world.last
        assert last is not None
        standing = {key: last.info[key] for key in ("task_id", "score", "success", "valid")}
        standing |= {"reward": last.reward, "terminated": last.terminated, "truncated": last.truncated}
        over = f"\n\nThe task is over; its score is {last.info['score']:g}." if last.over else ""
        return CallToolResult(content=[TextContent(text=said + over)], structured_content=standing)

    def close(self) -> None:
        self._thread.submit(lambda: self._made.result().close())
        self._thread.shutdown()


def _tool(schema: Mapping[str, Any]) -> Tool:
    return Tool(name=schema["name"], description=schema["description"], input_schema=schema["parameters"])


def mcp_server(world: str, **options: Any) -> Server[_Game]:
    """A server with the tools of `world`, whose instructions are the server's. Each connection plays its own.

    Raises:
        ValueError, DependencyNotInstalled: see `ToolWorld`.
    """
    tried = ToolWorld(world, options)
    try:
        instructions = tried.world.instructions
    finally:
        tried.close()

    @asynccontextmanager
    async def lifespan(_: Server[_Game]) -> AsyncGenerator[_Game]:
        game = _Game(world, options)
        try:
            yield game
        finally:
            game.close()

    async def list_tools(
        context: ServerRequestContext[_Game], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=await context.lifespan_context.tools())

    async def call_tool(context: ServerRequestContext[_Game], params: CallToolRequestParams) -> CallToolResult:
        return await context.lifespan_context.call(params.name, dict(params.arguments or {}))

    return Server(
        "agentgym",
        version=version("agentgym-envs"),
        instructions=f"{instructions}\n\nCall reset to begin a task, and then the other tools to act in it.",
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _serve(server: Server[_Game]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def main(argv: Sequence[str] | None = None) -> int:
    """Serve one world on standard input and output. Returns the exit code: 0, or 2 for wrong usage."""
    parser = argparse.ArgumentParser("python -m agentgym_envs.adapters.mcp", description=__doc__)
    parser.add_argument("world", help="id or short name, such as textcraft")
    parser.add_argument("--url", help="a server of worlds (`serve`) to play on, such as http://127.0.0.1:8000")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the world; repeatable")
    asked = parser.parse_args(argv)
    try:
        options = dict(map(read_resolved, asked.option))
        if asked.url is None:
            server = mcp_server(asked.world, **options)
        else:
            server = mcp_server(REMOTE, url=resolved(asked.url), env=full_id(asked.world), **options)
    except (ValueError, EnvFault, Error) as error:
        sys.stderr.write(f"mcp: {redacted(str(error))}\n")
        return 2
    asyncio.run(_serve(server))
    return 0


if __name__ == "__main__":
    sys.exit(main())
