"""The live site: an ASGI application that serves the pages, by default to this machine only.

Handles HTTP; the content of the pages comes from `pages` and `playing`.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index, NotFound
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.index.run_list import RunFilters
from agentgym_eval.viewer.pages.comparison import ComparisonQuery, compare_page
from agentgym_eval.viewer.pages.comparison_table import TABLE_FIELDS, TableQuery, table_page
from agentgym_eval.viewer.pages.curves import CurvesQuery, curves_page
from agentgym_eval.viewer.pages.lists import episodes_page, runs_csv, runs_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.playing.pages import play_routes
from agentgym_eval.viewer.playing.table import SessionManager
from agentgym_eval.viewer.server.annotations import annotation_routes
from agentgym_eval.viewer.server.edit_routes import edit_routes
from agentgym_eval.viewer.server.guard import Guard, is_loopback
from agentgym_eval.viewer.server.routes import episode_routes
from agentgym_eval.viewer.server.trash_routes import trash_routes

_REFRESH_INTERVAL_S = 1.0
SEEN = "x-seen"
"""Header with the index version that a polling page shows."""


def make_app(
    site: Site, host: str = "127.0.0.1", environment: Mapping[str, str] | None = None, *, read_only: bool = False
) -> Starlette:
    """Create the ASGI application; while it runs, a thread keeps the index up to date with the folder.

    Args:
        site: The site, with live links.
        host: The address the server is bound to. Requests with a `Host` header that no browser on this machine would
            send for it are refused. Pages that change anything are available on a loopback address only.
        environment: Environment variables with the keys and addresses that policies in interactive play use.
        read_only: Whether nothing below the folder may be changed. Other machines can never change anything.
    """
    site = replace(site, editable=is_loopback(host) and not read_only)
    editing = [*edit_routes(site), *trash_routes(site)] if site.editable else []
    manager = SessionManager(site.index.root, environment) if site.editable else None
    return Starlette(
        routes=[*_routes(site), *editing, *play_routes(site, manager, SEEN)],
        middleware=[Middleware(Guard, host=host)],
        lifespan=lambda _: _lifespan(site, manager),
        exception_handlers={
            HTTPException: lambda _, error: _http_error(site, error),
            NotFound: lambda _, error: _error_page(site, str(error), 404),
            UsageError: lambda _, error: _error_page(site, str(error), 400),
        },
    )


def _routes(site: Site) -> list[BaseRoute]:
    def csv(request: Request) -> Response:
        headers = {"content-disposition": 'attachment; filename="runs.csv"'}
        return Response(runs_csv(site, _run_filters(request)), media_type="text/csv", headers=headers)

    return [
        Route("/", _polled(site, lambda request: runs_page(site, _run_filters(request)))),
        Route("/runs.csv", csv),
        Route("/episodes", _polled(site, lambda request: episodes_page(site, Filters.parse(request.query_params)))),
        Route(
            "/run/{run}",
            _polled(site, lambda request: run_page(site, request.path_params["run"], _chart_query(request))),
        ),
        Route("/compare", _polled(site, lambda request: _comparison(site, request))),
        Route("/curves", _polled(site, lambda request: curves_page(site, _curves_query(request)))),
        *episode_routes(site),
        *annotation_routes(site),
        Mount("/static", StaticFiles(packages=[("agentgym_eval.viewer", "static")])),
    ]


def _run_filters(request: Request) -> RunFilters:
    """Parse the filters of runs; the boxes of columns come as one value each."""
    columns = ",".join(request.query_params.getlist("columns"))
    return RunFilters.parse({**request.query_params, **({"columns": columns} if columns else {})})


def _comparison(site: Site, request: Request) -> str:
    """Render the comparison of two runs task by task; with a baseline, a choice of evaluations or more than two runs,
    the table of runs.
    """
    query, runs = _selection(request)
    if query.keys() & {*TABLE_FIELDS} - {"run"} or len(set(runs)) > len("ab"):
        return table_page(site, TableQuery.parse(query, runs))
    return compare_page(site, ComparisonQuery.parse(query, runs))


def _chart_query(request: Request) -> CurvesQuery:
    """Parse the smoothing and the search of the small charts of a run."""
    return CurvesQuery.parse({name: request.query_params.get(name, "") for name in ("smooth", "metric")})


def _curves_query(request: Request) -> CurvesQuery:
    return CurvesQuery.parse(*_selection(request))


def _selection(request: Request) -> tuple[dict[str, str], list[str]]:
    """Return the query and the selected runs. The form of the list of runs also has a field for a tag to add, which
    browsers without JavaScript send along.
    """
    query = {name: value for name, value in request.query_params.items() if name != "tag"}
    return query, request.query_params.getlist("run")


def _polled(site: Site, page: Callable[[Request], str]) -> Callable[[Request], Response]:
    """Make an endpoint for a page that the browser polls: respond 204 while the index is unchanged."""

    def respond(request: Request) -> Response:
        if request.headers.get(SEEN) == site.index.version:
            return Response(status_code=204)
        return HTMLResponse(page(request))

    return respond


def _http_error(site: Site, error: Exception) -> Response:
    """Render an error that the router raised, such as an unknown path."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error_page(site, "The viewer has no such page." if status == 404 else str(error), status)


def _error_page(site: Site, message: str, status: int) -> Response:
    return HTMLResponse(site.render("trouble.html", message=message), status_code=status)


@asynccontextmanager
async def _lifespan(site: Site, manager: SessionManager | None) -> AsyncGenerator[None]:
    """Refresh the index in a background thread while the app runs; close all environments at shutdown."""
    stop = threading.Event()
    refresher = threading.Thread(target=_refresh_loop, args=(site.index, stop), name="viewer-index")
    refresher.start()
    try:
        yield
    finally:
        stop.set()
        if manager is not None:
            await manager.close()
        refresher.join()
        site.scene_replayer.close()


def _refresh_loop(index: Index, stop: threading.Event) -> None:
    pause = 0.0
    while not stop.wait(pause):
        pause = _REFRESH_INTERVAL_S
        try:
            pause = max(pause, 5 * index.refresh(stop))  # with many files, scan less often
            index.refresh_error = ""
        except Exception as error:  # noqa: BLE001 - what is already indexed stays available
            index.refresh_error = str(error) or repr(error)
