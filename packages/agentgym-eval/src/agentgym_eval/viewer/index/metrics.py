"""Figures over what is in the index, as reports count: means over tasks, and failed ones in no mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentgym_eval.metrics.intervals import Interval, share
from agentgym_eval.viewer.index.runs import EpisodeFile, Run

_MEANS = ", ".join(
    f"{total} / nullif(t.attempts - t.failed, 0) AS {mean}"
    for total, mean in (("t.successes", "success"), ("t.scores", "score"), ("t.turns", "turns"))
)
"""A task's means over the attempts that did not fail; NULL where there is none."""


@dataclass(frozen=True, slots=True)
class FileFigures:
    """What the episodes of one file come to."""

    run: str
    file: str
    episodes: int
    failed: int
    damaged: int
    """Lines that are no episodes."""
    tasks: int
    success: float | None
    """None where every episode failed, and so are `score` and `turns`."""
    score: float | None
    turns: float | None


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a run comes to, for the list of runs."""

    episodes: int
    damaged: int
    worlds: tuple[str, ...]
    policies: tuple[str, ...]
    success: float | None
    """Of the last evaluation where there is one, that on test tasks before others; else of all that was played."""
    source: str
    """Slug of the file that `success` is of; empty where that is all of them."""
    split: str = ""
    """Whose tasks `success` is of, where it is of an evaluation in training."""


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """What the attempts at one task in one file come to."""

    env: str
    task: str
    category: str
    difficulty: int
    cluster: str
    attempts: int
    failed: int
    success: float | None
    """Share of attempts; None where every one failed, and so are `score` and `turns`."""
    score: float | None
    turns: float | None
    first: int
    """The number of the first attempt in the file."""

    @property
    def cluster_key(self) -> tuple[str, str, str]:
        """What the tasks of a cluster have in common, and no others."""
        return self.env, self.cluster, "" if self.cluster else self.task


def task_figures(database: sqlite3.Connection, run: str, file: str) -> list[TaskFigures]:
    """Of every task in a file."""
    found = database.execute(
        f"SELECT t.env, t.task, t.category, t.difficulty, t.cluster, t.attempts, t.failed, {_MEANS}, t.first "
        "FROM tasks t JOIN files f ON f.id = t.file WHERE f.run = ? AND f.slug = ? ORDER BY t.first",
        (run, file),
    )
    return [TaskFigures(*row) for row in found]


def sharing(database: sqlite3.Connection, run: str, file: str) -> set[tuple[str, str]]:
    """The files, by run and slug, that have a task of that file."""
    found = database.execute(
        "SELECT DISTINCT f.run, f.slug FROM tasks t JOIN files f ON f.id = t.file WHERE (t.task, t.env) IN "
        "(SELECT o.task, o.env FROM tasks o JOIN files g ON g.id = o.file WHERE g.run = ? AND g.slug = ?)",
        (run, file),
    )
    return {(row[0], row[1]) for row in found}


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks that have something in common, over those with an attempt that did not fail."""

    value: str
    success: Interval
    score: float | None
    turns: float | None
    episodes: int


def grouped(tasks: Sequence[TaskFigures], by: str) -> list[Group]:
    """The tasks by the value of one of their fields, in its order."""
    groups: dict[str | int, list[TaskFigures]] = {}
    for task in tasks:
        groups.setdefault(getattr(task, by), []).append(task)
    return [_group(str(value), groups[value]) for value in sorted(groups)]


def _group(value: str, tasks: Sequence[TaskFigures]) -> Group:
    known = [task for task in tasks if task.success is not None]
    return Group(
        value,
        share([task.success or 0.0 for task in known], [task.cluster_key for task in known]),
        fmean(task.score or 0.0 for task in known) if known else None,
        fmean(task.turns or 0.0 for task in known) if known else None,
        sum(task.attempts for task in tasks),
    )


def file_figures(database: sqlite3.Connection) -> list[FileFigures]:
    """Of every file with lines, be they all damaged."""
    found = database.execute(
        f"WITH known AS (SELECT t.file, t.attempts, t.failed, {_MEANS} FROM tasks t) "
        "SELECT f.run, f.slug, coalesce(sum(k.attempts), 0), coalesce(sum(k.failed), 0), f.damaged, count(k.file), "
        "avg(k.success), avg(k.score), avg(k.turns) "
        "FROM files f LEFT JOIN known k ON f.id = k.file WHERE f.lines > 0 GROUP BY f.id"
    )
    return [FileFigures(*row) for row in found]


def players(database: sqlite3.Connection) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """By run: the worlds and the policies of its episodes."""
    found = database.execute(
        "SELECT DISTINCT f.run, c.facet, c.value FROM counts c JOIN files f ON f.id = c.file "
        "WHERE c.facet IN ('env', 'policy') ORDER BY 1, 2, 3"
    )
    names: dict[str, dict[str, list[str]]] = {}
    for run, facet, value in found:
        names.setdefault(run, {}).setdefault(facet, []).append(value)
    return {run: (tuple(each["env"]), tuple(each["policy"])) for run, each in names.items()}


def run_figures(
    runs: Iterable[Run],
    files: Iterable[FileFigures],
    played_by: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
) -> dict[str, RunFigures]:
    """By the run's slug; runs whose files have no line have none."""
    by_run: dict[str, dict[str, FileFigures]] = {}
    for each in files:
        by_run.setdefault(each.run, {})[each.file] = each
    nobody: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    known = (run for run in runs if run.slug in by_run)
    return {run.slug: _run(run, by_run[run.slug], played_by.get(run.slug, nobody)) for run in known}


def _by_finality(file: EpisodeFile) -> tuple[int, bool, bool]:
    """Sorts evaluations: the last step's last, of these the test, of these what was sampled."""
    return file.step or 0, file.split == "test", file.manner == "sampled"


def _run(run: Run, files: dict[str, FileFigures], by: tuple[tuple[str, ...], tuple[str, ...]]) -> RunFigures:
    played = {slug for slug, figures in files.items() if figures.episodes}
    evaluations = [file for file in run.files if file.part == "evaluation" and file.slug in played]
    last = max(evaluations, key=_by_finality, default=None)
    source = files[last.slug] if last else next(iter(files.values())) if len(files) == 1 else None
    tasks = sum(each.tasks for each in files.values() if each.success is not None)
    mean = sum((each.success or 0) * each.tasks for each in files.values()) / tasks if tasks else None
    return RunFigures(
        episodes=sum(each.episodes for each in files.values()),
        damaged=sum(each.damaged for each in files.values()),
        worlds=by[0],
        policies=by[1],
        success=source.success if source else mean,
        source=source.file if source else "",
        split=last.split if last else "",
    )
