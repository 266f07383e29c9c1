"""Reports as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.metrics.seeds import AcrossSeeds
from agentgym_eval.metrics.summary import Report, SummaryMetrics
from agentgym_eval.reports.cause_tables import causes_of
from agentgym_eval.reports.cells import Table as TextTable
from agentgym_eval.reports.evaluated import Evaluated
from agentgym_eval.reports.tables import of_clusters, summary

_MOST_DIFFICULTIES = 10
_UNBOUNDED = 10_000
_Columns = Mapping[str, Callable[[SummaryMetrics], str]]


def print_report(report: Report, title: str, console: Console) -> None:
    """Print a row for all tasks, for each category and for each difficulty, with 95% intervals below the means.

    If the terminal isn't wide enough, the columns are split over several tables. Difficulties are omitted if they
    coincide with the categories, or if there are too many of them.
    """
    counts: _Columns = {
        "tasks": lambda metrics: str(metrics.tasks),
        "episodes": lambda metrics: str(metrics.episodes),
        "failed": lambda metrics: f"[red]{metrics.failed}[/red]" if metrics.failed else "0",
        "success": lambda metrics: _cell(metrics.success, percent=True),
        "score": lambda metrics: _cell(metrics.score, percent=True),
        "turns": lambda metrics: _cell(metrics.turns),
    }
    if not math.isnan(report.overall.tokens.mean):
        counts = {**counts, "tokens": lambda metrics: _cell(metrics.tokens)}
    passes: _Columns = {
        **{f"pass@{k}": lambda metrics, k=k: _cell(metrics.pass_at[k], percent=True) for k in report.overall.pass_at},
        **{
            f"pass^{k}": lambda metrics, k=k: _cell(metrics.pass_hat[k], percent=True)
            for k in report.overall.pass_hat
            if k > 1  # pass^1 is pass@1
        },
    }
    console.print(escape(title), style="bold")
    whole = {**counts, **passes}
    fits = _fits(_table(report, whole, console.width), console)
    for columns in [whole] if fits else [*_split(report, counts, console), *_split(report, passes, console)]:
        console.print(_table(report, columns, console.width))
    for note in _notes(report):
        console.print(escape(note), style="dim")
    for table in causes_of(report):
        _print_table(table, console)


def print_runs(
    runs: Sequence[Evaluated],
    comparisons: Sequence[Comparison],
    title: str,
    console: Console,
    across: AcrossSeeds | None = None,
) -> None:
    """Print a row for each run, one for each comparison, and one for the comparison over seeds."""
    console.print(escape(title), style="bold")
    for table in summary(runs, comparisons, across):
        _print_table(table, console)


def _print_table(table: TextTable, console: Console) -> None:
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, column in enumerate(table.columns):
        drawn.add_column(escape(column), justify="right" if i else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(f"{escape(cell.text)}\n[dim]{escape(cell.small)}[/dim]".rstrip() for cell in row))
    console.print(drawn)
    for note in table.notes:
        console.print(escape(note), style="dim")


def _split(report: Report, columns: _Columns, console: Console) -> Iterator[_Columns]:
    """Split the columns so that each part fits next to the row names."""
    part: dict[str, Callable[[SummaryMetrics], str]] = {}
    for heading, cell in columns.items():
        if part and not _fits(_table(report, {**part, heading: cell}, console.width), console):
            yield part
            part = {}
        part[heading] = cell
    if part:
        yield part


def _fits(table: Table, console: Console) -> bool:
    unbounded = console.options.update(width=_UNBOUNDED)
    return console.measure(table, options=unbounded).maximum <= console.width


def _table(report: Report, columns: _Columns, width: int) -> Table:
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    drawn.add_column("", overflow="fold", max_width=max(1, width // 2))
    for heading in columns:
        drawn.add_column(heading, justify="right", no_wrap=True)
    for name, metrics, ends_section in _rows(report):
        drawn.add_row(escape(name), *(cell(metrics) for cell in columns.values()), end_section=ends_section)
    return drawn


def _rows(report: Report) -> Iterator[tuple[str, SummaryMetrics, bool]]:
    yield "all", report.overall, True
    yield from _group("{}", report.by_category)
    same = list(report.by_difficulty.values()) == list(report.by_category.values())
    if not same and len(report.by_difficulty) <= _MOST_DIFFICULTIES:
        yield from _group("difficulty {}", report.by_difficulty)


def _group(name: str, groups: Mapping[Any, SummaryMetrics]) -> Iterator[tuple[str, SummaryMetrics, bool]]:
    last = len(groups) - 1
    for i, (group, metrics) in enumerate(groups.items()):
        yield name.format(group), metrics, i == last


def _cell(interval: Interval, *, percent: bool = False) -> str:
    if math.isnan(interval.mean):
        return "-"
    factor, unit = (100, "%") if percent else (1, "")
    mean = f"{interval.mean * factor:.1f}{unit}"
    if math.isnan(interval.low):
        return mean
    return f"{mean}\n[dim]{interval.low * factor:.1f}–{interval.high * factor:.1f}[/dim]"


def _notes(report: Report) -> Iterator[str]:
    ended = ", ".join(f"{count} {stop}" for stop, count in report.overall.stops.items())
    yield f"Episodes by stop reason: {ended}."
    yield "Below each mean: its 95% interval over tasks. Failed episodes are excluded."
    if clusters := of_clusters(report.overall):
        yield clusters
    if len(report.by_difficulty) > _MOST_DIFFICULTIES:
        yield f"The {len(report.by_difficulty)} difficulties are too many for a table; see the JSON report."
    for k in report.overall.pass_at:
        if left_out := report.overall.left_out(k):
            yield f"pass@{k} and pass^{k} exclude {left_out} tasks with fewer than {k} attempts that did not fail."
    for fault, count in islice(report.faults.items(), 3):
        yield f"{count} episodes failed: {fault}"
