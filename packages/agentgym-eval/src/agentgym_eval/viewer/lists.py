"""The lists: of runs, and of episodes under filters."""

from __future__ import annotations

from agentgym_eval.viewer.queries import Filters, Listing
from agentgym_eval.viewer.site import Site

COLUMNS = (
    ("task", "Task"),
    ("env", "World"),
    ("category", "Category"),
    ("policy", "Policy"),
    ("run", "Run"),
    ("step", "Step"),
    ("turns", "Turns"),
    ("invalid", "Invalid"),
    ("stop", "Stop"),
    ("score", "Score"),
)
"""Of the list of episodes: how `Filters.sort` calls it, and how people do."""
_LARGEST_FIRST = {"turns", "invalid", "score", "step"}


def runs_page(site: Site) -> str:
    """The list of runs."""
    return site.render("runs.html", runs=site.index.runs, figures=site.index.figures())


def episodes_page(site: Site, filters: Filters, listing: Listing | None = None) -> str:
    """The list of episodes; `listing` instead of the page that the filters ask for."""
    return site.render(
        "episodes.html",
        filters=filters,
        listing=listing or site.index.list(filters),
        facets=site.index.facets(filters.run),
        columns=[(name, label, _next_sort(filters.sort, name)) for name, label in COLUMNS],
    )


def _next_sort(current: str, column: str) -> str:
    """What a click on a column's head asks for: its best order first, then the other, then none."""
    orders = [f"-{column}", column] if column in _LARGEST_FIRST else [column, f"-{column}"]
    return {orders[0]: orders[1], orders[1]: ""}.get(current, orders[0])
