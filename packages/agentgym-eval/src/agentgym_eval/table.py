"""A report as a table for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from agentgym_eval.intervals import Interval
from agentgym_eval.report import Figures, Report


def table(report: Report, title: str) -> Table:
    """A row for all tasks, for each category and for each difficulty; below each mean its 95% interval."""
    drawn = Table(title=title, title_justify="left", caption=_caption(report), caption_justify="left", box=SIMPLE_HEAD)
    drawn.add_column("", no_wrap=True)
    ks = list(report.overall.pass_at)
    for heading in ("tasks", "episodes", "failed", "success", "score", "turns", *(f"pass@{k}" for k in ks)):
        drawn.add_column(heading, justify="right")
    for name, figures, ends in _rows(report):
        drawn.add_row(name, *_cells(figures), end_section=ends)
    return drawn


def _rows(report: Report) -> Iterator[tuple[str, Figures, bool]]:
    yield "all", report.overall, True
    for groups, name in ((report.by_category, "{}"), (report.by_difficulty, "difficulty {}")):
        last = len(groups) - 1
        for i, (group, figures) in enumerate(groups.items()):
            yield name.format(group), figures, i == last


def _cells(figures: Figures) -> list[str]:
    failed = f"[red]{figures.failed}[/red]" if figures.failed else "0"
    shares = [_cell(interval, percent=True) for interval in (figures.success, figures.score)]
    passes = [_cell(interval, percent=True) for interval in figures.pass_at.values()]
    return [str(figures.tasks), str(figures.episodes), failed, *shares, _cell(figures.turns), *passes]


def _cell(interval: Interval, *, percent: bool = False) -> str:
    if math.isnan(interval.mean):
        return "-"
    factor, unit = (100, "%") if percent else (1, "")
    low, high = interval.low * factor, interval.high * factor
    return f"{interval.mean * factor:.1f}{unit}\n[dim]{low:.1f}–{high:.1f}[/dim]"


def _caption(report: Report) -> str:
    lines = ["Below each mean: its 95% interval, by bootstrap over tasks. Failed episodes are in no mean."]
    for k in report.overall.pass_at:
        if left_out := report.overall.left_out(k):
            lines.append(f"pass@{k} leaves out {left_out} tasks with fewer than {k} attempts that did not fail.")
    lines.extend(f"Failed {count} times: {fault}" for fault, count in list(report.faults.items())[:3])
    return "\n".join(line.replace("[", "\\[") for line in lines)
