"""Filtering and sorting of the list of runs. There are a few hundred at most, so this works in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_eval.viewer.index.filters import FilterSet, search_terms
from agentgym_eval.viewer.index.metrics import RunMetrics
from agentgym_eval.viewer.index.run_columns import column_values, sort_key
from agentgym_eval.viewer.index.runs import KINDS, STATES, Run

_SORTS = ("name", "kind", "env", "policy", "episodes", "success", "state", "began")
ALIVE = "!stopped"
"""A filter value for runs in any state except stopped."""
_CHOICES = {"kind": KINDS, "state": (*STATES, ALIVE)}
FACETS = ("tag", "kind", "recipe", "env", "policy", "state")
"""Filters with few enough values to offer as a choice."""


@dataclass(frozen=True, slots=True)
class RunFilters(FilterSet):
    """Filters of runs, newest first by default."""

    SORTS = _SORTS
    CHOICES = _CHOICES

    sort: str = "-began"
    text: str = ""
    """Substrings that must all occur in the name, note, tags, recipe, or the names of environments, policies and
    models.
    """
    tag: str = ""
    """One of the tags of a run."""
    kind: str = ""
    recipe: str = ""
    env: str = ""
    policy: str = ""
    state: str = ""
    success_from: int | None = None
    """In percent; with either bound, runs with unknown success are left out."""
    success_to: int | None = None
    columns: str = ""
    """Additional columns, separated by commas, see `run_columns`."""

    @property
    def chosen(self) -> list[str]:
        """The additional columns."""
        return list(dict.fromkeys(filter(None, self.columns.split(","))))

    @property
    def sorts(self) -> Collection[str]:
        """The columns to sort by."""
        return [*self.SORTS, *self.chosen]


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list of runs."""

    run: Run
    metrics: RunMetrics | None
    """None if no episode has been read yet."""
    envs: tuple[str, ...]
    """Environments from the episodes; if there are none yet, from the settings."""
    policies: tuple[str, ...]
    """Policies from the settings; if these name none, from the episodes."""
    filter_values: Mapping[str, Any]
    """The values to filter and sort by, by the names of `RunFilters`; also used by lists filtered in the browser."""


def run_rows(runs: Iterable[Run], metrics: Mapping[str, RunMetrics]) -> list[RunRow]:
    """Return the rows of all runs, newest first."""
    return [_row(run, metrics.get(run.slug)) for run in sorted(runs, key=lambda run: (-run.began, run.name))]


def filter_rows(rows: Iterable[RunRow], filters: RunFilters) -> list[RunRow]:
    """Return the matching rows in the requested order; the sort is stable, and rows without a value come last."""
    name = filters.sort.removeprefix("-")
    matching = [row for row in rows if _matches(row.filter_values, filters)]
    values = {row.run.slug: _sort_value(row, name) for row in matching}
    known = [row for row in matching if values[row.run.slug] not in (None, ())]
    known.sort(key=lambda row: sort_key(values[row.run.slug]), reverse=filters.sort.startswith("-"))
    return known + [row for row in matching if values[row.run.slug] in (None, ())]


def _sort_value(row: RunRow, name: str) -> Any:
    return row.filter_values[name] if name in _SORTS else column_values(row.run, [name])[name]


def run_facets(rows: Sequence[RunRow]) -> dict[str, list[tuple[str, int]]]:
    """Return, for each of `FACETS`, its values among the runs with their counts."""
    counts_by_name = {
        name: Counter(value for row in rows for value in _values(row.filter_values[name]) if value) for name in FACETS
    }
    states = counts_by_name["state"]
    if 0 < states["stopped"] < len(rows):
        states[ALIVE] = len(rows) - states["stopped"]
    return {name: sorted(counts.items()) for name, counts in counts_by_name.items()}


def _row(run: Run, metrics: RunMetrics | None) -> RunRow:
    envs, episode_policies = (metrics.envs, metrics.policies) if metrics else ((), ())
    envs = envs or ((run.env,) if run.env else ())
    success = metrics.success if metrics else None
    policies = (run.policy,) if run.policy else episode_policies
    texts = (run.title, run.note, *run.tags, run.name, run.recipe, *envs, *policies, *episode_policies)
    filter_values = {
        "name": run.label,
        "tag": run.tags,
        "kind": run.kind,
        "recipe": run.recipe,
        "env": envs,
        "policy": policies,
        "state": run.state,
        "episodes": metrics.episodes if metrics else None,
        "success": None if success is None else round(100 * success, 1),
        "began": run.began,
        "text": "\n".join(texts).lower(),
    }
    return RunRow(run, metrics, envs, policies, filter_values)


def _matches(values: Mapping[str, Any], filters: RunFilters) -> bool:
    if not all(_is_one_of(_values(values[name]), getattr(filters, name)) for name in FACETS):
        return False
    low, high, success = filters.success_from, filters.success_to, values["success"]
    if (low is not None or high is not None) and success is None:
        return False
    if (low is not None and success < low) or (high is not None and success > high):
        return False
    return all(part in values["text"] for part in search_terms(filters.text.lower()))


def _is_one_of(values: tuple[str, ...], wanted: str) -> bool:
    """Return whether `wanted` is among the values; with a `!` prefix, whether it isn't."""
    return not wanted or (wanted.removeprefix("!") in values) != wanted.startswith("!")


def _values(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)
