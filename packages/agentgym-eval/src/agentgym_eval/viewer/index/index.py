"""The index: what is in the episodes below a folder, in an SQLite file that can be thrown away at any time.

Files are read on from where they were read to, so runs that still play are followed; half a line waits until it is
whole, and a file that was replaced or cut is read anew. Episodes stay where they are: the index holds their figures,
their place in the file, and the words of their observations and replies.
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
from agentgym_eval.util.errors import UsageError, did_you_mean
from agentgym_eval.viewer.index.filters import Listing
from agentgym_eval.viewer.index.indexer import SCHEMA, Filler
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.metrics import (
    FileFigures,
    Group,
    RunFigures,
    TaskFigures,
    file_figures,
    grouped,
    players,
    run_figures,
    sharing,
    task_figures,
)
from agentgym_eval.viewer.index.queries import Filters, Row, facets, listing, make_row, only
from agentgym_eval.viewer.index.runs import EpisodeFile, Run, discover

_Answer = TypeVar("_Answer")


class NotFound(LookupError):
    """There is nothing of this name; the message says so in a sentence."""


class Index:
    """What is below `root`, searchable. Any thread may ask; `refresh` is one thread's at a time."""

    def __init__(self, root: Path, database: Path) -> None:
        """Open the index of `root` in the file `database`, which is made when it isn't there.

        Raises:
            UsageError: when `root` doesn't exist.
        """
        if not root.exists():
            raise UsageError(f"{root} doesn't exist; name a folder with runs, such as runs.")
        self.root = root
        self._database = database
        self._runs: dict[str, Run] = {}
        self._generation = 0
        self._answers: dict[str, tuple[str, Any]] = {}
        self._refreshing = threading.Lock()
        self._watched = threading.Lock()
        with self._connection() as database_:
            database_.executescript(SCHEMA)
        self._watch = sqlite3.connect(self._database, check_same_thread=False)
        self.complete = False
        """Whether everything that was there at the last look is in."""
        self.trouble = ""
        """Why the folder can't be followed any further; empty while it can."""

    def close(self) -> None:
        """Let go of the file."""
        self._watch.close()

    def refresh(self, stop: threading.Event | None = None) -> float:
        """Look at the folder again and take in what is new; `stop` ends it early.

        Returns:
            The seconds it took to look, without those of reading what is new.
        """
        with self._refreshing:
            began = time.monotonic()
            runs = {run.slug: run for run in discover(self.root)}
            looked = time.monotonic() - began
            if runs != self._runs:
                self._runs, self._generation = runs, self._generation + 1
            with self._connection() as database:
                filler = Filler(database)
                filler.forget_others({str(file.path) for run in runs.values() for file in run.files})
                for run in sorted(runs.values(), key=lambda run: -run.changed):  # what is being watched comes first
                    for file in run.files:
                        if stop and stop.is_set():
                            return looked
                        filler.take_in(run.slug, file)
            self.complete = True
            return looked

    @property
    def version(self) -> str:
        """Another text whenever anything has changed."""
        with self._watched:
            (data,) = self._watch.execute("PRAGMA data_version").fetchone()
        return f"{self._generation}.{data}.{int(self.complete)}"

    @property
    def runs(self) -> list[Run]:
        """The runs, by name."""
        return list(self._runs.values())

    @property
    def folder(self) -> str:
        """What is viewed, as people call it: `root` as it was named, or its own name where that was `.` or the like."""
        return (
            str(self.root) if self.root.name not in ("", "..") else self.root.resolve().name or str(self.root.resolve())
        )

    def sharing(self, run: str) -> list[Run]:
        """The other runs whose `source` has a task of that of this one: what is compared unless files are chosen."""
        files = {slug: each.source or self._runs[slug].files[0].slug for slug, each in self.figures().items()}
        if run not in files:
            return []
        found = self._remembered(f"sharing {run}", lambda database: sharing(database, run, files[run]))
        return [each for each in self.runs if each.slug != run and (each.slug, files.get(each.slug)) in found]

    def run(self, slug: str) -> Run:
        """A run by its slug. Raises `NotFound`."""
        if slug not in self._runs:
            raise NotFound(f"There is no run {slug} below {self.root}.{did_you_mean(slug, list(self._runs))}")
        return self._runs[slug]

    def name(self, slug: str) -> str:
        """A run's name; its slug where it has just gone."""
        run = self._runs.get(slug)
        return run.name if run else slug

    def file(self, address: Address) -> EpisodeFile:
        """The file that an episode lies in. Raises `NotFound`."""
        try:
            return self.run(address.run).file(address.file)
        except KeyError as error:
            raise NotFound(str(error.args[0])) from error

    def list(self, filters: Filters) -> Listing[Row]:
        """The episodes under `filters`, a page of them."""
        with self._connection() as database:
            return listing(database, filters)

    def facets(self, run: str = "") -> dict[str, list[tuple[str, int]]]:
        """The values of `queries.FACETS` among the episodes of a run, or of all, each with their number."""
        return self._remembered(f"facets {run}", lambda database: facets(database, run))

    def file_figures(self) -> list[FileFigures]:
        """Figures of every file with episodes."""
        return self._remembered("files", file_figures)

    def tasks(self, run: str, file: str) -> dict[tuple[str, str], TaskFigures]:
        """Figures of every task in a file, by world and task."""
        found = self._remembered(f"tasks {run} {file}", lambda database: task_figures(database, run, file))
        return {(each.env, each.task): each for each in found}

    def success(self, run: str, file: str) -> Interval:
        """Success in a file, as a mean over tasks with its interval."""
        known = [(e.success, e.cluster_key) for e in self.tasks(run, file).values() if e.success is not None]
        values, clusters = [value for value, _ in known], [cluster for _, cluster in known]
        return self._remembered(f"success {run} {file}", lambda _: share(values, clusters))

    def groups(self, run: str, file: str) -> dict[str, list[Group]]:
        """Figures by what tasks fall into: `env`, `category`, `difficulty`."""
        tasks = list(self.tasks(run, file).values())
        return self._remembered(
            f"groups {run} {file}", lambda _: {by: grouped(tasks, by) for by in ("env", "category", "difficulty")}
        )

    def figures(self) -> dict[str, RunFigures]:
        """Figures of the runs with episodes, by slug."""
        files = self.file_figures()
        return self._remembered("runs", lambda database: run_figures(self.runs, files, players(database)))

    def row(self, address: Address) -> Row:
        """The figures of an episode. Raises `NotFound`."""
        with self._connection() as database:
            found = only(database, address)
        if found is None:
            raise NotFound(f"{address.run}/{address.file} has no episode {address.number}.")
        return make_row(found)

    def line(self, address: Address) -> str:
        """The episode's own line of JSON, read from its file. Raises `NotFound`."""
        with self._connection() as database:
            return self._line(database, address)

    def lines(self, addresses: Iterable[Address]) -> dict[Address, str]:
        """The lines of many episodes; those whose file is just being written anew are left out."""
        found: dict[Address, str] = {}
        with self._connection() as database:
            for address in addresses:
                with suppress(NotFound, OSError, ValueError):
                    found[address] = self._line(database, address)
        return found

    def episode(self, address: Address) -> Episode:
        """The episode, read from its file.

        Raises:
            NotFound: when there is none, or its line is no longer one: the file is just being written anew.
        """
        try:
            return Episode.from_json(self.line(address))
        except (ValueError, TypeError, KeyError) as error:
            raise NotFound(f"{address.run}/{address.file}, episode {address.number} can't be read: {error}") from error

    def siblings(self, address: Address) -> list[Row]:
        """The attempts at the same task in the same file, this one among them, in the file's order."""
        row = self.row(address)
        same = Filters(run=address.run, file=address.file, env=row.env, task=row.task, sort="number", size=1000)
        return self.list(same).rows

    def _line(self, database: sqlite3.Connection, address: Address) -> str:
        path = self.file(address).path
        found = only(database, address)
        if found is None:
            raise NotFound(f"{address.run}/{address.file} has no episode {address.number}.")
        with path.open("rb") as file:
            file.seek(found["start"])
            return file.read(found["length"]).decode("utf-8-sig").strip()

    def _remembered(self, name: str, ask: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        """An answer that takes long to find and is the same until something changes."""
        version = self.version
        if name not in self._answers or self._answers[name][0] != version:
            with self._connection() as database:
                self._answers[name] = version, ask(database)
        return self._answers[name][1]

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._database, timeout=60, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            yield database
