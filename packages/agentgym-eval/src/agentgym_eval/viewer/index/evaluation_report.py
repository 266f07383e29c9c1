"""What an evaluation wrote of itself, which the viewer shows and doesn't work out again: its report, and its usage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.metrics.summary import SCHEMA
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.storage.store import USAGE
from agentgym_eval.viewer.index.runs import Run, read_json


@dataclass(frozen=True, slots=True)
class Reported:
    """What report.json says of all episodes."""

    episodes: int
    tasks: int
    figures: Mapping[str, Interval]
    """By name, in the order of reading: success, pass@k for each k that was asked for, pass^k."""

    @property
    def clusters(self) -> int | None:
        """How many clusters of tasks the intervals are over; None where they are over tasks."""
        return self.figures["Success"].clusters


def read_report(run: Run) -> Reported | None:
    """The report of an evaluation; None where there is none yet, or it is damaged or of another schema."""
    if run.kind != "evaluate":
        return None
    record = read_json(run.path / "report.json")
    try:
        if record["schema"] != SCHEMA:
            return None
        overall = record["overall"]
        return Reported(int(overall["episodes"]), int(overall["tasks"]), dict(_figures(overall)))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Used:
    """What an endpoint charged a run for."""

    usage: Usage
    cost: float | None
    """In the unit of the price that was given; None where it is unknown."""


def read_usage(run: Run) -> Used | None:
    """The usage of a run; None where it used no endpoint, or the file is damaged."""
    record = read_json(run.path / USAGE)
    counts = {field.name: record.get(field.name) or 0 for field in fields(Usage)}
    if not all(isinstance(count, int) and count >= 0 for count in counts.values()) or not counts["requests"]:
        return None
    cost = record.get("cost")
    return Used(Usage(**counts), float(cost) if isinstance(cost, int | float) and math.isfinite(cost) else None)


def report_page(run: Run) -> Path | None:
    """The page beside it, where that is a file of the run's own folder and no link out of it."""
    page = run.path / "report.html"
    return page if run.kind == "evaluate" and page.is_file() and not page.is_symlink() else None


def _figures(overall: Mapping[str, Any]) -> Iterator[tuple[str, Interval]]:
    yield "Success", _interval(overall["success"])
    for k, at in overall["pass_at"].items():
        yield f"pass@{int(k)}", _interval(at)
    for k, at in overall["pass_hat"].items():
        if int(k) > 1:  # pass^1 is pass@1
            yield f"pass^{int(k)}", _interval(at)


def _interval(at: Mapping[str, Any]) -> Interval:
    mean, low, high = (math.nan if at[name] is None else float(at[name]) for name in ("mean", "low", "high"))
    return Interval(mean, low, high, int(at["tasks"]), int(at["clusters"]) if "clusters" in at else None)
