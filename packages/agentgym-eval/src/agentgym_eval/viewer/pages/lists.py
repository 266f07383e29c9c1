"""The lists of runs and of episodes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime

from agentgym_eval.viewer.index.filters import FilterSet, Listing
from agentgym_eval.viewer.index.queries import Filters, Row
from agentgym_eval.viewer.index.run_columns import STATISTICS, Value, column_choices, column_label, column_values
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
_BEFORE_CHOSEN = 3
"""The number of columns before the chosen ones."""
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
    filters = filters.within(len(matching))
    begin = (filters.page - 1) * filters.size
    shown = matching[begin : begin + filters.size] if site.links.live else matching
    chosen = [(name, column_label(name)) for name in filters.chosen]
    return site.render(
        "runs.html",
        filters=filters,
        listing=Listing(shown, len(matching), filters),
        run_count=len(rows),
        episode_count=sum(row.metrics.episodes for row in rows if row.metrics),
        facets=run_facets(rows),
        columns=_columns((*RUNS[:_BEFORE_CHOSEN], *chosen, *RUNS[_BEFORE_CHOSEN:]), filters),
        values={row.run.slug: column_values(row.run, filters.chosen) for row in shown} if chosen else {},
        choices=column_choices([row.run for row in shown]) if site.links.live else None,
        statistics=STATISTICS,
    )


def runs_csv(site: Site, filters: RunFilters) -> str:
    """Write all runs that match the filters as CSV, with the chosen columns; see `docs/viewer.md`.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    names = [
        "run",
        "display_name",
        "tags",
        "success",
        "split",
        "state",
        "kind",
        "recipe",
        "env",
        "policy",
        "episodes",
        "began",
    ]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*names, *filters.chosen])
    for row in filter_rows(run_rows(site.index.runs, site.index.run_metrics()), filters):
        run, metrics = row.run, row.metrics
        began = datetime.fromtimestamp(run.began, UTC).isoformat(timespec="seconds")
        success, split = (metrics.success, metrics.split) if metrics else (None, "")
        values = [run.name, run.title, ", ".join(run.tags), success, split, run.state, run.kind, run.recipe]
        values += [" ".join(row.envs), " ".join(row.policies), metrics.episodes if metrics else None, began]
        writer.writerow(map(plain_cell, [*values, *column_values(run, filters.chosen).values()]))
    return text.getvalue().encode(errors="replace").decode()


def plain_cell(value: Value) -> Value:
    """Return the value of a CSV cell, with an apostrophe before text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def episodes_page(site: Site, filters: Filters, listing: Listing[Row] | None = None) -> str:
    """Render the list of episodes: `listing` if given, otherwise the page that the filters select, or
    the last one if they have fewer.
    """
    listing = listing or site.index.list(filters)
    if filters.page > listing.pages:
        listing = site.index.list(filters.within(listing.total))
    return site.render(
        "episodes.html",
        filters=listing.filters,
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
