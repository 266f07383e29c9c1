"""An environment as an MCP (Model Context Protocol) server, with the tool `reset` and a tool per kind of action.

`python -m agentgym_envs.adapters.mcp textcraft` communicates over standard input and output, as MCP clients expect of
servers that they start. With `--url`, the environment runs on a `serve` server.
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
from agentgym_envs.core.registration import REMOTE, full_id
from agentgym_envs.core.registry import read_resolved
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
    raise DependencyNotInstalled(
        f"The MCP server needs version 2 of the package mcp. Install it: {install('mcp>=2')}"
    ) from missing

_RESET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "Id of the task; left out, one is drawn from the split."},
        "split": {"type": "string", "enum": list(SPLITS), "default": "train", "description": "Where it is drawn from."},
        "seed": {"type": "integer", "minimum": 0, "description": "Draws the same task again."},
    },
    "additionalProperties": False,
}


class _Session:
    """The environment of one client, in its own thread, since a simulator may be bound to one thread."""

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
            observation = await asyncio.get_running_loop().run_in_executor(self._thread, play)
        except (EnvFault, Error, KeyError, RuntimeError, TypeError, ValueError) as error:
            message = str(error.args[0]) if isinstance(error, KeyError) else str(error)
            return CallToolResult(content=[TextContent(text=message)], is_error=True)
        last = world.last
        assert last is not None
        status = {key: last.info[key] for key in ("task_id", "score", "success", "valid")}
        status |= {"reward": last.reward, "terminated": last.terminated, "truncated": last.truncated}
        over = f"\n\nThe task is over; its score is {last.info['score']:g}." if last.over else ""
        return CallToolResult(content=[TextContent(text=observation + over)], structured_content=status)

    def close(self) -> None:
        self._thread.submit(lambda: self._made.result().close())
        self._thread.shutdown()


def _tool(schema: Mapping[str, Any]) -> Tool:
    return Tool(name=schema["name"], description=schema["description"], input_schema=schema["parameters"])


def mcp_server(world: str, **options: Any) -> Server[_Session]:
    """Return a server with the tools and instructions of `world`. Each connection has its own environment.

    Raises:
        ValueError, DependencyNotInstalled: see `ToolWorld`.
    """
    trial = ToolWorld(world, options)
    try:
        instructions = trial.world.instructions
    finally:
        trial.close()

    @asynccontextmanager
    async def lifespan(_: Server[_Session]) -> AsyncGenerator[_Session]:
        session = _Session(world, options)
        try:
            yield session
        finally:
            session.close()

    async def list_tools(
        context: ServerRequestContext[_Session], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=await context.lifespan_context.tools())

    async def call_tool(context: ServerRequestContext[_Session], params: CallToolRequestParams) -> CallToolResult:
        return await context.lifespan_context.call(params.name, dict(params.arguments or {}))

    return Server(
        "agentgym",
        version=version("agentgym-envs"),
        instructions=f"{instructions}\n\nCall reset to begin a task, and then the other tools to act in it.",
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _serve(server: Server[_Session]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def main(argv: Sequence[str] | None = None) -> int:
    """Serve one environment on standard input and output. Returns the exit code: 0, or 2 for wrong usage."""
    parser = argparse.ArgumentParser("python -m agentgym_envs.adapters.mcp", description=__doc__)
    parser.add_argument("world", help="id or short name of the environment, such as textcraft")
    parser.add_argument(
        "--url", help="URL of a `serve` server that runs the environment, such as http://127.0.0.1:8000"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="environment option; repeatable"
    )
    arguments = parser.parse_args(argv)
    try:
        options = dict(map(read_resolved, arguments.option))
        if arguments.url is None:
            server = mcp_server(arguments.world, **options)
        else:
            server = mcp_server(REMOTE, url=resolved(arguments.url), env=full_id(arguments.world), **options)
    except (ValueError, EnvFault, Error) as error:
        sys.stderr.write(f"mcp: {redacted(str(error))}\n")
        return 2
    asyncio.run(_serve(server))
    return 0


if __name__ == "__main__":
    sys.exit(main())
