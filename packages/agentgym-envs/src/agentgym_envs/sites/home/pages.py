"""The home page's one page."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

from agentgym_envs.sites.web import Site, Visit

site = Site("homepage", Path(__file__).parent)


@site.get("/")
def index(visit: Visit) -> Response:
    """All sites with their accounts."""
    return visit.render("index.html")
