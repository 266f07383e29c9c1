"""Chosen columns of the list of runs: settings, and the last, largest or smallest value of a metric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_eval.viewer.index.metric_columns import metric_columns
from agentgym_eval.viewer.index.runs import Run

Value = float | int | str | None
STATISTICS = ("last", "max", "min")
"""The statistics of a metric that a column `STATISTIC:METRIC` shows."""


@dataclass(frozen=True, slots=True)
class ColumnChoices:
    """The columns that runs offer."""

    differing: list[str]
    """Settings that differ among the runs, by name."""
    common: list[str]
    """Settings with the same value in all runs."""
    metrics: list[str]

    def absent(self, chosen: Iterable[str]) -> list[str]:
        """Return the chosen columns that none of the runs offers."""
        metrics = {f"{statistic}:{name}" for name in self.metrics for statistic in STATISTICS}
        return [name for name in chosen if name not in metrics.union(self.differing, self.common)]


def column_label(column: str) -> str:
    """Return the heading of a column: `last:loss` as `loss, last`."""
    statistic, _, metric = column.partition(":")
    return f"{metric}, {statistic}" if statistic in STATISTICS and metric else column


def column_values(run: Run, columns: Iterable[str]) -> dict[str, Value]:
    """Return the values of columns for a run; None where it has none."""
    settings = flat_settings(run.settings)
    return {column: _value(run, settings, column) for column in columns}


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts numbers before text, and settings that are on or off as numbers."""
    if isinstance(value, int | float):
        return 0, value
    return 1, value


def column_choices(runs: Sequence[Run]) -> ColumnChoices:
    """Return the columns that the runs offer."""
    names = dict.fromkeys(name for run in runs for name in flat_settings(run.settings))
    differing = differing_settings(runs)
    metrics = dict.fromkeys(name for run in runs for name in metric_columns(run.path).rows)
    return ColumnChoices(differing, [name for name in names if name not in differing], list(metrics))


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """Return the names of the settings in which runs differ."""
    settings = [flat_settings(run.settings) for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Value]:
    """Return nested settings with dotted names, like command-line flags. Lists are JSON."""
    return dict(_flat(settings, ""))


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Value]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float) or value is None:
            yield f"{prefix}{name}", value
        else:
            yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False)


def _value(run: Run, settings: Mapping[str, Value], column: str) -> Value:
    statistic, _, metric = column.partition(":")
    if statistic not in STATISTICS or not metric:
        return settings.get(column)
    _, values = metric_columns(run.path).column(metric)
    if not len(values):
        return None
    return float({"last": values[-1], "max": values.max(), "min": values.min()}[statistic])
