"""Routes of single episodes (replay, side by side, screenshots, raw JSON) and of evaluation reports."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.evaluation_report import report_page
from agentgym_eval.viewer.index.index import NotFound
from agentgym_eval.viewer.index.links import Address, parse_address
from agentgym_eval.viewer.pages.episode import episode_page, screenshots
from agentgym_eval.viewer.pages.messages import messages_page, turn_request
from agentgym_eval.viewer.pages.side_by_side import pair_page, siblings_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.addresses import EPISODE, episode_address, listed_in
from agentgym_eval.viewer.server.guard import STRICT_CSP


def episode_routes(site: Site) -> list[BaseRoute]:
    """Return the routes; their handlers raise `NotFound` for anything that doesn't exist."""

    def replay(request: Request) -> Response:
        scenes = "scenes" in request.query_params
        return HTMLResponse(episode_page(site, episode_address(request), listed_in(request), scenes=scenes))

    def siblings(request: Request) -> Response:
        return HTMLResponse(siblings_page(site, episode_address(request)))

    def pair(request: Request) -> Response:
        return HTMLResponse(pair_page(site, _queried_address(request, "a"), _queried_address(request, "b")))

    def picture(request: Request) -> Response:
        path = dict(screenshots(site, episode_address(request))).get(request.path_params["frame"])
        if path is None:
            raise NotFound("No picture was recorded for this turn.")
        return FileResponse(path, media_type="image/png")

    def raw(request: Request) -> Response:
        return Response(site.index.line(episode_address(request)), media_type="application/json")

    def messages(request: Request) -> Response:
        return HTMLResponse(messages_page(site, episode_address(request), request.path_params["turn"]))

    def messages_json(request: Request) -> Response:
        address = episode_address(request)
        found = turn_request(site.index.run(address.run), site.index.episode(address), request.path_params["turn"])
        if found.unknown:
            raise NotFound(found.unknown)
        return Response(found.to_json(), media_type="application/json")

    def report(request: Request) -> Response:
        path = report_page(site.index.run(request.path_params["run"]))
        if path is None:
            raise NotFound("This run has no report.html.")
        return FileResponse(path, media_type="text/html", headers={"content-security-policy": STRICT_CSP})

    return [
        Route("/report/{run}.html", report),
        Route(f"/episode/{EPISODE}", replay),
        Route(f"/siblings/{EPISODE}", siblings),
        Route("/side-by-side", pair),
        Route(f"/picture/{EPISODE}/{{frame:int}}.png", picture),
        Route(f"/raw/{EPISODE}.json", raw),
        Route(f"/messages/{EPISODE}/{{turn:int}}", messages),
        Route(f"/messages/{EPISODE}/{{turn:int}}.json", messages_json),
    ]


def _queried_address(request: Request, name: str) -> Address:
    """Parse the episode address in a query parameter. Raises `UsageError`."""
    text = request.query_params.get(name, "")
    try:
        return parse_address(text)
    except ValueError as error:
        raise UsageError(f"{name} must be an episode address RUN/FILE/NUMBER, not {text[:80]!r}.") from error
