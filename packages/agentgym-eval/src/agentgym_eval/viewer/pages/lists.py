"""The lists of runs and of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_eval.viewer.index.filters import FilterSet, Listing
from agentgym_eval.viewer.index.queries import Filters, Row
from agentgym_eval.viewer.index.run_list import RunFilters, filter_rows, run_facets, run_rows
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.pages.snippets import snippets

RUNS = (
    ("name", "Run"),
    ("success", "Success"),
    ("state", "State"),
    ("kind", "Kind"),
    ("env", "Environment"),
    ("policy", "Policy"),
    ("episodes", "Episodes"),
    ("began", "Began"),
)
"""Columns of the list of runs: the name in `RunFilters.sort`, and the heading. Results come first, so that narrow
screens show them.
"""
EPISODES = (
    ("task", "Task"),
    ("score", "Score"),
    ("stop", "Stop reason"),
    ("cause", "Failure cause"),
    ("env", "Environment"),
    ("category", "Category"),
    ("policy", "Policy"),
    ("run", "Run"),
    ("step", "Step"),
    ("turns", "Turns"),
    ("invalid", "Invalid"),
)
"""Columns of the list of episodes."""
_LARGEST_FIRST = {"turns", "invalid", "score", "step", "episodes", "success", "began"}
_ALL = RunFilters()


def runs_page(site: Site, filters: RunFilters = _ALL) -> str:
    """Render the list of runs; an export has all of them on one page."""
    rows = run_rows(site.index.runs, site.index.run_metrics())
    matching = filter_rows(rows, filters)
    begin = (filters.page - 1) * filters.size
    shown = matching[begin : begin + filters.size] if site.links.live else matching
    return site.render(
        "runs.html",
        filters=filters,
        listing=Listing(shown, len(matching), filters),
        run_count=len(rows),
        episode_count=sum(row.metrics.episodes for row in rows if row.metrics),
        facets=run_facets(rows),
        columns=_columns(RUNS, filters),
    )


def episodes_page(site: Site, filters: Filters, listing: Listing[Row] | None = None) -> str:
    """Render the list of episodes: `listing` if given, otherwise the page that the filters select."""
    listing = listing or site.index.list(filters)
    return site.render(
        "episodes.html",
        filters=filters,
        listing=listing,
        snippets=snippets(site.index, (row.address for row in listing.rows), filters.text),
        facets=site.index.facets(filters.run),
        used_labels=site.index.labels(filters.run),
        columns=_columns(EPISODES, filters),
    )


def _columns(columns: Sequence[tuple[str, str]], filters: FilterSet) -> list[tuple[str, str, str]]:
    """Add to each column the sort order that a click on its heading requests."""
    return [(name, label, _next_sort(filters.sort, name)) for name, label in columns]


def _next_sort(current: str, column: str) -> str:
    """Return the next sort order of a column: its natural order, then the reverse, then none."""
    orders = [f"-{column}", column] if column in _LARGEST_FIRST else [column, f"-{column}"]
    return {orders[0]: orders[1], orders[1]: ""}.get(current, orders[0])
