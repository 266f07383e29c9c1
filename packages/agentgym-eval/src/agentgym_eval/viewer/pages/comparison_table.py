"""Comparison of any number of runs: their results side by side, and the paired differences to one of them.

Of a training run, that is one evaluation, which the page lets choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import TypeVar

from agentgym_eval.metrics.comparison import Difference, difference, holm
from agentgym_eval.metrics.failure_causes import KINDS
from agentgym_eval.metrics.intervals import Interval, share
from agentgym_eval.util.errors import UsageError, did_you_mean, listed
from agentgym_eval.viewer.index.evaluation_report import read_report
from agentgym_eval.viewer.index.metrics import TaskMetrics
from agentgym_eval.viewer.index.run_columns import differing_settings
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages.comparison import Side, cause_counts, cause_shares, known_distances, measured, open_side
from agentgym_eval.viewer.pages.evaluation_choice import (
    EVALUATION_FIELDS,
    EvaluationChoice,
    Offer,
    available,
)
from agentgym_eval.viewer.pages.site import Site

MOST_RUNS = 20
"""The most runs that the URL may name."""
TABLE_FIELDS = ("run", "baseline", *EVALUATION_FIELDS)
"""The names of the values in the URL."""
_FEWEST_TASKS = 2
"""The fewest common tasks for a test."""
_BY_DESIGN = {"policy", "model", "out", "seed", "tasks_sha256"}
"""Settings that aren't worth mentioning if they differ."""
TaskKey = tuple[str, str]
"""Environment and id of a task."""
Tasks = Mapping[TaskKey, TaskMetrics]
Group = tuple[str, str]
"""An environment and a category; either can be empty, which stands for all of them."""
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The runs to compare, by slug, as in the URL."""

    run: tuple[str, ...] = ()
    baseline: str = ""
    """The run with which each other one is compared; the first one if it is not among them."""
    evaluation: EvaluationChoice = field(default_factory=EvaluationChoice)
    """Which evaluation of training runs is compared."""

    @classmethod
    def parse(cls, query: Mapping[str, str], runs: Sequence[str]) -> TableQuery:
        """Parse a URL query, in which `run` occurs once for each of `runs`. Raises `UsageError` for invalid values."""
        for name in query:
            if name not in TABLE_FIELDS:
                suggestion = did_you_mean(name, TABLE_FIELDS)
                raise UsageError(
                    f"A comparison of several runs has no {name[:50]}, only {listed(TABLE_FIELDS)}.{suggestion}"
                )
        distinct = tuple(dict.fromkeys(filter(None, runs)))
        if len(distinct) > MOST_RUNS:
            raise UsageError(f"At most {MOST_RUNS} runs can be compared at once, not {len(distinct)}; select fewer.")
        return cls(distinct, query.get("baseline", ""), EvaluationChoice.parse(query))


@dataclass(frozen=True, slots=True)
class Cell:
    """A share of one run, such as the success in a category, and its difference to that of the baseline."""

    value: Interval
    """The mean over the run's tasks, with its interval."""
    change: Difference | None
    """None for the baseline, and with fewer than two common tasks."""
    episodes: int = 0
    """For a cause of failure, the number of episodes that failed for it."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The results of one run."""

    side: Side
    success: Cell
    common: int
    """The number of tasks that it shares with the baseline."""
    better: int
    worse: int
    score: float | None
    turns: float | None
    tokens: float | None
    """Completion tokens per episode; None if unknown."""
    prompt_tokens: float | None
    cells: Mapping[Group, Cell]
    """Success by the group of tasks."""
    causes: Mapping[str, Cell]
    """The share of attempts that failed, by cause."""


def table_page(site: Site, query: TableQuery) -> str:
    """Render the comparison; with fewer than two runs, the form to choose them."""
    known = {run.slug: run for run in site.index.runs}
    chosen = [known[slug] for slug in query.run if slug in known]
    with_episodes = site.index.run_metrics()
    played = [run for run in chosen if run.slug in with_episodes]
    found = {run.slug: _open_evaluation(site, run, query.evaluation) for run in played}
    sides = [side for side in found.values() if side]
    baseline = next((side for side in sides if side.run.slug == query.baseline), sides[0] if sides else None)
    rows = result_rows(site, sides, baseline) if baseline and len(sides) > 1 else []
    groups = dict.fromkeys(name for row in rows for name in row.cells)
    return site.render(
        "comparison_table.html",
        query=query,
        selected=len(played),
        rows=rows,
        baseline=baseline,
        groups=sorted(groups) if len(groups) > 1 else [],
        causes=[kind for kind in KINDS if any(kind in row.causes for row in rows)],
        known=sorted({known_distances(site, row.side) for row in rows}),
        measured=measured(site, [row.side for row in rows]),
        differing=[name for name in differing_settings(row.side.run for row in rows) if name not in _BY_DESIGN],
        missing=[slug for slug in query.run if slug not in known],
        empty=[run for run in chosen if run.slug not in with_episodes],
        unevaluated=[(run, available(run)) for run in played if not found[run.slug]],
        choices=(choices := [run for run in site.index.runs if run.slug in with_episodes]),
        offer=Offer.of(chosen or choices, query.evaluation),
        files={side.run.slug: side.file.slug for side in sides} if query.evaluation.values() else {},
    )


def _open_evaluation(site: Site, run: Run, choice: EvaluationChoice) -> Side | None:
    """Return a run with the results in the chosen evaluation, or in its only file if it is no training run; None if it
    doesn't have the evaluation.
    """
    if run.kind != "train" or not choice.values():
        return open_side(site, run.slug)
    file = choice.find(site, run)
    return open_side(site, run.slug, file.slug) if file else None


def comparable_runs(site: Site) -> list[tuple[str, ...]]:
    """Group the runs that share tasks, directly or through others, in the files that a table compares by default.

    Returns:
        The slugs of each group of at least two, in the order of the runs.
    """
    groups: list[tuple[set[str], set[TaskKey]]] = []
    for run in site.index.run_metrics():
        side = open_side(site, run)
        tasks = {*_known(side.tasks)} if side else set[TaskKey]()
        joined = [group for group in groups if not tasks.isdisjoint(group[1])]
        groups = [group for group in groups if group not in joined]
        groups.append(({run}.union(*(runs for runs, _ in joined)), tasks.union(*(known for _, known in joined))))
    order = [run.slug for run in site.index.runs]
    return sorted(
        (tuple(sorted(runs, key=order.index)) for runs, _ in groups if len(runs) > 1), key=lambda g: order.index(g[0])
    )


def result_rows(site: Site, sides: Sequence[Side], baseline: Side) -> list[ResultRow]:
    """Compare runs with one of them. The p-values of each table, that of success, of groups of tasks and of causes, are
    adjusted for the number of its comparisons (Holm 1979).
    """
    several = len({env for side in sides for env, _ in side.tasks}) > 1
    success = _adjusted({side.run.slug: {"": _success(side, baseline, side.tasks)} for side in sides})
    cells = _adjusted(
        {
            side.run.slug: {
                group: _success(side, baseline, tasks) for group, tasks in _groups(side, several=several).items()
            }
            for side in sides
        }
    )
    oracle = measured(site, sides)
    causes = _adjusted({side.run.slug: _causes(site, side, baseline, oracle=oracle) for side in sides})
    slugs = [side.run.slug for side in sides]
    return [
        _row(site, side, baseline, success[slug][""], cells[slug], causes[slug])
        for side, slug in zip(sides, slugs, strict=True)
    ]


def _row(
    site: Site, side: Side, baseline: Side, success: Cell, cells: Mapping[Group, Cell], causes: Mapping[str, Cell]
) -> ResultRow:
    known = [task for task in side.tasks.values() if task.success is not None]
    ours, theirs = _known(side.tasks), _known(baseline.tasks)
    gains = [ours[key] - theirs[key] for key in _common(ours, theirs)]
    tokens, prompt_tokens = _tokens(side, site.index.episodes_of(side.run.slug))
    return ResultRow(
        side=side,
        success=success,
        common=len(gains),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        score=fmean(task.score or 0.0 for task in known) if known else None,
        turns=fmean(task.turns or 0.0 for task in known) if known else None,
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        cells=cells,
        causes=causes,
    )


def _groups(side: Side, *, several: bool) -> dict[Group, Tasks]:
    """Group the tasks by category; with several environments, also by environment."""
    groups: dict[Group, dict[TaskKey, TaskMetrics]] = {}
    for key, task in side.tasks.items():
        for group in ((task.env, ""), (task.env, task.category)) if several else (("", task.category),):
            groups.setdefault(group, {})[key] = task
    return dict(groups)


def _known(tasks: Tasks) -> dict[TaskKey, float]:
    """Return the success of the tasks with an attempt that did not fail."""
    return {key: task.success for key, task in tasks.items() if task.success is not None}


def _common(ours: Mapping[TaskKey, float], theirs: Mapping[TaskKey, float]) -> list[TaskKey]:
    return sorted(ours.keys() & theirs.keys())


def _success(side: Side, baseline: Side, tasks: Tasks) -> Cell:
    """Return the success of a run at some of its tasks."""
    ours, theirs = _known(tasks), _known(baseline.tasks)
    common = _common(ours, theirs)
    change = _change(side, baseline, common, [ours[key] for key in common], [theirs[key] for key in common])
    return Cell(share(list(ours.values()), [tasks[key].cluster_key for key in ours]), change)


def _causes(site: Site, side: Side, baseline: Side, *, oracle: bool) -> dict[str, Cell]:
    """Return the shares of attempts that failed for the causes that occurred in a run or the baseline, with those that
    need the expert's distances if all runs have them (`oracle`).
    """
    ours = _known(side.tasks)
    common = _common(ours, _known(baseline.tasks))
    counts = cause_counts(site, side, oracle=oracle)
    shares = cause_shares(site, side, [side.tasks[key] for key in ours], oracle=oracle)
    own, other = (
        cause_shares(site, each, [each.tasks[key] for key in common], oracle=oracle) for each in (side, baseline)
    )
    return {
        kind: Cell(
            share(shares[kind], [side.tasks[key].cluster_key for key in ours]),
            _change(side, baseline, common, own[kind], other[kind]),
            sum(number for (_, cause), number in counts.items() if cause == kind),
        )
        for kind in KINDS
        if any(shares[kind]) or any(other[kind])
    }


def _change(
    side: Side, baseline: Side, common: Sequence[TaskKey], ours: Sequence[float], theirs: Sequence[float]
) -> Difference | None:
    """Return the difference of a run to the baseline at common tasks, of which each has one value of both."""
    if side is baseline or len(common) < _FEWEST_TASKS:
        return None
    return _difference(tuple(theirs), tuple(ours), tuple(side.tasks[key].cluster_key for key in common))


@lru_cache(maxsize=2048)  # the page is rendered again whenever any run in the folder goes on
def _difference(
    theirs: tuple[float, ...], ours: tuple[float, ...], clusters: tuple[tuple[str, str, str], ...]
) -> Difference:
    return difference(theirs, ours, clusters)


def _adjusted(cells: Mapping[str, Mapping[Key, Cell]]) -> dict[str, dict[Key, Cell]]:
    """Adjust the p-values of all cells of a table, by run, for the number of its differences."""
    changes = {(slug, key): cell.change for slug, row in cells.items() for key, cell in row.items() if cell.change}
    ps = holm({str(number): change.p for number, change in enumerate(changes.values())})
    adjusted = {
        key: replace(change, p_adjusted=ps[str(number)]) for number, (key, change) in enumerate(changes.items())
    }
    return {
        slug: {key: replace(cell, change=adjusted.get((slug, key))) for key, cell in row.items()}
        for slug, row in cells.items()
    }


def _tokens(side: Side, episodes: int) -> tuple[float | None, float | None]:
    """Return the completion and the prompt tokens per episode: those that the endpoint counted, or the report has."""
    usage = side.usage.usage if side.usage else None
    if usage and usage.uncounted < usage.requests and episodes:
        return usage.completion_tokens / episodes, usage.prompt_tokens / episodes
    report = read_report(side.run)
    return (report.tokens if report else None), None
