"""Routes that move runs to the trash, restore them, and empty it: of this machine's viewer only.

Moving and emptying are asked about on a page that names the runs, and done when its form is posted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.index.trash import (
    empty_trash,
    left_over,
    move_to_trash,
    restore,
    run_size,
    trash_size,
    trashed_runs,
    why_each_is_kept,
)
from agentgym_eval.viewer.pages.forms import read_form
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.edit_routes import selected_runs


def trash_routes(site: Site) -> list[BaseRoute]:
    """Return the routes. Handlers raise `NotFound` for unknown runs, and `UsageError` for what can't be done."""
    root = site.index.root

    def page(moved: int = 0, kept: Sequence[tuple[Run, str]] = ()) -> str:
        rest = bool(left_over(root))
        return site.render("trash.html", runs=trashed_runs(root), left_over=rest, moved=moved, kept=kept)

    def trashed(_: Request) -> Response:
        return HTMLResponse(page())

    def ask_to_move(request: Request) -> Response:
        runs = selected_runs(site, request.query_params.multi_items())
        reasons = why_each_is_kept(root, runs, site.index.runs)
        moving = [run for run, reason in reasons if not reason]
        question = site.render(
            "trash_move.html",
            kept=[(run, reason) for run, reason in reasons if reason],
            moving=moving,
            sizes={run.slug: run_size(run) for run in moving},
            episodes={run.slug: site.index.episodes_of(run.slug) for run in moving},
        )
        return HTMLResponse(question)

    async def move(request: Request) -> Response:
        runs = selected_runs(site, await read_form(request))
        kept = await run_in_threadpool(_move, site, runs)
        if not kept:
            return RedirectResponse(site.links.trash(), 303)
        return HTMLResponse(page(len(runs) - len(kept), kept), 400)

    async def bring_back(request: Request) -> Response:
        await run_in_threadpool(restore, root, request.path_params["key"])
        return RedirectResponse(site.links.runs(), 303)

    def ask_to_empty(_: Request) -> Response:
        runs = trashed_runs(root)
        until = max((run.deleted for run in runs), default=0.0)
        return HTMLResponse(site.render("trash_empty.html", runs=runs, size=trash_size(root), until=repr(until)))

    async def empty(request: Request) -> Response:
        await run_in_threadpool(empty_trash, root, _time(dict(await read_form(request)).get("until", "")))
        return RedirectResponse(site.links.trash(), 303)

    return [
        Route("/trash", trashed),
        Route("/trash/move", ask_to_move),
        Route("/trash/move", move, methods=["POST"]),
        Route("/trash/empty", ask_to_empty),
        Route("/trash/empty", empty, methods=["POST"]),
        Route("/trash/{key}/restore", bring_back, methods=["POST"]),
    ]


def _move(site: Site, runs: list[Run]) -> list[tuple[Run, str]]:
    """Move runs to the trash, and return why those were kept that could not be moved."""
    kept: list[tuple[Run, str]] = []
    for run, _ in why_each_is_kept(site.index.root, runs, site.index.runs):
        try:
            move_to_trash(site.index.root, run, site.index.runs, site.index.episodes_of(run.slug))
        except UsageError as error:
            kept.append((run, str(error)))
        else:
            site.index.forget(run.slug)
    return kept


def _time(text: str) -> float:
    """Parse the time at which the trash was shown. Raises `UsageError`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UsageError("This form doesn't say what was in the trash; open the trash again.")
    return seconds
