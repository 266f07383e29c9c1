"""Two runs on the same tasks: every task that either played, with both results, the largest difference first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from agentgym_eval.metrics.comparison import difference
from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.evaluation_report import Used, read_usage
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.metrics import TaskFigures
from agentgym_eval.viewer.index.runs import EpisodeFile, Run
from agentgym_eval.viewer.pages.site import Site

_PAGE = 100
SORTS = {"difference": "B better first", "-difference": "A better first", "apart": "furthest apart", "task": "by task"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Which two, as an address has it; the slugs of runs and of their files. Empty files: the run's last evaluation."""

    a: str = ""
    b: str = ""
    a_file: str = ""
    b_file: str = ""
    sort: str = "apart"
    page: int = 1

    @classmethod
    def parse(cls, query: Mapping[str, str], chosen: Sequence[str] = ()) -> Asked:
        """What an address asks for. Raises `UsageError` for what can't be.

        Args:
            query: Of the address.
            chosen: Runs that were selected in the list of runs, at most two.
        """
        if len(chosen) > 2:
            raise UsageError(f"Two runs can be compared, not {len(chosen)}: go back and select two.")
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in query.items() if value and name in known - {"page"}}
        page = query.get("page") or "1"
        if given.get("sort", "apart") not in SORTS or not page.isdecimal() or int(page) < 1:
            raise UsageError(f"sort is one of {', '.join(SORTS)}, and page counts from 1.")
        return cls(**dict(zip("ab", chosen, strict=False)) | given, page=int(page))


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    run: Run
    file: EpisodeFile
    tasks: Mapping[tuple[str, str], TaskFigures]
    """By world and task."""
    used: Used | None
    """By the whole run."""

    def address(self, task: TaskFigures) -> Address:
        """Its first attempt at a task."""
        return Address(self.run.slug, self.file.slug, task.first)


@dataclass(frozen=True, slots=True)
class Pair:
    """A task, and what both made of it."""

    a: TaskFigures
    b: TaskFigures

    @property
    def gain(self) -> float:
        """B's success less A's, where one succeeded more often; else the difference of scores."""
        success = (self.b.success or 0.0) - (self.a.success or 0.0)
        return success or (self.b.score or 0.0) - (self.a.score or 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What sets the two apart over the tasks that both played."""

    success: Interval
    """B's less A's."""
    p: float
    """Of the paired permutation test; NaN without a task."""
    better: int
    worse: int


def compare_page(site: Site, asked: Asked) -> str:
    """The page; without two runs it asks for them. Raises `NotFound`."""
    a, b = _side(site, asked.a, asked.a_file), _side(site, asked.b, asked.b_file)
    pairs = [Pair(a.tasks[key], b.tasks[key]) for key in a.tasks.keys() & b.tasks.keys()] if a and b else []
    scored = [pair for pair in pairs if pair.a.success is not None and pair.b.success is not None]
    return site.render(
        "compare.html",
        asked=asked,
        runs=[run for run in site.index.runs if run.files],
        a=a,
        b=b,
        pairs=_sorted(scored, asked.sort)[(asked.page - 1) * _PAGE : asked.page * _PAGE],
        pages=max(1, -(-len(scored) // _PAGE)),
        total=len(scored),
        failed=len(pairs) - len(scored),
        verdict=_verdict(scored),
        sorts=SORTS,
    )


def _side(site: Site, slug: str, file: str) -> Side | None:
    if not slug:
        return None
    run = site.index.run(slug)
    figures = site.index.figures().get(slug)
    if figures is None:
        raise UsageError(f"{run.name} has no episodes to compare (yet).")
    chosen = site.index.file(Address(slug, file or figures.source or run.files[0].slug, 0))
    return Side(run, chosen, site.index.tasks(slug, chosen.slug), read_usage(run))


def _sorted(pairs: Sequence[Pair], sort: str) -> list[Pair]:
    by_task = sorted(pairs, key=lambda pair: (pair.a.env, pair.a.task))
    if sort == "task":
        return by_task
    if sort == "apart":
        return sorted(by_task, key=lambda pair: -abs(pair.gain))
    return sorted(by_task, key=lambda pair: pair.gain if sort == "-difference" else -pair.gain)


def _verdict(pairs: Sequence[Pair]) -> Verdict | None:
    if not pairs:
        return None
    gains = [(pair.b.success or 0.0) - (pair.a.success or 0.0) for pair in pairs]
    clusters = [pair.a.cluster_key for pair in pairs]
    found = difference([pair.a.success or 0.0 for pair in pairs], [pair.b.success or 0.0 for pair in pairs], clusters)
    p = math.nan if len(gains) < 2 else found.p
    return Verdict(found.difference, p, sum(g > 0 for g in gains), sum(g < 0 for g in gains))
