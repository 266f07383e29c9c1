"""The FastAPI app: the routes of `/v1`, with their middleware and error handlers.

Request bodies are parsed from bytes and responses are written as bytes, which is several times faster than FastAPI's
own handling. FastAPI provides the routing and the description at `/openapi.json`.
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
from agentgym_envs.server.wire import parsed
from agentgym_envs.util.images import png

MAX_PAGE = 1_000
"""Maximum number of tasks per page."""
_MAX_SESSION_BYTES = 262_144  # options are names and numbers; searching what is like a long name takes seconds
_MAX_LISTED_ERRORS = 100  # listing the validation errors of a long body takes seconds
_MAINTENANCE_INTERVAL = 1.0  # seconds between two checks of leases and workers
_Body = TypeVar("_Body", bound=BaseModel)


def build_app(settings: Settings, *, grace: float = 10.0) -> FastAPI:
    """Create the app. Its lifespan starts the workers and closes every session.

    `app.state.sessions` holds the sessions. A server that is about to close calls its `refuse_calls()`.

    Args:
        settings: Environments and limits.
        grace: Seconds that pending calls have to finish at shutdown.

    Raises:
        ValueError: If an environment of the settings does not exist.
    """
    sessions = Sessions(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await sessions.open()
        maintenance = asyncio.create_task(sessions.maintain(_MAINTENANCE_INTERVAL))
        yield
        maintenance.cancel()
        with suppress(asyncio.CancelledError):
            await maintenance
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
    app.add_middleware(BodyLimit, limit=settings.max_body)
    _add_errors(app)
    _add_play_routes(app, sessions)  # the hot path comes first, since routes are tried in order
    _add_session_routes(app, sessions)
    _add_query_routes(app, sessions)
    _add_server_routes(app, sessions)
    app.include_router(compat_router(sessions))
    app.openapi = lambda: description(app)
    return app


def _add_errors(app: FastAPI) -> None:
    """Give all errors the same form. Also log those of `/compat`, whose clients don't show error messages."""
    log = RefusalLog()

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        if request.url.path.startswith("/compat/"):
            log.note(request.url.path, error)
        return error.response()

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, Refusal):  # FastAPI wraps what is raised while it reads a body
            return await refused(request, error.__cause__)
        known = {
            404: ("not_found", f"There is no route {request.url.path}; /openapi.json lists the routes."),
            405: ("method_not_allowed", f"{request.url.path} doesn't accept {request.method}; see /openapi.json."),
            422: ("invalid", str(error.detail)),
            502: ("world_fault", str(error.detail)),
        }
        kind, message = known.get(error.status_code, ("bad_request", str(error.detail)))
        return Refusal(error.status_code, kind, message, error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return await refused(request, Refusal(422, "invalid", _sentence(error.errors()[0])))

    @app.exception_handler(ClientDisconnect)
    async def disconnected(_: Request, error: ClientDisconnect) -> Response:
        return Refusal(400, "bad_request", "The client disconnected before its request body was complete.").response()

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return Refusal(500, "internal", f"The server raised {type(error).__name__}; see its log.").response()


def _add_session_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.post("/v1/sessions", **route(201, models.SessionCreated, 404, 429, body=models.SessionRequest))
    async def create(request: Request) -> Response:
        """Create an environment in a new session. The session's id is all that a client needs to use it."""
        if (size := len(await request.body())) > _MAX_SESSION_BYTES:
            raise Refusal(
                413,
                "too_large",
                f"A session's request may have at most {_MAX_SESSION_BYTES:,} bytes, not {size:,}.",
            )
        body = await _body(request, models.SessionRequest)
        session = await sessions.create(body.world, body.options, body.key, client=client_of(request))
        return json_response(
            {
                "id": session.id,
                "world": session.world,
                "lease": sessions.settings.lease,
                "instructions": session.instructions,
            },
            201,
        )

    @app.get("/v1/sessions/{session_id}", **route(200, models.SessionInfo, 404))
    async def look(session_id: str) -> Response:
        """Return the session and renew its lease."""
        session = sessions.get(session_id)
        task = None if session.last is None else session.last.info.get("task_id")
        return json_response({"id": session.id, "world": session.world, "task": task, "lease": sessions.settings.lease})

    @app.delete("/v1/sessions/{session_id}", **route(204, None, 404))
    async def close(session_id: str) -> Response:
        """Close the session and its environment."""
        sessions.close(sessions.get(session_id))
        return Response(status_code=204)


def _add_play_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.post("/v1/sessions/{session_id}/step", **route(200, models.Outcome, 404, 409, body=models.StepRequest))
    async def step(session_id: str, request: Request) -> Response:
        """Take an action."""
        body = await _body(request, models.StepRequest)
        return await _outcome(sessions, session_id, body)

    @app.post("/v1/sessions/{session_id}/reset", **route(200, models.Outcome, 404, 409, body=models.ResetRequest))
    async def reset(session_id: str, request: Request) -> Response:
        """Start an episode of a task."""
        body = await _body(request, models.ResetRequest)
        return await _outcome(sessions, session_id, body)

    @app.post("/v1/reset", **batch(models.ResetBatch))
    async def reset_many(request: Request) -> Response:
        """Reset many sessions. The response streams one line per session in order of completion."""
        return Stream(lines(sessions, _checked_size((await _body(request, models.ResetBatch)).calls, sessions)))

    @app.post("/v1/step", **batch(models.StepBatch))
    async def step_many(request: Request) -> Response:
        """Step many sessions. The response streams one line per session in order of completion."""
        return Stream(lines(sessions, _checked_size((await _body(request, models.StepBatch)).calls, sessions)))


async def _outcome(sessions: Sessions, session_id: str, body: models.StepRequest | models.ResetRequest) -> Response:
    session = sessions.get(session_id)
    result = await sessions.call(session, body.call(), body.key)
    return Response(session.written(result), media_type="application/json")


def _add_query_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.get("/v1/sessions/{session_id}/observation", **route(200, models.Outcome, 404, 409))
    async def observation(session_id: str) -> Response:
        """Return the last outcome again."""
        session = sessions.get(session_id)
        return Response(session.written(_last(session)), media_type="application/json")

    rendered = {"text/plain": {"schema": {"type": "string"}}, "image/png": {"schema": {"type": "string"}}}

    @app.get("/v1/sessions/{session_id}/render", **route(200, None, 404, 409, content=rendered))
    async def render(session_id: str) -> Response:
        """Render the state in the session's `render_mode`: text or an image."""
        session = sessions.get(session_id)
        if session.spec.options.get("render_mode") is None:
            raise Refusal(
                409, "no_render_mode", "This session was created without a render_mode; create one with a render_mode."
            )
        _last(session)
        frame = (await sessions.call(session, Ask("render"))).value
        if isinstance(frame, str):
            return Response(writable(frame), media_type="text/plain")
        return Response(await asyncio.to_thread(png, frame), media_type="image/png")

    @app.get("/v1/sessions/{session_id}/oracle", **route(200, models.OracleAction, 404, 409))
    async def oracle(session_id: str) -> Response:
        """Return the expert's next action."""
        return json_response({"action": await _queried(sessions, session_id, "oracle")})

    @app.get("/v1/sessions/{session_id}/oracle_thought", **route(200, models.OracleThought, 404, 409))
    async def oracle_thought(session_id: str) -> Response:
        """Return the expert's reason for its next action."""
        return json_response({"thought": await _queried(sessions, session_id, "oracle_thought")})

    @app.get("/v1/sessions/{session_id}/oracle_plan", **route(200, models.OraclePlan, 404, 409))
    async def oracle_plan(session_id: str) -> Response:
        """Return the expert's plan from the current state."""
        return json_response({"plan": await _queried(sessions, session_id, "oracle_plan")})

    @app.get("/v1/sessions/{session_id}/scene", **route(200, models.SceneInfo, 404, 409))
    async def scene(session_id: str) -> Response:
        """Return the description of the state that a viewer draws, or null."""
        return json_response({"scene": await _queried(sessions, session_id, "scene")})

    @app.get("/v1/sessions/{session_id}/functions", **route(200, models.FunctionList, 404, 409))
    async def functions(session_id: str) -> Response:
        """Return the types of actions as functions, for agents with tool calling."""
        return json_response({"functions": (await sessions.call(sessions.get(session_id), Ask("functions"))).value})

    @app.get("/v1/sessions/{session_id}/tasks", **route(200, models.TaskPage, 404, 409))
    async def tasks(
        session_id: str,
        split: Split = "test",
        offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 100,
        fields: Literal["ids", "all"] = "ids",
    ) -> Response:
        """Return a page of the tasks of a split."""
        call = Ask("task_page", (split, offset, limit, fields == "all"))
        return json_response((await sessions.call(sessions.get(session_id), call)).value)

    @app.get("/v1/sessions/{session_id}/tasks/{task_id:path}", **route(200, models.TaskInfo, 404, 409))
    async def task(session_id: str, task_id: models.TaskId) -> Response:
        """Return a task."""
        return json_response((await sessions.call(sessions.get(session_id), Ask("find_task", (task_id,)))).value)


async def _queried(sessions: Sessions, session_id: str, name: str) -> Any:
    session = sessions.get(session_id)
    _last(session)
    return (await sessions.call(session, Ask(name))).value


def _add_server_routes(app: FastAPI, sessions: Sessions) -> None:
    @app.get("/v1/worlds", **route(200, models.EnvironmentList))
    async def worlds() -> Response:
        """List the server's environments."""
        return json_response({"worlds": await sessions.catalog.list_environments()})

    @app.get("/healthz", **route(200, models.Health))
    async def health(request: Request) -> Response:
        """Return the state of the server. Unauthenticated clients get only the status."""
        status = {"status": "closing" if sessions.closing else "ok"}
        if getattr(request.state, "unauthenticated", False):
            return json_response(status)
        workers = sessions.workers.list_workers()
        return json_response(status | {"version": app.version, "sessions": len(sessions), "workers": workers})

    @app.get("/metrics", **route(200, None, content={"text/plain": {"schema": {"type": "string"}}}))
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(sessions.metrics.exposition(), media_type=sessions.metrics.content_type)


async def _body(request: Request, model: type[_Body]) -> _Body:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # web pages of other origins can't make a browser send JSON
        raise Refusal(
            415, "unsupported_media_type", f"A body must be JSON: send Content-Type: application/json, not {kind!r}."
        )
    try:
        return parsed(model, await request.body())
    except ValidationError as error:
        if (count := error.error_count()) > _MAX_LISTED_ERRORS:
            raise Refusal(422, "invalid", f"The body has {count:,} invalid fields.") from None
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Refusal(400, "bad_request", f"{first['msg']}.") from error
        raise Refusal(422, "invalid", _sentence(first)) from error


def _sentence(problem: Any) -> str:
    """Format a pydantic error with its location."""
    location = ".".join(map(str, problem["loc"])) or "body"
    return f"{location}: {problem['msg']}."


_Calls = TypeVar("_Calls", bound=list[Any])


def _checked_size(calls: _Calls, sessions: Sessions) -> _Calls:
    limit = sessions.settings.max_batch
    if len(calls) > limit:
        raise Refusal(
            422, "invalid", f"A batch may have at most {limit:,} calls, not {len(calls):,}; send several batches."
        )
    return calls


def _last(session: Session) -> Result:
    if session.last is None:
        raise refusal_of(ResetNeeded(), Ask("observation"))
    return session.last
