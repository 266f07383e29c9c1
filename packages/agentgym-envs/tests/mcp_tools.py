"""An MCP server with tools and no tasks: an almanac that counts its look-ups. As a script, it is served on stdio."""

from __future__ import annotations

import os
from typing import Any

from mcp.server.mcpserver import MCPServer

CAPITALS = {"Norway": "Oslo", "Chile": "Santiago"}


def almanac() -> MCPServer[Any]:
    """Return a new server."""
    server: MCPServer[Any] = MCPServer("almanac", instructions="An almanac of capitals.")
    looked_up: list[str] = []

    @server.tool(name="look-up")
    def look_up(country: str) -> str:
        """Look up the capital of a country."""
        looked_up.append(country)
        if country not in CAPITALS:
            raise KeyError(country)
        return f"{CAPITALS[country]} (look-up {len(looked_up)})"

    @server.tool()
    def leave() -> str:
        """End the server."""
        os._exit(1)

    return server


if __name__ == "__main__":
    almanac().run()
