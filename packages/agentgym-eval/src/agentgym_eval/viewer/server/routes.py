"""Routes of single episodes (replay, side by side, screenshots, raw JSON) and of evaluation reports."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.evaluation_report import report_page
from agentgym_eval.viewer.index.index import NotFound
from agentgym_eval.viewer.index.links import ALL, LIST, Address, parse_address
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.pages.episode import episode_page, screenshots
from agentgym_eval.viewer.pages.side_by_side import pair_page, siblings_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.guard import STRICT_CSP

_EPISODE = "{run}/{file}/{number:int}"


def episode_routes(site: Site) -> list[BaseRoute]:
    """Return the routes; their handlers raise `NotFound` for anything that doesn't exist."""

    def replay(request: Request) -> Response:
        scenes = "scenes" in request.query_params
        return HTMLResponse(episode_page(site, _address(request), _listed_in(request), scenes=scenes))

    def siblings(request: Request) -> Response:
        return HTMLResponse(siblings_page(site, _address(request)))

    def pair(request: Request) -> Response:
        return HTMLResponse(pair_page(site, _queried_address(request, "a"), _queried_address(request, "b")))

    def picture(request: Request) -> Response:
        path = dict(screenshots(site, _address(request))).get(request.path_params["frame"])
        if path is None:
            raise NotFound("No picture was recorded for this turn.")
        return FileResponse(path, media_type="image/png")

    def raw(request: Request) -> Response:
        return Response(site.index.line(_address(request)), media_type="application/json")

    def report(request: Request) -> Response:
        path = report_page(site.index.run(request.path_params["run"]))
        if path is None:
            raise NotFound("This run has no report.html.")
        return FileResponse(path, media_type="text/html", headers={"content-security-policy": STRICT_CSP})

    return [
        Route("/report/{run}.html", report),
        Route(f"/episode/{_EPISODE}", replay),
        Route(f"/siblings/{_EPISODE}", siblings),
        Route("/side-by-side", pair),
        Route(f"/picture/{_EPISODE}/{{frame:int}}.png", picture),
        Route(f"/raw/{_EPISODE}.json", raw),
    ]


def _address(request: Request) -> Address:
    return Address(request.path_params["run"], request.path_params["file"], request.path_params["number"])


def _listed_in(request: Request) -> Filters | None:
    """Parse the filters of the list that an episode was opened from; None without any. Raises `UsageError`."""
    query = {name: value for name, value in request.query_params.items() if name not in ("scenes", LIST)}
    return Filters.parse(query) if query or request.query_params.get(LIST) == ALL else None


def _queried_address(request: Request, name: str) -> Address:
    """Parse the episode address in a query parameter. Raises `UsageError`."""
    text = request.query_params.get(name, "")
    try:
        return parse_address(text)
    except ValueError as error:
        raise UsageError(f"{name} must be an episode address RUN/FILE/NUMBER, not {text[:80]!r}.") from error
