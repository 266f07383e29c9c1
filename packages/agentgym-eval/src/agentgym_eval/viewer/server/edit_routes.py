"""Routes that name runs, and add and remove their tags: of this machine's viewer only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.storage.labels import checked_tags
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.run_list import RunFilters
from agentgym_eval.viewer.index.run_notes import RunNotes, own_tags, read_notes, retag, write_notes
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.index.trash import run_size, why_kept
from agentgym_eval.viewer.pages.forms import read_form
from agentgym_eval.viewer.pages.site import Site

Handler = Callable[[Request], Awaitable[Response]]


def edit_routes(site: Site) -> list[BaseRoute]:
    """Return the routes. Handlers raise `NotFound` for unknown runs, and `UsageError` for what can't be done."""

    def form(request: Request) -> Response:
        run = _run(site, request)
        page = site.render(
            "edit.html",
            run=run,
            size=run_size(run),
            episodes=site.index.episodes_of(run.slug),
            kept=why_kept(site.index.root, run, site.index.runs),
        )
        return HTMLResponse(page)

    async def label(request: Request) -> Response:
        run, values = _run(site, request), dict(await read_form(request))
        named = RunNotes(" ".join(values.get("name", "").split()), values.get("note", "").strip())
        tags = own_tags(run, checked_tags([values["tags"]])) if "tags" in values else read_notes(run.path).tags
        notes = replace(named, tags=tags)
        await run_in_threadpool(write_notes, run.path, notes)
        site.index.put(notes.put_on(run))
        return RedirectResponse(site.links.run(run.slug), 303)

    async def change(action: str, runs: list[Run], values: list[tuple[str, str]]) -> None:
        tags = checked_tags(value for name, value in values if name == "tag")
        if not tags:
            raise UsageError(f"Type the tag to {action}.")
        for run in await run_in_threadpool(retag, runs, **{action: tags}):
            site.index.put(run)

    def tags_of_run(action: str) -> Handler:
        async def handle(request: Request) -> Response:
            run = _run(site, request)
            await change(action, [run], await read_form(request))
            return RedirectResponse(site.links.run(run.slug), 303)

        return handle

    def tags_of_selected(action: str) -> Handler:
        async def handle(request: Request) -> Response:
            filters, values = RunFilters.parse(request.query_params), await read_form(request)
            await change(action, selected_runs(site, values), values)
            return RedirectResponse(site.links.runs(filters.query(page=filters.page)), 303)

        return handle

    return [
        Route("/run/{run}/edit", form),
        Route("/run/{run}/label", label, methods=["POST"]),
        *(Route(f"/run/{{run}}/tags/{each}", tags_of_run(each), methods=["POST"]) for each in ("add", "remove")),
        *(Route(f"/tags/{each}", tags_of_selected(each), methods=["POST"]) for each in ("add", "remove")),
    ]


def selected_runs(site: Site, values: list[tuple[str, str]]) -> list[Run]:
    """Return the runs in a form. Raises `NotFound` for unknown ones, and `UsageError` if there are none."""
    runs = [site.index.run(value) for name, value in dict.fromkeys(values) if name == "run"]
    if not runs:
        raise UsageError("No run is selected: go back and check the boxes of some.")
    return runs


def _run(site: Site, request: Request) -> Run:
    return site.index.run(request.path_params["run"])
