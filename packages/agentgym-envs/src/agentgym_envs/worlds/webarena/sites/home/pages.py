"""The page of the home site."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.web import Site, Visit

site = Site("homepage", Path(__file__).parent)
_PURPOSES = {
    "shopping": "A store for the house, the garden and everything else: search, cart, orders, reviews.",
    "shopping_admin": "The store's back office: orders, products, customers, reviews, coupons, reports.",
    "reddit": "A forum of communities: posts, comments, votes, messages.",
    "gitlab": "A code host: projects, issues, merge requests, members.",
    "map": "A map of the region: places, what is near, directions by car, bicycle and on foot.",
    "wikipedia": "An encyclopaedia of the region: towns, rivers, people, firms, buildings, customs.",
}


@site.get("/")
def index(visit: Visit) -> Response:
    """List all sites with their purposes and accounts."""
    return visit.render("index.html", sites=[(PLACES[key], purpose) for key, purpose in _PURPOSES.items()])
