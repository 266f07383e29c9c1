"""The report that ended an evaluation: its own figures, which the viewer shows and doesn't work out again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_eval.intervals import Interval
from agentgym_eval.report import SCHEMA
from agentgym_eval.viewer.runs import Run, read_json


@dataclass(frozen=True, slots=True)
class Reported:
    """What report.json says of all episodes."""

    episodes: int
    tasks: int
    figures: Mapping[str, Interval]
    """By name, in the order of reading: success, pass@k for each k that was asked for, pass^k."""


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
    return Interval(mean, low, high, int(at["tasks"]))
