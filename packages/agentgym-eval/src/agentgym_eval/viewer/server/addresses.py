"""Parsing of the addresses of episodes in requests."""

from __future__ import annotations

from starlette.requests import Request

from agentgym_eval.viewer.index.links import ALL, LIST, Address
from agentgym_eval.viewer.index.queries import Filters

EPISODE = "{run}/{file}/{number:int}"
"""The part of a route that names an episode."""


def episode_address(request: Request) -> Address:
    """Return the address in the path of a request."""
    return Address(request.path_params["run"], request.path_params["file"], request.path_params["number"])


def listed_in(request: Request) -> Filters | None:
    """Parse the filters of the list that an episode was opened from; None without any. Raises `UsageError`."""
    query = {name: value for name, value in request.query_params.items() if name not in ("scenes", LIST)}
    return Filters.parse(query) if query or request.query_params.get(LIST) == ALL else None
