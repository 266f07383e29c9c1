"""The routes under `/compat`: create, reset, step, observation and close of each world, in AgentGym's words.

Errors have our statuses and our form, where AgentGym answers 200 with an error inside, or with a score of 0: its
clients take any status but 200 for an error.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from gymnasium.error import ResetNeeded
from pydantic import BaseModel, Field
from starlette.responses import Response

from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.pool import Ask
from agentgym_envs.server.agentgym.environments import Environments, Numbering
from agentgym_envs.server.agentgym.protocols import PROTOCOLS, Protocol
from agentgym_envs.server.errors import Refusal, json_response, refusal_of
from agentgym_envs.server.sessions import Sessions

_NUMBERINGS: dict[str | None, Numbering] = {None: None, "train": "train", "dev": "dev", "test": "test"}
"""By what follows the world in a base URL."""
_Number = Annotated[int, Field(ge=0, lt=2**31)]


class Wanted(BaseModel):
    """All that a client may send; which of the numbers mean what differs by world."""

    id: _Number | None = None
    env_idx: _Number | None = None
    data_idx: _Number | None = None
    idx: _Number | None = None
    action: str | None = None


def compat_router(sessions: Sessions) -> APIRouter:
    """The routes of all worlds, over `sessions`. They aren't described at `/openapi.json`: it is another's protocol."""
    routes, router = _Routes(sessions), APIRouter(include_in_schema=False)
    for base in ("/compat/{world}", "/compat/{world}/{split}"):
        router.add_api_route(f"{base}/", routes.hello, methods=["GET"])
        router.add_api_route(f"{base}/create", routes.create, methods=["POST"])
        router.add_api_route(f"{base}/reset", routes.reset, methods=["POST"])
        router.add_api_route(f"{base}/step", routes.step, methods=["POST"])
        router.add_api_route(f"{base}/observation", routes.observation, methods=["GET"])
        router.add_api_route(f"{base}/close", routes.close, methods=["POST"])
    return router


class _Place(NamedTuple):
    """What a base URL stands for."""

    protocol: Protocol
    environments: Environments
    numbering: Numbering


class _Routes:
    """What the routes do."""

    def __init__(self, sessions: Sessions) -> None:
        self._worlds = {
            protocol.name: (protocol, Environments(sessions, protocol.name, protocol.options)) for protocol in PROTOCOLS
        }

    async def hello(self, request: Request) -> Response:
        """Whether this is a base URL."""
        self._place(request)
        return json_response("ok")

    async def create(self, request: Request) -> Response:
        """Open an environment. What a client sends is not read: where there is anything, its server ignores it, too."""
        protocol, environments, numbering = self._place(request)
        environment = await environments.create(numbering)
        if protocol.begins_at_once:
            try:
                await environments.reset(environment, numbering, 0)
            except BaseException:
                environments.close(environment)
                raise
        return json_response(protocol.created(environment))

    async def reset(self, request: Request, wanted: Wanted) -> Response:
        """Begin a task."""
        protocol, environments, numbering = self._place(request)
        environment = environments.get(_number(wanted, protocol.environment))
        first = await environments.reset(environment, numbering, _number(wanted, protocol.task))
        return json_response(protocol.began(environment, first))

    async def step(self, request: Request, wanted: Wanted) -> Response:
        """Play an action."""
        protocol, environments, _ = self._place(request)
        environment = environments.get(_number(wanted, protocol.environment))
        if wanted.action is None:
            raise Refusal(422, "invalid", "action: the text of an action is wanted.")
        result = await environments.step(environment, protocol.action(wanted.action))
        return json_response(protocol.stepped(result))

    async def observation(self, request: Request, wanted: Annotated[Wanted, Query()]) -> Response:
        """The last observation once more."""
        protocol, environments, _ = self._place(request)
        environment = environments.get(_number(wanted, protocol.environment))
        if environment.session.last is None:
            raise refusal_of(ResetNeeded(), Ask("observation"))
        return json_response(protocol.observed(environment, environment.session.last))

    async def close(self, request: Request, wanted: Wanted) -> Response:
        """Close an environment."""
        protocol, environments, _ = self._place(request)
        environments.close(environments.get(_number(wanted, protocol.environment)))
        return json_response(protocol.closed)

    def _place(self, request: Request) -> _Place:
        world, split = request.path_params["world"], request.path_params.get("split")
        if world not in self._worlds:
            there = ", ".join(self._worlds)
            raise Refusal(404, "unknown_world", f"AgentGym and we share no world {world!r}, but {there}.")
        if split not in _NUMBERINGS:
            raise Refusal(404, "not_found", f"There is no split {split!r} of {world}; there are {', '.join(SPLITS)}.")
        return _Place(*self._worlds[world], _NUMBERINGS[split])


def _number(wanted: Wanted, field: str) -> int:
    number: int | None = getattr(wanted, field)
    if number is None:
        raise Refusal(422, "invalid", f"{field}: a whole number from 0 is wanted.")
    return number
