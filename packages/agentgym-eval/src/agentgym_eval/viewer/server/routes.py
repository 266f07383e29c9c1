"""The pages of single episodes under their addresses: replay, side by side, picture, and the line as it is; and what an
evaluation wrote of itself.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.evaluation_report import report_page
from agentgym_eval.viewer.index.index import NotFound
from agentgym_eval.viewer.index.links import Address, parse_address
from agentgym_eval.viewer.pages.episode import episode_page, pictures
from agentgym_eval.viewer.pages.side_by_side import beside_page, siblings_page
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.guard import STRICT

_EPISODE = "{run}/{file}/{number:int}"


def episode_routes(site: Site) -> list[BaseRoute]:
    """The routes; what isn't there raises `NotFound`."""

    def replay(request: Request) -> Response:
        return HTMLResponse(episode_page(site, _address(request), scenes="scenes" in request.query_params))

    def siblings(request: Request) -> Response:
        return HTMLResponse(siblings_page(site, _address(request)))

    def beside(request: Request) -> Response:
        return HTMLResponse(beside_page(site, _asked(request, "a"), _asked(request, "b")))

    def pictured(request: Request) -> Response:
        path = dict(pictures(site, _address(request))).get(request.path_params["halt"])
        if path is None:
            raise NotFound("No picture was kept of this.")
        return FileResponse(path, media_type="image/png")

    def raw(request: Request) -> Response:
        return Response(site.index.line(_address(request)), media_type="application/json")

    def report(request: Request) -> Response:
        path = report_page(site.index.run(request.path_params["run"]))
        if path is None:
            raise NotFound("This run has no report.html.")
        return FileResponse(path, media_type="text/html", headers={"content-security-policy": STRICT})

    return [
        Route("/report/{run}.html", report),
        Route(f"/episode/{_EPISODE}", replay),
        Route(f"/siblings/{_EPISODE}", siblings),
        Route("/beside", beside),
        Route(f"/picture/{_EPISODE}/{{halt:int}}.png", pictured),
        Route(f"/raw/{_EPISODE}.json", raw),
    ]


def _address(request: Request) -> Address:
    return Address(request.path_params["run"], request.path_params["file"], request.path_params["number"])


def _asked(request: Request, name: str) -> Address:
    """The episode in the query. Raises `UsageError`."""
    written = request.query_params.get(name, "")
    try:
        return parse_address(written)
    except ValueError as error:
        raise UsageError(f"{name} names an episode as RUN/FILE/NUMBER, not {written[:80]!r}.") from error
