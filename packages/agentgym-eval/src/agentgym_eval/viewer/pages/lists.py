"""The lists: of runs, and of episodes under filters."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_eval.viewer.index.filters import FilterSet, Listing
from agentgym_eval.viewer.index.queries import Filters, Row
from agentgym_eval.viewer.index.run_list import RunFilters, passing, run_facets, run_rows
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.pages.snippets import snippets

RUNS = (
    ("name", "Run"),
    ("success", "Success"),
    ("state", "State"),
    ("kind", "Kind"),
    ("env", "World"),
    ("policy", "Policy"),
    ("episodes", "Episodes"),
    ("began", "Began"),
)
"""Columns of the list of runs: how `RunFilters.sort` calls them, and how people do. What was reached comes first, where
narrow screens show it too.
"""
EPISODES = (
    ("task", "Task"),
    ("score", "Score"),
    ("stop", "Stop reason"),
    ("env", "World"),
    ("category", "Category"),
    ("policy", "Policy"),
    ("run", "Run"),
    ("step", "Step"),
    ("turns", "Turns"),
    ("invalid", "Invalid"),
)
"""The same of episodes."""
_LARGEST_FIRST = {"turns", "invalid", "score", "step", "episodes", "success", "began"}
_ALL = RunFilters()


def runs_page(site: Site, filters: RunFilters = _ALL) -> str:
    """The list of runs; all on one page where no server filters."""
    rows = run_rows(site.index.runs, site.index.figures())
    found = passing(rows, filters)
    begin = (filters.page - 1) * filters.size
    return site.render(
        "runs.html",
        filters=filters,
        listing=Listing(found[begin : begin + filters.size] if site.links.live else found, len(found), filters),
        all=len(rows),
        read=sum(row.figures.episodes for row in rows if row.figures),
        facets=run_facets(rows),
        columns=_columns(RUNS, filters),
    )


def episodes_page(site: Site, filters: Filters, listing: Listing[Row] | None = None) -> str:
    """The list of episodes; `listing` instead of the page that the filters ask for."""
    listing = listing or site.index.list(filters)
    return site.render(
        "episodes.html",
        filters=filters,
        listing=listing,
        snippets=snippets(site.index, (row.address for row in listing.rows), filters.text),
        facets=site.index.facets(filters.run),
        columns=_columns(EPISODES, filters),
    )


def _columns(columns: Sequence[tuple[str, str]], filters: FilterSet) -> list[tuple[str, str, str]]:
    """Each with what a click on its head sorts by."""
    return [(name, label, _next_sort(filters.sort, name)) for name, label in columns]


def _next_sort(current: str, column: str) -> str:
    """What a click on a column's head asks for: its best order first, then the other, then none."""
    orders = [f"-{column}", column] if column in _LARGEST_FIRST else [column, f"-{column}"]
    return {orders[0]: orders[1], orders[1]: ""}.get(current, orders[0])
