"""Reading the report and the endpoint usage that an evaluation wrote; the viewer shows them without recomputing."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.metrics.summary import SCHEMA
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.storage.store import USAGE
from agentgym_eval.viewer.index.discovery import read_json
from agentgym_eval.viewer.index.runs import Run


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """The overall results in report.json."""

    episodes: int
    tasks: int
    metrics: Mapping[str, Interval]
    """By name, in display order: success, pass@k for each requested k, pass^k."""
    tokens: float | None = None
    """Mean completion tokens per episode; None if their number wasn't recorded."""

    @property
    def clusters(self) -> int | None:
        """The number of task clusters that the intervals are over; None if they are over tasks."""
        return self.metrics["Success"].clusters


def read_report(run: Run) -> ReportSummary | None:
    """Read the report of an evaluation; None if it doesn't exist yet, is damaged, or has another schema."""
    if run.kind != "evaluate":
        return None
    record = read_json(run.path / "report.json")
    try:
        if record["schema"] != SCHEMA:
            return None
        overall = record["overall"]
        tokens = (overall.get("tokens") or {}).get("mean")
        known = float(tokens) if isinstance(tokens, int | float) and _is_number(tokens) else None
        return ReportSummary(int(overall["episodes"]), int(overall["tasks"]), dict(_metrics(overall)), known)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class RunUsage:
    """The endpoint usage of a run and its cost."""

    usage: Usage
    cost: float | None
    """In the currency of the configured prices; None if unknown."""
    price: tuple[float, ...]
    """The configured prices, see `Usage.cost`; empty if there are none, or an older run did not record them."""


def read_usage(run: Run) -> RunUsage | None:
    """Read the usage of a run; None if it used no endpoint, or the file is damaged."""
    record = read_json(run.path / USAGE)
    counts = {field.name: record.get(field.name) or 0 for field in fields(Usage)}
    if not all(isinstance(count, int) and count >= 0 for count in counts.values()) or not counts["requests"]:
        return None
    cost, price = record.get("cost"), record.get("price")
    prices = tuple(each for each in price if _is_number(each)) if isinstance(price, list) else ()
    known = prices if isinstance(price, list) and len(prices) == len(price) in (2, 3) else ()
    return RunUsage(Usage(**counts), float(cost) if isinstance(cost, int | float) and _is_number(cost) else None, known)


def prices(run: Run) -> tuple[float, ...]:
    """Return the configured prices of an endpoint's tokens, see `RunUsage.price`; empty if they are unknown."""
    usage = read_usage(run)
    return usage.price if usage else ()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # an int can have hundreds of digits


def report_page(run: Run) -> Path | None:
    """Return the path of report.html, if it is a file in the run's own folder and not a symlink."""
    page = run.path / "report.html"
    return page if run.kind == "evaluate" and page.is_file() and not page.is_symlink() else None


def _metrics(overall: Mapping[str, Any]) -> Iterator[tuple[str, Interval]]:
    yield "Success", _interval(overall["success"])
    for k, record in overall["pass_at"].items():
        yield f"pass@{int(k)}", _interval(record)
    for k, record in overall["pass_hat"].items():
        if int(k) > 1:  # pass^1 equals pass@1
            yield f"pass^{int(k)}", _interval(record)


def _interval(record: Mapping[str, Any]) -> Interval:
    mean, low, high = (math.nan if record[name] is None else float(record[name]) for name in ("mean", "low", "high"))
    return Interval(mean, low, high, int(record["tasks"]), int(record["clusters"]) if "clusters" in record else None)
