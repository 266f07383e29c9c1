"""The ASGI application: routes a request to a site by its host and to databases by its episode."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from agentgym_envs.worlds.webarena.sites.directory import EPISODE_HEADER, PLACES
from agentgym_envs.worlds.webarena.sites.further import suggestions
from agentgym_envs.worlds.webarena.sites.web import Site

_HERE = Path(__file__).parent
_LONGEST = 2_000  # maximum characters of a path; Python parses no integer of more than 4,300 digits
_TOKEN = re.compile(r"[0-9a-f]{32}")
_MODULES = {
    "shopping": "shop",
    "shopping_admin": "shop_admin",
    "reddit": "forum",
    "gitlab": "code",
    "map": "map",
    "wikipedia": "wiki",
    "homepage": "home",
}


class Web:
    """All sites, or those of `keys`, on one port. `episodes` contains one folder of databases per episode."""

    def __init__(self, episodes: Path, keys: Iterable[str] = tuple(PLACES)) -> None:
        self._episodes = episodes
        self._by_host = {PLACES[key].host: _application(load_site(key)) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        scope = _origin_form(scope)
        await self._choose(Request(scope))(scope, receive, send)

    def _choose(self, request: Request) -> ASGIApp:
        site = self._by_host.get(request.headers.get("host", "").partition(":")[0].lower())
        token = request.headers.get(EPISODE_HEADER, "")
        if len(request.url.path) > _LONGEST:
            return PlainTextResponse("That address is too long.", 414)
        if site is None:
            return PlainTextResponse("There is no such site.", 404)
        if not _TOKEN.fullmatch(token) or not (folder := self._episodes / token).is_dir():
            return PlainTextResponse("There is no such episode.", 404)
        request.state.databases = folder
        return site


def _origin_form(scope: Scope) -> Scope:
    """Remove scheme and host from a path: browsers send whole URLs to a server that is their proxy."""
    whole = f"http://{Request(scope).headers.get('host', '')}"
    if not scope["path"].startswith(f"{whole}/"):
        return scope
    path = scope["path"].removeprefix(whole)
    return {**scope, "path": path, "raw_path": scope["raw_path"].removeprefix(whole.encode())}


def load_site(key: str) -> Site:
    """Return the site of that key with all its pages."""
    return import_module(f"agentgym_envs.worlds.webarena.sites.{_MODULES[key]}.pages").site


def _application(site: Site) -> ASGIApp:
    async def not_found(request: Request, error: Exception) -> Response:
        return site.not_found(request)

    shared = Mount("/static/shared", StaticFiles(directory=_HERE / "static"))
    own = [Mount("/static", StaticFiles(directory=folder)) for folder in [site.folder / "static"] if folder.is_dir()]
    suggested = site.route("/suggestions", suggestions)  # of the rough skin's search fields
    return Starlette(routes=[shared, *own, suggested, *site.routes], exception_handlers={404: not_found})
