"""Routes that name runs, move them to the trash, and restore them: of this machine's viewer only."""

from __future__ import annotations

from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.viewer.index.display_names import DisplayName, write_display_name
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.index.trash import move_to_trash, restore, run_size, trashed_runs, why_kept
from agentgym_eval.viewer.pages.forms import read_form
from agentgym_eval.viewer.pages.site import Site


def edit_routes(site: Site) -> list[BaseRoute]:
    """Return the routes. Handlers raise `NotFound` for unknown runs, and `UsageError` for what can't be done."""

    def form(request: Request) -> Response:
        run = _run(site, request)
        page = site.render(
            "edit.html",
            run=run,
            size=run_size(run),
            episodes=_episodes(site, run),
            kept=why_kept(site.index.root, run, site.index.runs),
        )
        return HTMLResponse(page)

    async def label(request: Request) -> Response:
        run, values = _run(site, request), dict(await read_form(request))
        new = DisplayName(" ".join(values.get("name", "").split()), values.get("note", "").strip())
        await run_in_threadpool(write_display_name, run.path, new)
        site.index.put(replace(run, title=new.title, note=new.note))
        return RedirectResponse(site.links.run(run.slug), 303)

    async def trash(request: Request) -> Response:
        run = _run(site, request)
        await run_in_threadpool(move_to_trash, site.index.root, run, site.index.runs, _episodes(site, run))
        site.index.forget(run.slug)
        return RedirectResponse(site.links.trash(), 303)

    def trashed(_: Request) -> Response:
        return HTMLResponse(site.render("trash.html", runs=trashed_runs(site.index.root)))

    async def bring_back(request: Request) -> Response:
        await run_in_threadpool(restore, site.index.root, request.path_params["key"])
        return RedirectResponse(site.links.runs(), 303)

    return [
        Route("/run/{run}/edit", form),
        Route("/run/{run}/label", label, methods=["POST"]),
        Route("/run/{run}/trash", trash, methods=["POST"]),
        Route("/trash", trashed),
        Route("/trash/{key}/restore", bring_back, methods=["POST"]),
    ]


def _run(site: Site, request: Request) -> Run:
    return site.index.run(request.path_params["run"])


def _episodes(site: Site, run: Run) -> int:
    metrics = site.index.run_metrics().get(run.slug)
    return metrics.episodes if metrics else 0
