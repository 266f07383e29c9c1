"""Comparison of two runs: every common task with both results, largest difference first."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from agentgym_eval.metrics.comparison import Difference, compare_causes, difference
from agentgym_eval.metrics.failure_causes import KINDS, EpisodeKey, all_measured, without_oracle
from agentgym_eval.metrics.intervals import Interval, share
from agentgym_eval.storage.distances import read_distances
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.evaluation_report import RunUsage, read_usage
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.metrics import TaskMetrics
from agentgym_eval.viewer.index.runs import EpisodeFile, Run
from agentgym_eval.viewer.pages.evaluation_choice import EvaluationChoice
from agentgym_eval.viewer.pages.site import Site

_PAGE = 100
SORTS = {
    "difference": "B better first",
    "-difference": "A better first",
    "apart": "largest difference first",
    "task": "by task",
}


@dataclass(frozen=True, slots=True)
class ComparisonQuery:
    """The runs and files to compare, by slug, as in the URL. An empty file means the run's last evaluation."""

    a: str = ""
    b: str = ""
    a_file: str = ""
    b_file: str = ""
    sort: str = "apart"
    page: int = 1

    @classmethod
    def parse(cls, query: Mapping[str, str], selected: Sequence[str] = ()) -> ComparisonQuery:
        """Parse a URL query. Raises `UsageError` for invalid values.

        Args:
            query: The query.
            selected: Runs that were selected in the list of runs, of which the first two count.
        """
        names = {field.name for field in fields(cls)}
        values = {name: value for name, value in query.items() if value and name in names - {"page"}}
        page = query.get("page") or "1"
        if values.get("sort", "apart") not in SORTS or not re.fullmatch(r"0*[1-9]\d{0,8}", page, re.ASCII):
            raise UsageError(f"sort must be one of {', '.join(SORTS)}, and page must be at least 1.")
        return cls(**dict(zip("ab", dict.fromkeys(selected), strict=False)) | values, page=int(page))


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    run: Run
    file: EpisodeFile
    tasks: Mapping[tuple[str, str], TaskMetrics]
    """By environment and task."""
    usage: RunUsage | None
    """Usage of the whole run."""

    @property
    def missing(self) -> int:
        """Number of episodes that an evaluation has not played yet; 0 if it is complete, and for other runs."""
        played = sum(task.attempts for task in self.tasks.values())
        return max((self.run.expected or 0) - played, 0)

    def address(self, task: TaskMetrics) -> Address:
        """Return the address of the first attempt at a task."""
        return Address(self.run.slug, self.file.slug, task.first)


@dataclass(frozen=True, slots=True)
class Pair:
    """A task with both results."""

    a: TaskMetrics
    b: TaskMetrics

    @property
    def gain(self) -> float:
        """B's success minus A's; if they are equal, the difference of scores."""
        success = (self.b.success or 0.0) - (self.a.success or 0.0)
        return success or (self.b.score or 0.0) - (self.a.score or 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The overall results on the common tasks."""

    a: Interval
    """A's success."""
    b: Interval
    success: Interval
    """B's success minus A's."""
    p: float
    """p-value of the paired permutation test; NaN with fewer than two tasks."""
    better: int
    worse: int


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause of failure on the common tasks."""

    kind: str
    difference: Difference


def compare_page(site: Site, query: ComparisonQuery) -> str:
    """Render the comparison, or a form to choose two runs. Raises `NotFound`."""
    a, b = (open_side(site, *each) for each in ((query.a, query.a_file), (query.b, query.b_file)))
    pairs = [Pair(a.tasks[key], b.tasks[key]) for key in a.tasks.keys() & b.tasks.keys()] if a and b else []
    scored = [pair for pair in pairs if pair.a.success is not None and pair.b.success is not None]
    return site.render(
        "compare.html",
        query=query,
        runs=[run for run in site.index.runs if run.files],
        a=a,
        b=b,
        pairs=_sorted(scored, query.sort)[(query.page - 1) * _PAGE : query.page * _PAGE],
        pages=max(1, -(-len(scored) // _PAGE)),
        total=len(scored),
        failed=len(pairs) - len(scored),
        verdict=_verdict(scored),
        causes=_causes(site, a, b, _sorted(scored, "task")) if a and b and scored else [],
        known=[known_distances(site, side) for side in (a, b) if side],
        measured=measured(site, [side for side in (a, b) if side]),
        sorts=SORTS,
        evaluation=_shared_evaluation(site, [side for side in (a, b) if side]),
    )


def open_side(site: Site, slug: str, file: str = "") -> Side | None:
    """Return a run with the results in a file, by default its last evaluation; None without a run.

    Raises:
        NotFound: if there is no such run or file.
        UsageError: if the run has no episodes.
    """
    if not slug:
        return None
    run = site.index.run(slug)
    metrics = site.index.run_metrics().get(slug)
    if metrics is None:
        raise UsageError(f"{run.name} has no episodes to compare (yet).")
    chosen = site.index.file(Address(slug, file or metrics.source or run.files[0].slug, 0))
    return Side(run, chosen, site.index.tasks(slug, chosen.slug), read_usage(run))


def _shared_evaluation(site: Site, sides: Sequence[Side]) -> dict[str, str]:
    """Return the choice of evaluations that the two files have in common, unless both are the default."""
    metrics = site.index.run_metrics()
    if all(side.file.slug == metrics[side.run.slug].source for side in sides):
        return {}
    return EvaluationChoice.shared(side.file for side in sides).values()


def measured(site: Site, sides: Sequence[Side]) -> bool:
    """Return whether causes that need the expert's distances can be compared, because all runs have them."""
    return all_measured((_failed(site, side), read_distances(side.file.path)) for side in sides)


def known_distances(site: Site, side: Side) -> Literal["all", "some", "none"]:
    """Return of how many of a run's unsuccessful episodes the expert's distances are known."""
    failed, distances = _failed(site, side), read_distances(side.file.path)
    known = sum(bool(distances.get(key)) for key in failed)
    return "all" if known == len(failed) else "some" if known else "none"


def _failed(site: Site, side: Side) -> list[EpisodeKey]:
    return [failure.key for failure in site.index.failures(side.run.slug, side.file.slug)]


def _sorted(pairs: Sequence[Pair], sort: str) -> list[Pair]:
    by_task = sorted(pairs, key=lambda pair: (pair.a.env, pair.a.task))
    if sort == "task":
        return by_task
    if sort == "apart":
        return sorted(by_task, key=lambda pair: -abs(pair.gain))
    return sorted(by_task, key=lambda pair: pair.gain if sort == "-difference" else -pair.gain)


def _causes(site: Site, a: Side, b: Side, pairs: Sequence[Pair]) -> list[CauseRow]:
    """Compare the shares of attempts that failed for each cause, task by task."""
    oracle = measured(site, (a, b))
    first = cause_shares(site, a, [pair.a for pair in pairs], oracle=oracle)
    second = cause_shares(site, b, [pair.b for pair in pairs], oracle=oracle)
    found = compare_causes(first, second, [pair.a.cluster_key for pair in pairs])
    return [CauseRow(kind, difference) for kind, difference in found.items()]


def cause_counts(site: Site, side: Side, *, oracle: bool) -> Counter[tuple[tuple[str, str], str]]:
    """Count a run's unsuccessful episodes by task, as environment and id, and by cause.

    Args:
        site: The site.
        side: The run.
        oracle: Whether to tell causes that need the expert's distances from budgets.
    """
    found = site.index.failures(side.run.slug, side.file.slug)
    kinds = (each.cause if oracle else without_oracle(each.cause, each.stop) for each in found)
    return Counter((each.key[:2], kind) for each, kind in zip(found, kinds, strict=True))


def cause_shares(site: Site, side: Side, tasks: Sequence[TaskMetrics], *, oracle: bool) -> dict[str, list[float]]:
    """Return for each cause the share of attempts at each task that failed for it; of tasks with an attempt that did
    not fail. See `cause_counts`.
    """
    counts = cause_counts(site, side, oracle=oracle)
    sizes = [((task.env, task.task), task.attempts - task.failed) for task in tasks]
    return {kind: [counts[task, kind] / size for task, size in sizes] for kind in KINDS}


def _verdict(pairs: Sequence[Pair]) -> Verdict | None:
    if not pairs:
        return None
    first, second = [pair.a.success or 0.0 for pair in pairs], [pair.b.success or 0.0 for pair in pairs]
    clusters = [pair.a.cluster_key for pair in pairs]
    result = difference(first, second, clusters)
    gains = [b - a for a, b in zip(first, second, strict=True)]
    return Verdict(
        share(first, clusters),
        share(second, clusters),
        result.difference,
        math.nan if len(gains) < 2 else result.p,
        sum(gain > 0 for gain in gains),
        sum(gain < 0 for gain in gains),
    )
