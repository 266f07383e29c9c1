"""The gateway: the HTTP server, and the episodes whose requests it answers.

An episode is identified by the secret that `open_episode` returns: as the first part of the path
(`/episodes/KEY/v1/chat/completions`), or else as the API key.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import uvicorn
from agentgym_envs.util.importing import described
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from agentgym_trainer.gateway.errors import ApiError
from agentgym_trainer.gateway.faces import Answer, ChatCompletions, Face
from agentgym_trainer.gateway.messages_api import Messages
from agentgym_trainer.gateway.recording import EpisodeLimits, EpisodeRecord
from agentgym_trainer.gateway.replies import Replier, ended_episode
from agentgym_trainer.gateway.requests import ChatRequest, chat_request
from agentgym_trainer.gateway.responses_api import Responses

_FACES: tuple[Face, ...] = (ChatCompletions(), Responses(), Messages())
_BACKLOG = 2048
_SHUTDOWN_SECONDS = 1


@dataclass(frozen=True, slots=True)
class OpenedEpisode:
    """An episode, and how an agent reaches it."""

    base_url: str
    """Base URL for OpenAI's clients. Anthropic's take it without `/v1`."""
    api_key: str
    """Identifies the episode at `Gateway.base_url`, too."""
    record: EpisodeRecord
    """What it has sampled so far."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the command that it is part of."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no handlers."""
        yield


class Gateway:
    """The server, on the event loop of the engine or the endpoint's client."""

    def __init__(self, replier: Replier, *, model: str) -> None:
        """Set up the gateway; `start` starts it.

        Args:
            replier: Where replies come from: `EngineReplier(engine, chat)`, or `EndpointReplier(endpoint)`. Its engine
                or endpoint stays open when the gateway is closed.
            model: The model's name in responses.
        """
        self.replier, self.model = replier, model
        self.base_url = ""
        """Base URL at which API keys identify episodes; empty before `start`."""
        self._episodes: dict[str, EpisodeRecord] = {}
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on an address; port 0 takes a free one.

        Raises:
            OSError: if the address can't be listened on.
        """
        listener = socket.create_server((host, port), backlog=_BACKLOG)
        number = listener.getsockname()[1]
        app = Starlette(routes=list(self._routes()), exception_handlers={404: _not_found})
        config = uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=_SHUTDOWN_SECONDS, ws="none"
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        self.base_url = f"http://{host}:{number}/v1"

    async def close(self) -> None:
        """Stop the server and end the requests in flight. May be called twice."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        with suppress(asyncio.CancelledError):
            await self._serving
        self._server = self._serving = None

    def open_episode(
        self, limits: EpisodeLimits, rng: np.random.Generator, *, task: str = "", sample: int = 0
    ) -> OpenedEpisode:
        """Begin an episode.

        Args:
            limits: Its limits and sampling.
            rng: Seeds its calls, in the order of the requests.
            task: The id of its task, by which replies of an endpoint are recorded.
            sample: Its index among the episodes of its task.
        """
        key = secrets.token_urlsafe(24)
        record = self._episodes[key] = self.replier.record(limits, rng, task, sample)
        return OpenedEpisode(self.base_url.removesuffix("/v1") + f"/episodes/{key}/v1", key, record)

    def close_episode(self, opened: OpenedEpisode) -> None:
        """End an episode: further requests are refused, and nothing more is recorded."""
        opened.record.closed = True
        if self._episodes.pop(opened.api_key, None) is not None:
            self.replier.forget(opened.record)

    def _routes(self) -> Iterator[BaseRoute]:
        for prefix in ("/v1", "/episodes/{key}/v1"):
            for face in _FACES:
                yield Route(prefix + face.path, partial(self._answer, face), methods=["POST"])
            yield Route(f"{prefix}/models", self._models, methods=["GET"])

    async def _answer(self, face: Face, request: Request) -> Response:
        try:
            record, body = self._episode(request), await _body(request)
            fixed, passes_on = record.limits.temperature is not None, self.replier.passes_on
            chat = _chat(face, body, fixed_sampling=fixed, passed_on=passes_on)
            reply = await self.replier.reply(record, chat)
        except ApiError as error:
            return error.response(anthropic=face.anthropic)
        answer = Answer(chat, reply, str(body.get("model") or self.model))
        if chat.stream:
            return StreamingResponse(face.events(answer), media_type="text/event-stream")
        return JSONResponse(face.response(answer))

    async def _models(self, request: Request) -> Response:
        try:
            self._episode(request)
        except ApiError as error:
            return error.response(anthropic=False)
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "agentgym"}
        return JSONResponse({"object": "list", "data": [model]})

    def _episode(self, request: Request) -> EpisodeRecord:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        key = request.path_params.get("key") or request.headers.get("x-api-key") or bearer
        if key not in self._episodes:
            raise ended_episode()
        return self._episodes[key]


def _chat(face: Face, body: Mapping[str, Any], *, fixed_sampling: bool, passed_on: bool) -> ChatRequest:
    """Read a request. Raises `ApiError` for all that isn't in the shape of its API."""
    try:
        return chat_request(face.chat_body(body), fixed_sampling=fixed_sampling, passed_on=passed_on)
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        raise ApiError(f"The body doesn't have the shape of this API: {described(error)}") from error


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body(), parse_constant=_refused)
        if "\\ud" in str(await request.body(), "utf-8").lower():  # maybe half of a pair, which no text may have
            body = json.loads(bytes(json.dumps(body, ensure_ascii=False), "utf-8", "replace"))
    except (ValueError, RecursionError) as error:  # also text that isn't UTF-8
        raise ApiError(f"The body isn't JSON: {error}") from error
    except ClientDisconnect as error:
        raise ApiError("The client has disconnected.") from error
    if not isinstance(body, dict):
        raise ApiError("The body must be a JSON object.")
    return body


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON.")


def _not_found(request: Request, _: Exception) -> Response:
    paths = ", ".join(f"/v1{face.path}" for face in _FACES)
    message = f"There is no {request.url.path}. There are {paths} and /v1/models, also below /episodes/KEY."
    return ApiError(message, status=404).response(anthropic=False)
