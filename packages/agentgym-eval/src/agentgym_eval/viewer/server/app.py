"""The live site: pages under their addresses, for this machine's browser alone unless it was told otherwise.

Knows what HTTP needs and nothing of what stands on a page.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

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
from agentgym_eval.viewer.pages.comparison import Asked, compare_page
from agentgym_eval.viewer.pages.lists import episodes_page, runs_page
from agentgym_eval.viewer.pages.run import run_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.playing.pages import play_routes
from agentgym_eval.viewer.playing.table import Table
from agentgym_eval.viewer.server.guard import Guard, is_loopback
from agentgym_eval.viewer.server.routes import episode_routes

_LOOK_EVERY_S = 1.0
SEEN = "x-seen"
"""Header in which a page that polls says which version of the index it shows."""


def make_app(site: Site, host: str = "127.0.0.1", environment: Mapping[str, str] | None = None) -> Starlette:
    """The site as an ASGI application; while it runs the index follows the folder.

    Args:
        site: With live links.
        host: The address it is bound to; requests under names that no browser on this machine would use for it are
            refused, and worlds are played by hand on this machine alone.
        environment: Where policies that play on in them find keys and addresses.
    """
    table = Table(site.index.root, environment) if is_loopback(host) else None
    return Starlette(
        routes=[*_routes(site), *play_routes(site, table, SEEN)],
        middleware=[Middleware(Guard, host=host)],
        lifespan=lambda _: _running(site, table),
        exception_handlers={
            HTTPException: lambda _, error: _refused(site, error),
            NotFound: lambda _, error: _trouble(site, str(error), 404),
            UsageError: lambda _, error: _trouble(site, str(error), 400),
        },
    )


def _routes(site: Site) -> list[BaseRoute]:
    return [
        Route("/", _polled(site, lambda request: runs_page(site, RunFilters.parse(request.query_params)))),
        Route("/episodes", _polled(site, lambda request: episodes_page(site, Filters.parse(request.query_params)))),
        Route("/run/{run}", _polled(site, lambda request: run_page(site, request.path_params["run"]))),
        Route("/compare", _polled(site, lambda request: compare_page(site, _compared(request)))),
        *episode_routes(site),
        Mount("/static", StaticFiles(packages=[("agentgym_eval.viewer", "static")])),
    ]


def _compared(request: Request) -> Asked:
    return Asked.parse(request.query_params, request.query_params.getlist("run"))


def _polled(site: Site, page: Callable[[Request], str]) -> Callable[[Request], Response]:
    """A page that is asked for again and again: nothing comes back as long as nothing has changed."""

    def respond(request: Request) -> Response:
        if request.headers.get(SEEN) == site.index.version:
            return Response(status_code=204)
        return HTMLResponse(page(request))

    return respond


def _refused(site: Site, error: Exception) -> Response:
    """What routing itself has no answer to."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _trouble(site, "The viewer has no such page." if status == 404 else str(error), status)


def _trouble(site: Site, sentence: str, status: int) -> Response:
    return HTMLResponse(site.render("trouble.html", sentence=sentence), status_code=status)


@asynccontextmanager
async def _running(site: Site, table: Table | None) -> AsyncGenerator[None]:
    """The index is kept up to date in a thread of its own; at the end all worlds are closed."""
    stop = threading.Event()
    follower = threading.Thread(target=_follow, args=(site.index, stop), name="viewer-index")
    follower.start()
    try:
        yield
    finally:
        stop.set()
        if table is not None:
            await table.close()
        follower.join()
        site.stage.close()


def _follow(index: Index, stop: threading.Event) -> None:
    pause = 0.0
    while not stop.wait(pause):
        pause = _LOOK_EVERY_S
        try:
            pause = max(pause, 5 * index.refresh(stop))  # many files: look less often
            index.trouble = ""
        except (OSError, sqlite3.Error) as error:  # the disk is full, say: what is in can still be looked at
            index.trouble = str(error)
