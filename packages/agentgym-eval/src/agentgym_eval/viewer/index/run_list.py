"""The list of runs under filters. There are some hundred at most, all known, so that no database is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_eval.viewer.index.filters import FilterSet, looked_for
from agentgym_eval.viewer.index.metrics import RunFigures
from agentgym_eval.viewer.index.runs import KINDS, STATES, Run

_SORTS = ("name", "kind", "env", "policy", "episodes", "success", "state", "began")
ALIVE = "!stopped"
"""The state of all runs but stopped ones, as a filter."""
_CHOICES = {"kind": KINDS, "state": (*STATES, ALIVE)}
FACETS = ("kind", "recipe", "env", "policy", "state")
"""Filters whose values are few enough to choose from."""


@dataclass(frozen=True, slots=True)
class RunFilters(FilterSet):
    """Which runs, in which order: without `sort` the newest first."""

    SORTS = _SORTS
    CHOICES = _CHOICES

    sort: str = "-began"
    text: str = ""
    """Parts of words that all occur in the name, the recipe, or the names of worlds, policies and models."""
    kind: str = ""
    recipe: str = ""
    env: str = ""
    policy: str = ""
    state: str = ""
    success_from: int | None = None
    """In percent; with either bound, runs whose success isn't known are left out."""
    success_to: int | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run with its figures."""

    run: Run
    figures: RunFigures | None
    """None where no episode was read yet."""
    worlds: tuple[str, ...]
    """In which was played: as the episodes have it, else as the settings do."""
    policies: tuple[str, ...]
    """Who played: as the settings have it, else as the episodes do."""
    facts: Mapping[str, Any]
    """What filters and sorting look at, by the names of `RunFilters`: also for lists that no server filters."""


def run_rows(runs: Iterable[Run], figures: Mapping[str, RunFigures]) -> list[RunRow]:
    """All runs, the newest first."""
    return [_row(run, figures.get(run.slug)) for run in sorted(runs, key=lambda run: (-run.began, run.name))]


def passing(rows: Iterable[RunRow], filters: RunFilters) -> list[RunRow]:
    """The rows that pass, sorted; those without a value for the order last, and equal ones as they were."""
    name = filters.sort.removeprefix("-")
    found = [row for row in rows if _passes(row.facts, filters)]
    known = [row for row in found if row.facts[name] not in (None, ())]
    known.sort(key=lambda row: row.facts[name], reverse=filters.sort.startswith("-"))
    return known + [row for row in found if row.facts[name] in (None, ())]


def run_facets(rows: Sequence[RunRow]) -> dict[str, list[tuple[str, int]]]:
    """For each of `FACETS` the values that the runs have, and how many have each."""
    counted = {name: Counter(value for row in rows for value in _values(row.facts[name]) if value) for name in FACETS}
    states = counted["state"]
    if 0 < states["stopped"] < len(rows):
        states[ALIVE] = len(rows) - states["stopped"]
    return {name: sorted(counts.items()) for name, counts in counted.items()}


def _row(run: Run, figures: RunFigures | None) -> RunRow:
    worlds, played = (figures.worlds, figures.policies) if figures else ((), ())
    worlds = worlds or ((run.env,) if run.env else ())
    success = figures.success if figures else None
    policies = (run.policy,) if run.policy else played
    facts = {
        "name": run.name,
        "kind": run.kind,
        "recipe": run.recipe,
        "env": worlds,
        "policy": policies,
        "state": run.state,
        "episodes": figures.episodes if figures else None,
        "success": None if success is None else round(100 * success, 1),
        "began": run.began,
        "text": "\n".join((run.name, run.recipe, *worlds, *policies, *played)).lower(),
    }
    return RunRow(run, figures, worlds, policies, facts)


def _passes(facts: Mapping[str, Any], filters: RunFilters) -> bool:
    if not all(_is_one_of(_values(facts[name]), getattr(filters, name)) for name in FACETS):
        return False
    low, high, success = filters.success_from, filters.success_to, facts["success"]
    if (low is not None or high is not None) and success is None:
        return False
    if (low is not None and success < low) or (high is not None and success > high):
        return False
    return all(part in facts["text"] for part in looked_for(filters.text.lower()))


def _is_one_of(values: tuple[str, ...], asked: str) -> bool:
    """Whether what is asked for is among the values; behind a `!`, whether it isn't."""
    return not asked or (asked.removeprefix("!") in values) != asked.startswith("!")


def _values(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)
