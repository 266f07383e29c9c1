"""The index: an SQLite file with the episodes below a folder, which can be deleted at any time.

Files are read incrementally, so runs in progress are followed; an incomplete line waits until it is complete, and a
file that was replaced or truncated is read again. The index stores the metrics of each episode, its position in the
file, and the words of its observations and replies; the episode itself stays in its file.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from agentgym_envs import Episode

from agentgym_eval.metrics.intervals import Interval, share
from agentgym_eval.storage.annotations import Annotation, add_annotation
from agentgym_eval.util.errors import UsageError, did_you_mean
from agentgym_eval.viewer.index import annotations
from agentgym_eval.viewer.index.discovery import discover
from agentgym_eval.viewer.index.filters import Listing
from agentgym_eval.viewer.index.indexer import SCHEMA, Indexer
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.metrics import (
    Failure,
    FileMetrics,
    GroupMetrics,
    RunMetrics,
    TaskMetrics,
    causes_by_file,
    envs_and_policies,
    failures,
    file_metrics,
    files_with_common_tasks,
    group_metrics,
    run_metrics,
    task_metrics,
)
from agentgym_eval.viewer.index.neighbours import NeighbourFinder, Neighbours
from agentgym_eval.viewer.index.queries import Filters, Row, facets, find_row, listing, make_row
from agentgym_eval.viewer.index.runs import EpisodeFile, Run, path_key, printable

_Result = TypeVar("_Result")


class NotFound(LookupError):
    """Something with the given name doesn't exist; the message is a sentence for the user."""


class Index:
    """The searchable content of `root`. Queries are thread-safe; calls of `refresh` are serialized."""

    def __init__(self, root: Path, database: Path) -> None:
        """Open the index of `root`, which may appear later, in the file `database`, which is created if needed.

        Raises:
            UsageError: if `root` is a file without episodes.
        """
        if root.is_file() and root.stat().st_size and not discover(root):
            raise UsageError(f"{root} holds no episodes; name a file of episodes, or a folder with runs, such as runs.")
        self.root = root
        self._database = database
        self._runs: dict[str, Run] = {}
        self._generation = 0
        self._cache: dict[str, tuple[str, Any]] = {}
        self._neighbours = NeighbourFinder()
        self._refresh_lock = threading.Lock()
        self._watch_lock = threading.Lock()
        with self._connection() as connection:
            connection.executescript(SCHEMA + annotations.SCHEMA)
        self._watch = sqlite3.connect(self._database, check_same_thread=False)
        self.complete = False
        """Whether a refresh has indexed everything it found."""
        self.refresh_error = ""
        """Why the last refresh failed; empty if it succeeded."""

    def close(self) -> None:
        """Close the database."""
        self._watch.close()

    def refresh(self, stop: threading.Event | None = None) -> float:
        """Scan the folder and index what is new; setting `stop` ends the refresh early.

        Returns:
            The seconds that the scan took, without the time for indexing.
        """
        with self._refresh_lock:
            began = time.monotonic()
            runs = {run.slug: run for run in discover(self.root)}
            scan_seconds = time.monotonic() - began
            if runs != self._runs:
                self._runs, self._generation = runs, self._generation + 1
            with self._connection() as database:
                indexer = Indexer(database)
                paths = [file.path for run in runs.values() for file in run.files]
                indexer.remove_others(set(map(path_key, paths)))
                annotations.update_annotations(database, paths)
                for run in sorted(runs.values(), key=lambda run: -run.changed):  # runs in progress first
                    for file in run.files:
                        if stop and stop.is_set():
                            return scan_seconds
                        indexer.index_file(run.slug, file)
            self.complete = True
            return scan_seconds

    @property
    def version(self) -> str:
        """A string that changes whenever the index changes."""
        with self._watch_lock:
            (data,) = self._watch.execute("PRAGMA data_version").fetchone()
        return f"{self._generation}.{data}.{int(self.complete)}.{int(bool(self.refresh_error))}"

    @property
    def runs(self) -> list[Run]:
        """The runs, by name."""
        return list(self._runs.values())

    @property
    def tags(self) -> list[str]:
        """The tags of all runs, in alphabetical order."""
        return sorted({tag for run in self.runs for tag in run.tags})

    @property
    def folder(self) -> str:
        """The display name of the folder: `root` as given, or its resolved name if that is `.` or `..`."""
        named = self.root if self.root.name not in ("", "..") else self.root.resolve()
        return printable(str(self.root) if named is self.root else named.name or str(named))

    def runs_with_common_tasks(self, run: str) -> list[Run]:
        """Return the other runs whose default file for comparisons shares a task with that of `run`."""
        files = {slug: each.source or self._runs[slug].files[0].slug for slug, each in self.run_metrics().items()}
        if run not in files:
            return []
        found = self._cached(f"common {run}", lambda database: files_with_common_tasks(database, run, files[run]))
        return [each for each in self.runs if each.slug != run and (each.slug, files.get(each.slug)) in found]

    def run(self, slug: str) -> Run:
        """Return a run by its slug. Raises `NotFound`."""
        if slug not in self._runs:
            raise NotFound(f"There is no run {slug} below {self.root}.{did_you_mean(slug, list(self._runs))}")
        return self._runs[slug]

    def put(self, run: Run) -> None:
        """Show a changed run at once; the next refresh finds it anyway."""
        self._runs, self._generation = {**self._runs, run.slug: run}, self._generation + 1

    def forget(self, slug: str) -> None:
        """Stop showing a run at once; the next refresh finds that it is gone."""
        runs = {name: run for name, run in self._runs.items() if name != slug}
        self._runs, self._generation = runs, self._generation + 1

    def find(self, slug: str) -> Run:
        """Return a run by its slug; if it has just been deleted, one that is named by the slug and has nothing else."""
        return self._runs.get(slug) or Run(slug, slug, self.root / slug, "episodes")

    def file(self, address: Address) -> EpisodeFile:
        """Return the file that contains an episode. Raises `NotFound`."""
        try:
            return self.run(address.run).file(address.file)
        except KeyError as error:
            raise NotFound(str(error.args[0])) from error

    def list(self, filters: Filters) -> Listing[Row]:
        """Return one page of the episodes that match `filters`."""
        with self._connection() as database:
            return listing(database, filters)

    def facets(self, run: str = "") -> dict[str, list[tuple[str, int]]]:
        """Return the values of `queries.FACETS` among the episodes of a run, or of all, with their counts."""
        return self._cached(f"facets {run}", lambda database: facets(database, run))

    def labels(self, run: str = "") -> dict[str, int]:
        """Return the most frequent labels of the episodes of a run, or of all, with their counts."""
        return self._cached(f"labels {run}", lambda database: dict(annotations.used_labels(database, run)))

    @property
    def annotated(self) -> bool:
        """Whether any episode has an annotation."""
        return self._cached("annotated", annotations.any_annotation)

    def annotate(self, address: Address, annotation: Annotation) -> None:
        """Save an annotation next to the file of its episode.

        Raises:
            NotFound: if the episode doesn't exist.
            OSError: if the folder can't be written to.
        """
        path, row = self.file(address).path, self.row(address)
        if not path.exists():
            raise NotFound(f"{address.run}/{address.file} was deleted, so its episodes can't be annotated.")
        add_annotation(path, address.number, (row.env, row.task, row.sample), annotation)
        with self._connection() as database:
            annotations.update_file(database, path)

    def file_metrics(self) -> list[FileMetrics]:
        """Return the metrics of every file with episodes."""
        return self._cached("files", file_metrics)

    def tasks(self, run: str, file: str) -> dict[tuple[str, str], TaskMetrics]:
        """Return the metrics of every task in a file, by environment and task."""
        tasks = self._cached(f"tasks {run} {file}", lambda database: task_metrics(database, run, file))
        return {(task.env, task.task): task for task in tasks}

    def causes(self, run: str) -> dict[str, dict[str, int]]:
        """Return the number of a run's episodes by cause of failure, for each file that has any, by slug."""
        return self._cached(f"causes {run}", lambda database: causes_by_file(database, run))

    def failures(self, run: str, file: str) -> list[Failure]:
        """Return the unsuccessful episodes of a file with their causes, without those that broke."""
        return self._cached(f"failures {run} {file}", lambda database: failures(database, run, file))

    def success(self, run: str, file: str) -> Interval:
        """Return the mean success over the tasks of a file, with its interval."""
        known = [(e.success, e.cluster_key) for e in self.tasks(run, file).values() if e.success is not None]
        values, clusters = [value for value, _ in known], [cluster for _, cluster in known]
        return self._cached(f"success {run} {file}", lambda _: share(values, clusters))

    def groups(self, run: str, file: str) -> dict[str, list[GroupMetrics]]:
        """Return the metrics of a file's tasks grouped by `env`, `category` and `difficulty`."""
        tasks = list(self.tasks(run, file).values())
        return self._cached(
            f"groups {run} {file}", lambda _: {by: group_metrics(tasks, by) for by in ("env", "category", "difficulty")}
        )

    def run_metrics(self) -> dict[str, RunMetrics]:
        """Return the metrics of the runs with episodes, by slug."""
        files = self.file_metrics()
        return self._cached("runs", lambda database: run_metrics(self.runs, files, envs_and_policies(database)))

    def episodes_of(self, run: str) -> int:
        """Return the number of a run's episodes, by its slug."""
        metrics = self.run_metrics().get(run)
        return metrics.episodes if metrics else 0

    def row(self, address: Address) -> Row:
        """Return the row of an episode. Raises `NotFound`."""
        with self._connection() as database:
            record = find_row(database, address)
        if record is None:
            raise NotFound(f"{address.run}/{address.file} has no episode {address.number}.")
        return make_row(record)

    def line(self, address: Address) -> str:
        """Read the episode's line of JSON from its file. Raises `NotFound`."""
        with self._connection() as database:
            return self._line(database, address)

    def lines(self, addresses: Iterable[Address]) -> dict[Address, str]:
        """Read the lines of many episodes, without those whose file is being rewritten."""
        lines: dict[Address, str] = {}
        with self._connection() as database:
            for address in addresses:
                with suppress(NotFound, OSError, ValueError):
                    lines[address] = self._line(database, address)
        return lines

    def episode(self, address: Address) -> Episode:
        """Read the episode from its file.

        Raises:
            NotFound: if it doesn't exist, or its line is invalid because the file is being rewritten or deleted.
        """
        try:
            return Episode.from_json(self.line(address))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise NotFound(f"{address.run}/{address.file}, episode {address.number} can't be read: {error}") from error

    def neighbours(self, address: Address, filters: Filters) -> Neighbours:
        """Return the episodes before and after an episode in the list of `filters`. Raises `NotFound`."""
        version = self.version
        with self._connection() as database:
            neighbours = self._neighbours.find(database, version, filters, address)
        if neighbours is None:
            raise NotFound(f"{address.run}/{address.file} has no episode {address.number}.")
        return neighbours

    def siblings(self, address: Address) -> list[Row]:
        """Return all attempts at the same task in the same file, including this one, in file order."""
        row = self.row(address)
        same = Filters(run=address.run, file=address.file, env=row.env, task=row.task, sort="number", size=1000)
        return self.list(same).rows

    def _line(self, database: sqlite3.Connection, address: Address) -> str:
        path = self.file(address).path
        record = find_row(database, address)
        if record is None:
            raise NotFound(f"{address.run}/{address.file} has no episode {address.number}.")
        with path.open("rb") as file:
            file.seek(record["start"])
            return file.read(record["length"]).decode("utf-8-sig").strip()

    def _cached(self, key: str, query: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run a slow query, or return its cached result if the index hasn't changed."""
        version = self.version
        if key not in self._cache or self._cache[key][0] != version:
            with self._connection() as database:
                self._cache[key] = version, query(database)
        return self._cache[key][1]

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._database, timeout=60, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            yield database
