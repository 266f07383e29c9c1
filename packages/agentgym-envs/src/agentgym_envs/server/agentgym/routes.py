"""The routes under `/compat`: create, reset, step, observation and close of each environment, as in AgentGym.

Errors have the statuses and the form of `/v1`, while AgentGym responds with 200 and an error inside, or a score of 0.
AgentGym's clients treat any status except 200 as an error.
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
"""The numbering for each split in a base URL; None if there is no split."""
_Number = Annotated[int, Field(ge=0, lt=2**31)]


class RequestFields(BaseModel):
    """All fields that a client may send. The meaning of the numbers depends on the environment's `Protocol`."""

    id: _Number | None = None
    env_idx: _Number | None = None
    data_idx: _Number | None = None
    idx: _Number | None = None
    action: str | None = None


def compat_router(sessions: Sessions) -> APIRouter:
    """Create the routes of all environments. As AgentGym's protocol, they are not described at `/openapi.json`."""
    routes, router = _Routes(sessions), APIRouter(include_in_schema=False)
    for base in ("/compat/{world}", "/compat/{world}/{split}"):
        router.add_api_route(f"{base}/", routes.hello, methods=["GET"])
        router.add_api_route(f"{base}/create", routes.create, methods=["POST"])
        router.add_api_route(f"{base}/reset", routes.reset, methods=["POST"])
        router.add_api_route(f"{base}/step", routes.step, methods=["POST"])
        router.add_api_route(f"{base}/observation", routes.observation, methods=["GET"])
        router.add_api_route(f"{base}/close", routes.close, methods=["POST"])
    return router


class _Target(NamedTuple):
    """What a base URL refers to."""

    protocol: Protocol
    environments: Environments
    numbering: Numbering


class _Routes:
    """The handlers of the routes."""

    def __init__(self, sessions: Sessions) -> None:
        self._worlds = {
            protocol.name: (protocol, Environments(sessions, protocol.name, protocol.options)) for protocol in PROTOCOLS
        }

    async def hello(self, request: Request) -> Response:
        """Return "ok" if the URL is a base URL."""
        self._target(request)
        return json_response("ok")

    async def create(self, request: Request) -> Response:
        """Open an environment. The body is ignored, as in AgentGym's servers."""
        protocol, environments, numbering = self._target(request)
        environment = await environments.create(numbering)
        if protocol.create_starts_episode:
            try:
                await environments.reset(environment, numbering, 0)
            except BaseException:
                environments.close(environment)
                raise
        return json_response(protocol.created(environment))

    async def reset(self, request: Request, fields: RequestFields) -> Response:
        """Start an episode of a task."""
        protocol, environments, numbering = self._target(request)
        environment = environments.get(_number(fields, protocol.environment))
        first = await environments.reset(environment, numbering, _number(fields, protocol.task))
        return json_response(protocol.began(environment, first))

    async def step(self, request: Request, fields: RequestFields) -> Response:
        """Take an action."""
        protocol, environments, _ = self._target(request)
        environment = environments.get(_number(fields, protocol.environment))
        if fields.action is None:
            raise Refusal(422, "invalid", "action: the text of an action is required.")
        result = await environments.step(environment, protocol.action(fields.action))
        return json_response(protocol.stepped(result))

    async def observation(self, request: Request, fields: Annotated[RequestFields, Query()]) -> Response:
        """Return the last observation again."""
        protocol, environments, _ = self._target(request)
        environment = environments.get(_number(fields, protocol.environment))
        if environment.session.last is None:
            raise refusal_of(ResetNeeded(), Ask("observation"))
        return json_response(protocol.observed(environment, environment.session.last))

    async def close(self, request: Request, fields: RequestFields) -> Response:
        """Close an environment."""
        protocol, environments, _ = self._target(request)
        environments.close(environments.get(_number(fields, protocol.environment)))
        return json_response(protocol.closed)

    def _target(self, request: Request) -> _Target:
        world, split = request.path_params["world"], request.path_params.get("split")
        if world not in self._worlds:
            names = ", ".join(self._worlds)
            raise Refusal(
                404, "unknown_world", f"There is no environment {world!r} under /compat; choose one of {names}."
            )
        if split not in _NUMBERINGS:
            raise Refusal(
                404, "not_found", f"There is no split {split!r} of {world}; choose one of {', '.join(SPLITS)}."
            )
        return _Target(*self._worlds[world], _NUMBERINGS[split])


def _number(fields: RequestFields, name: str) -> int:
    number: int | None = getattr(fields, name)
    if number is None:
        raise Refusal(422, "invalid", f"{name}: an integer of at least 0 is required.")
    return number
