"""Metrics over the indexed episodes, defined as in reports: means over tasks, without failed attempts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentgym_eval.metrics.failure_causes import EpisodeKey, Kind
from agentgym_eval.metrics.intervals import Interval, share
from agentgym_eval.runs.comparisons import finality
from agentgym_eval.viewer.index.runs import EpisodeFile, Run

_MEANS = ", ".join(
    f"{total} / nullif(t.attempts - t.failed, 0) AS {mean}"
    for total, mean in (("t.successes", "success"), ("t.scores", "score"), ("t.turns", "turns"))
)
"""SQL for a task's means over the attempts that did not fail; NULL if all failed."""


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """Metrics of the episodes of one file."""

    run: str
    file: str
    episodes: int
    failed: int
    damaged: int
    """Lines that are not valid episodes."""
    repeated: int
    """Lines that don't count, because a later one has the same policy, task and sample."""
    tasks: int
    success: float | None
    """None if every episode failed; also `score` and `turns`."""
    score: float | None
    turns: float | None
    selection_success: float | None
    """As `success`, but a failed episode is no success: training selects its best checkpoint by it."""


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Metrics of a run, for the list of runs."""

    episodes: int
    damaged: int
    repeated: int
    envs: tuple[str, ...]
    policies: tuple[str, ...]
    success: float | None
    """From the last evaluation if there is one, preferably on test tasks; otherwise over all episodes."""
    source: str
    """Slug of the file that `success` is from; empty if it is over all files."""
    split: str = ""
    """The split that `success` is on, if it is from an evaluation during training."""


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """Metrics of the attempts at one task in one file."""

    env: str
    task: str
    category: str
    difficulty: int
    cluster: str
    attempts: int
    failed: int
    success: float | None
    """Share of attempts; None if every attempt failed; also `score` and `turns`."""
    score: float | None
    turns: float | None
    first: int
    """The number of the first attempt in the file."""

    @property
    def cluster_key(self) -> tuple[str, str, str]:
        """A key that is equal exactly for the tasks of one cluster; a task without a cluster is its own."""
        return self.env, self.cluster, "" if self.cluster else self.task


def task_metrics(database: sqlite3.Connection, run: str, file: str) -> list[TaskMetrics]:
    """Return the metrics of every task in a file."""
    rows = database.execute(
        f"SELECT t.env, t.task, t.category, t.difficulty, t.cluster, t.attempts, t.failed, {_MEANS}, t.first "
        "FROM tasks t JOIN files f ON f.id = t.file WHERE f.run = ? AND f.slug = ? ORDER BY t.first",
        (run, file),
    )
    return [TaskMetrics(*row) for row in rows]


def files_with_common_tasks(database: sqlite3.Connection, run: str, file: str) -> set[tuple[str, str]]:
    """Return the files, by run and slug, that share a task with the given file."""
    rows = database.execute(
        "SELECT DISTINCT f.run, f.slug FROM tasks t JOIN files f ON f.id = t.file WHERE (t.task, t.env) IN "
        "(SELECT o.task, o.env FROM tasks o JOIN files g ON g.id = o.file WHERE g.run = ? AND g.slug = ?)",
        (run, file),
    )
    return {(row[0], row[1]) for row in rows}


def causes_by_file(database: sqlite3.Connection, run: str) -> dict[str, dict[str, int]]:
    """Return the number of a run's episodes by cause of failure, for each file that has any, by slug."""
    rows = database.execute(
        "SELECT f.slug, c.value, c.episodes FROM counts c JOIN files f ON f.id = c.file "
        "WHERE f.run = ? AND c.facet = 'cause'",
        (run,),
    )
    found: dict[str, dict[str, int]] = {}
    for file, kind, episodes in rows:
        found.setdefault(file, {})[kind] = episodes
    return found


@dataclass(frozen=True, slots=True)
class Failure:
    """An unsuccessful episode, and the kind of its cause."""

    key: EpisodeKey
    cause: Kind
    stop: str


def failures(database: sqlite3.Connection, run: str, file: str) -> list[Failure]:
    """Return the unsuccessful episodes of a file, without those that broke."""
    rows = database.execute(
        "SELECT e.env, e.task, e.sample, e.cause, e.stop FROM episodes e JOIN files f ON f.id = e.file "
        "WHERE f.run = ? AND f.slug = ? AND e.cause IS NOT NULL",
        (run, file),
    )
    return [Failure((env, task, sample), cause, stop) for env, task, sample, cause, stop in rows]


@dataclass(frozen=True, slots=True)
class GroupMetrics:
    """Metrics of tasks with a common property, over those with an attempt that did not fail."""

    value: str
    success: Interval
    score: float | None
    turns: float | None
    episodes: int


def group_metrics(tasks: Sequence[TaskMetrics], by: str) -> list[GroupMetrics]:
    """Group the tasks by one of their fields, sorted by its value."""
    groups: dict[str | int, list[TaskMetrics]] = {}
    for task in tasks:
        groups.setdefault(getattr(task, by), []).append(task)
    return [_group(str(value), groups[value]) for value in sorted(groups)]


def _group(value: str, tasks: Sequence[TaskMetrics]) -> GroupMetrics:
    known = [task for task in tasks if task.success is not None]
    return GroupMetrics(
        value,
        share([task.success or 0.0 for task in known], [task.cluster_key for task in known]),
        fmean(task.score or 0.0 for task in known) if known else None,
        fmean(task.turns or 0.0 for task in known) if known else None,
        sum(task.attempts for task in tasks),
    )


def file_metrics(database: sqlite3.Connection) -> list[FileMetrics]:
    """Return the metrics of every non-empty file, even if all its lines are damaged."""
    rows = database.execute(
        f"WITH known AS (SELECT t.file, t.attempts, t.failed, {_MEANS}, t.successes / t.attempts AS selected "
        "FROM tasks t) "
        "SELECT f.run, f.slug, coalesce(sum(k.attempts), 0), coalesce(sum(k.failed), 0), f.damaged, f.repeated, "
        "count(k.file), "
        "avg(k.success), avg(k.score), avg(k.turns), avg(k.selected) "
        "FROM files f LEFT JOIN known k ON f.id = k.file WHERE f.lines > 0 GROUP BY f.id"
    )
    return [FileMetrics(*row) for row in rows]


def envs_and_policies(database: sqlite3.Connection) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the environments and the policies of each run's episodes, by run."""
    rows = database.execute(
        "SELECT DISTINCT f.run, c.facet, c.value FROM counts c JOIN files f ON f.id = c.file "
        "WHERE c.facet IN ('env', 'policy') ORDER BY 1, 2, 3"
    )
    names: dict[str, dict[str, list[str]]] = {}
    for run, facet, value in rows:
        names.setdefault(run, {}).setdefault(facet, []).append(value)
    return {run: (tuple(facets["env"]), tuple(facets["policy"])) for run, facets in names.items()}


def run_metrics(
    runs: Iterable[Run],
    files: Iterable[FileMetrics],
    names: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
) -> dict[str, RunMetrics]:
    """Return the metrics of each run by slug, without runs whose files are all empty.

    Args:
        runs: The runs.
        files: The metrics of all files.
        names: Environments and policies by run, see `envs_and_policies`.
    """
    by_run: dict[str, dict[str, FileMetrics]] = {}
    for file in files:
        by_run.setdefault(file.run, {})[file.file] = file
    none: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    nonempty = (run for run in runs if run.slug in by_run)
    return {run.slug: _run(run, by_run[run.slug], names.get(run.slug, none)) for run in nonempty}


def last_of(evaluations: Iterable[EpisodeFile]) -> EpisodeFile | None:
    """Return the evaluation that a training run ended with, among these; None if there are none."""
    return max(evaluations, key=lambda file: finality(file.split, file.step or 0, file.decoding), default=None)


def _run(run: Run, files: dict[str, FileMetrics], names: tuple[tuple[str, ...], tuple[str, ...]]) -> RunMetrics:
    played = {slug for slug, metrics in files.items() if metrics.episodes}
    evaluations = [file for file in run.files if file.part == "evaluation" and file.slug in played]
    last = last_of(evaluations)
    source = files[last.slug] if last else next(iter(files.values())) if len(files) == 1 else None
    tasks = sum(file.tasks for file in files.values() if file.success is not None)
    mean = sum((file.success or 0) * file.tasks for file in files.values()) / tasks if tasks else None
    return RunMetrics(
        episodes=sum(file.episodes for file in files.values()),
        damaged=sum(file.damaged for file in files.values()),
        repeated=sum(file.repeated for file in files.values()),
        envs=names[0],
        policies=names[1],
        success=source.success if source else mean,
        source=source.file if source else "",
        split=last.split if last else "",
    )
