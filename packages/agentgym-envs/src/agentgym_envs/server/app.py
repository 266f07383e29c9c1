"""The app: the routes of `/v1`, and what goes before and after them. Knows no worlds, and no sockets.

Bodies are parsed from their bytes and answers are written as bytes, which is several times faster than what FastAPI
does by itself; it still does the routing and the description at `/openapi.json`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from gymnasium.error import ResetNeeded
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import writable
from agentgym_envs.pool import Ask, Result
from agentgym_envs.server import models
from agentgym_envs.server.agentgym import compat_router
from agentgym_envs.server.auth import client_of
from agentgym_envs.server.description import batch, description, route
from agentgym_envs.server.errors import Refusal, RefusalLog, json_response, refusal_of
from agentgym_envs.server.limits import BodyLimit
from agentgym_envs.server.session_types import Session
from agentgym_envs.server.sessions import Sessions
from agentgym_envs.server.settings import Settings
from agentgym_envs.server.streaming import Stream, lines
from agentgym_envs.server.wire import parsed, png

MAX_PAGE = 1_000
"""Tasks in a page."""
_MOST_MISTAKES = 100  # to list those of a long body takes seconds
_SWEEP = 1.0  # seconds between two looks at leases and workers
_Body = TypeVar("_Body", bound=BaseModel)


def build_app(settings: Settings, *, grace: float = 10.0) -> FastAPI:
    """The app. Its lifespan starts the workers and closes every session; `app.state.sessions` has the sessions, and
    `app.state.sessions.refuse_calls()` lets a server that is about to close say so.

    Args:
        settings: What it offers and allows.
        grace: Seconds that calls on their way get to end in.

    Raises:
        ValueError: when there is no such world as one of the settings'.
    """
    sessions = Sessions(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await sessions.open()
        tending = asyncio.create_task(sessions.tend(_SWEEP))
        yield
        tending.cancel()
        with suppress(asyncio.CancelledError):
            await tending
        await sessions.shut(grace)

    app = FastAPI(
        title="AgentGym",
        version=version("agentgym-envs"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.sessions = sessions
    app.add_middleware(BodyLimit, most=settings.max_body)
    _add_errors(app)
    _add_play_routes(app, sessions)  # first, since routes are tried in order
    _add_session_routes(app, sessions)
    _add_look_routes(app, sessions)
    _add_server_routes(app, sessions)
    app.include_router(compat_router(sessions))
    app.openapi = lambda: description(app)
    return app


def _add_errors(app: FastAPI) -> None:
    """Every error is told in the same form; those of `/compat`, whose clients don't show it, in the log as well."""
    log = RefusalLog()

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        if request.url.path.startswith("/compat/"):
            log.note(request.url.path, error)
        return error.response()

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        said = {
            404: ("not_found", f"There is nothing at {request.url.path}; /openapi.json says what there is."),
            405: ("method_not_allowed", f"{request.url.path} doesn't take {request.method}; /openapi.json says more."),
            422: ("invalid", str(error.detail)),
            502: ("world_fault", str(error.detail)),
        }
        kind, message = said.get(error.status_code, ("bad_request", str(error.detail)))
        return Refusal(error.status_code, kind, message, error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def misasked(request: Request, error: RequestValidationError) -> Response:
        return await refused(request, Refusal(422, "invalid", _sentence(error.errors()[0])))

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, error: ClientDisconnect) -> Response:
        return Refusal(400, "bad_request", "The client left before its body was read.").response()

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return Refusal(500, "internal", f"The server met {type(error).__name__}; its log says more.").response()


def _add_session_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.post("/v1/sessions", **route(201, models.SessionMade, 404, 429, body=models.SessionWanted))
    async def create(request: Request) -> Response:
        """Make a world in a session of its own. Whoever knows the session's id may play in it."""
        wanted = await _body(request, models.SessionWanted)
        session = await sessions.create(wanted.world, wanted.options, wanted.key, client=client_of(request))
        return json_response(
            {
                "id": session.id,
                "world": session.world,
                "lease": sessions.settings.lease,
                "instructions": session.instructions,
            },
            201,
        )

    @app.get("/v1/sessions/{session_id}", **route(200, models.SessionSeen, 404))
    async def look(session_id: str) -> Response:
        """The session, whose lease begins anew."""
        session = sessions.get(session_id)
        task = None if session.last is None else session.last.info.get("task_id")
        return json_response({"id": session.id, "world": session.world, "task": task, "lease": sessions.settings.lease})

    @app.delete("/v1/sessions/{session_id}", **route(204, None, 404))
    async def close(session_id: str) -> Response:
        """Close the session and its world."""
        sessions.close(sessions.get(session_id))
        return Response(status_code=204)


def _add_play_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.post("/v1/sessions/{session_id}/step", **route(200, models.Outcome, 404, 409, body=models.StepWanted))
    async def step(session_id: str, request: Request) -> Response:
        """Play an action."""
        wanted = await _body(request, models.StepWanted)
        return await _played(sessions, session_id, wanted)

    @app.post("/v1/sessions/{session_id}/reset", **route(200, models.Outcome, 404, 409, body=models.ResetWanted))
    async def reset(session_id: str, request: Request) -> Response:
        """Begin a task."""
        wanted = await _body(request, models.ResetWanted)
        return await _played(sessions, session_id, wanted)

    @app.post("/v1/reset", **batch(models.ResetBatch))
    async def reset_many(request: Request) -> Response:
        """Begin tasks in many sessions. A line of the answer for each, in order of completion, as it is done."""
        return Stream(lines(sessions, _few((await _body(request, models.ResetBatch)).calls, sessions)))

    @app.post("/v1/step", **batch(models.StepBatch))
    async def step_many(request: Request) -> Response:
        """Play actions in many sessions. A line of the answer for each, in order of completion, as it is done."""
        return Stream(lines(sessions, _few((await _body(request, models.StepBatch)).calls, sessions)))


async def _played(sessions: Sessions, session_id: str, wanted: models.StepWanted | models.ResetWanted) -> Response:
    session = sessions.get(session_id)
    result = await sessions.call(session, wanted.call(), wanted.key)
    return Response(session.written(result), media_type="application/json")


def _add_look_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.get("/v1/sessions/{session_id}/observation", **route(200, models.Outcome, 404, 409))
    async def observation(session_id: str) -> Response:
        """The last outcome once more."""
        session = sessions.get(session_id)
        return Response(session.written(_last(session)), media_type="application/json")

    pictures = {"text/plain": {"schema": {"type": "string"}}, "image/png": {"schema": {"type": "string"}}}

    @app.get("/v1/sessions/{session_id}/render", **route(200, None, 404, 409, content=pictures))
    async def render(session_id: str) -> Response:
        """What there is to see, as the session's `render_mode` has it: text or a picture."""
        session = sessions.get(session_id)
        if session.spec.options.get("render_mode") is None:
            raise Refusal(409, "no_render_mode", "This session was made without a render_mode; make one with it.")
        _last(session)
        seen = (await sessions.call(session, Ask("render"))).value
        if isinstance(seen, str):
            return Response(writable(seen), media_type="text/plain")
        return Response(await asyncio.to_thread(png, seen), media_type="image/png")

    @app.get("/v1/sessions/{session_id}/oracle", **route(200, models.ActionSeen, 404, 409))
    async def oracle(session_id: str) -> Response:
        """The expert's next action."""
        return json_response({"action": await _asked(sessions, session_id, "oracle")})

    @app.get("/v1/sessions/{session_id}/oracle_thought", **route(200, models.ThoughtSeen, 404, 409))
    async def oracle_thought(session_id: str) -> Response:
        """Why the expert's next action is what it is."""
        return json_response({"thought": await _asked(sessions, session_id, "oracle_thought")})

    @app.get("/v1/sessions/{session_id}/oracle_plan", **route(200, models.PlanSeen, 404, 409))
    async def oracle_plan(session_id: str) -> Response:
        """What the expert intends from here."""
        return json_response({"plan": await _asked(sessions, session_id, "oracle_plan")})

    @app.get("/v1/sessions/{session_id}/scene", **route(200, models.SceneSeen, 404, 409))
    async def scene(session_id: str) -> Response:
        """What a viewer draws of the state, or null."""
        return json_response({"scene": await _asked(sessions, session_id, "scene")})

    @app.get("/v1/sessions/{session_id}/functions", **route(200, models.FunctionsSeen, 404, 409))
    async def functions(session_id: str) -> Response:
        """The kinds of actions as functions, for agents that call tools."""
        return json_response({"functions": (await sessions.call(sessions.get(session_id), Ask("functions"))).value})

    @app.get("/v1/sessions/{session_id}/tasks", **route(200, models.TasksSeen, 404, 409))
    async def tasks(
        session_id: str,
        split: Split = "test",
        offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 100,
        fields: Literal["ids", "all"] = "ids",
    ) -> Response:
        """A page of the tasks of a split."""
        asked = Ask("task_page", (split, offset, limit, fields == "all"))
        return json_response((await sessions.call(sessions.get(session_id), asked)).value)

    @app.get("/v1/sessions/{session_id}/tasks/{task_id:path}", **route(200, models.TaskSeen, 404, 409))
    async def task(session_id: str, task_id: models.TaskId) -> Response:
        """One task."""
        return json_response((await sessions.call(sessions.get(session_id), Ask("find_task", (task_id,)))).value)


async def _asked(sessions: Sessions, session_id: str, asked: str) -> Any:
    session = sessions.get(session_id)
    _last(session)
    return (await sessions.call(session, Ask(asked))).value


def _add_server_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.get("/v1/worlds", **route(200, models.WorldsSeen))
    async def worlds() -> Response:
        """The worlds there are."""
        return json_response({"worlds": await sessions.catalog.seen()})

    @app.get("/healthz", **route(200, models.Health))
    async def health(request: Request) -> Response:
        """How the server is; to who doesn't bring the token, its status alone."""
        status = {"status": "closing" if sessions.closing else "ok"}
        if getattr(request.state, "stranger", False):
            return json_response(status)
        workers = sessions.workers.seen()
        return json_response(status | {"version": app.version, "sessions": len(sessions), "workers": workers})

    @app.get("/metrics", **route(200, None, content={"text/plain": {"schema": {"type": "string"}}}))
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(sessions.metrics.exposition(), media_type=sessions.metrics.content_type)


async def _body(request: Request, model: type[_Body]) -> _Body:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # what any page may make a browser send is something else
        raise Refusal(
            415, "unsupported_media_type", f"A body is JSON: send Content-Type: application/json, not {kind}."
        )
    try:
        return parsed(model, await request.body())
    except ValidationError as error:
        if (mistakes := error.error_count()) > _MOST_MISTAKES:
            raise Refusal(422, "invalid", f"The body has {mistakes:,} fields that aren't taken.") from None
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Refusal(400, "bad_request", f"{first['msg']}.") from error
        raise Refusal(422, "invalid", _sentence(first)) from error


def _sentence(problem: Any) -> str:
    """What pydantic says, with the place it says it of."""
    place = ".".join(map(str, problem["loc"])) or "body"
    return f"{place}: {problem['msg']}."


_Calls = TypeVar("_Calls", bound=list[Any])


def _few(calls: _Calls, sessions: Sessions) -> _Calls:
    most = sessions.settings.max_batch
    if len(calls) > most:
        raise Refusal(422, "invalid", f"A batch has at most {most:,} calls here, not {len(calls):,}; send several.")
    return calls


def _last(session: Session) -> Result:
    if session.last is None:
        raise refusal_of(ResetNeeded(), Ask("observation"))
    return session.last
