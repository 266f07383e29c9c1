"""The folder of a run: the settings it was begun with, where it comes from, and the episodes played so far.

An episode is one line, written and flushed when it ends, and so is each reply that was paid for, when it comes. A
killed process loses only what it was in the middle of: half a line at the end, which is cut off when the folder is
opened again. Knows nothing about worlds or policies.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Set
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentgym_envs import Episode, read_episodes
from agentgym_envs.util.files import write_whole
from agentgym_envs.util.redaction import redacted

from agentgym_eval.storage.journal import Journal
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.storage.provenance import provenance
from agentgym_eval.util.errors import RunStopped, UsageError

SCHEMA = "agentgym.run/1"
EPISODES = "episodes.jsonl"
REPLIES = "replies.jsonl"
USAGE = "usage.json"
STOPPED = "stopped.json"
"""Why the last sitting stopped before its end; removed when the run is resumed."""
_ABOUT = "run.json"
_OUTCOMES = (REPLIES, USAGE, "report.json", "report.md", "report.html", "turns.png", "turns.svg", "k.png", "k.svg")
"""What is about the episodes and goes with them."""


class Store:
    """The episodes of one run on disk, opened by one process at a time.

    Used as a context manager: entering it locks the folder, and raises `UsageError` when the folder is in use, can't be
    written, is damaged, or holds episodes that were played under other settings.
    """

    episodes: list[Episode]
    """All episodes of the run so far, those of earlier sittings first."""
    journal: Journal
    """The replies that were paid for."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        resolved: Mapping[str, Any] | None = None,
        may_differ: Set[str] = frozenset(),
        overwrite: bool = False,
    ) -> None:
        """Nothing is touched before the store is entered.

        Args:
            folder: Made when it isn't there.
            settings: What decides about the episodes, as JSON values.
            resolved: What the world filled in where the settings leave it the choice, noted when a run begins.
            may_differ: Names of settings in which the run that lies here may differ: this one extends it. They are
                written with the first thing that is kept.
            overwrite: Forget what an earlier run left here, as soon as there is an episode or a paid reply to put in
                its place.
        """
        self.folder = folder
        self._lock = FolderLock(folder)
        self.episodes = []
        self.journal = Journal(folder / REPLIES, self._replace)
        self._settings = dict(settings)
        self._resolved = {"resolved": dict(resolved)} if resolved else {}
        self._may_differ, self._extended = may_differ, dict[str, Any]()
        self._overwrite = overwrite
        self.begun = False
        """Whether this sitting has kept anything, which is when it replaces an earlier run."""
        self._playing = False

    @property
    def replaces(self) -> bool:
        """Whether an earlier run still lies here that will be replaced."""
        return self._overwrite

    def __enter__(self) -> Self:
        self._refuse_others()
        with ExitStack() as stack:
            try:
                stack.enter_context(self._lock)
                self._file = stack.enter_context(self._episodes.open("ab"))
            except OSError as error:
                raise UsageError(f"{self.folder} can't be written to ({error}); choose another --out.") from error
            self._begin()
            stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.journal.close()
            if is_empty(self.folder):
                self._leave_nothing()
            elif error is not None and self._playing and not self._overwrite:
                with suppress(OSError):  # it may be the disk's being full that stopped it
                    write_json(self.folder / STOPPED, {"reason": _reason(error)})
        finally:
            self._file.close()
            self._lock.release()

    def start(self) -> None:
        """Play the run from now on: what stops the sitting stops this one of those that are open."""
        self._playing = True
        (self.folder / STOPPED).unlink(missing_ok=True)

    def rest(self) -> None:
        """Play it no more."""
        self._playing = False

    def append(self, episode: Episode) -> None:
        """Add an episode that has just ended; it survives the process from here on."""
        self._replace()
        self._file.write(episode.to_json().encode() + b"\n")
        self._file.flush()
        self.episodes.append(episode)
        self.journal.done(episode.task_id, episode.sample)

    @property
    def _episodes(self) -> Path:
        return self.folder / EPISODES

    def _refuse_others(self) -> None:
        """See that the folder's `run.json` is one of ours, so that no training run loses its own."""
        try:
            schema = json.loads((self.folder / _ABOUT).read_text(encoding="utf-8"))["schema"]
        except (OSError, ValueError, KeyError, TypeError):  # there is none, or a damaged one
            return
        if schema != SCHEMA:
            raise UsageError(f"{self.folder} holds a run of another kind ({schema}); choose another --out.")

    def _begin(self) -> None:
        self._overwrite &= not is_empty(self.folder)
        if self._overwrite:
            return
        for path in (self._episodes, self.folder / REPLIES):
            _cut_half_line(path)
        if is_empty(self.folder):
            self._begin_anew()
            return
        self._compare()
        try:
            self.episodes = list(read_episodes(self._episodes))
            self.journal.read()
        except ValueError as error:
            raise UsageError(
                f"{error} Mend the file, choose another --out, or begin again with --overwrite."
            ) from error
        for episode in self.episodes:
            self.journal.done(episode.task_id, episode.sample)

    def _replace(self) -> None:
        """Forget an earlier run, or note that it is extended, now that there is something to keep."""
        self.begun = True
        if self._overwrite:
            self._file.truncate(0)
            for left in _OUTCOMES:
                (self.folder / left).unlink(missing_ok=True)
            self._begin_anew()
            self._overwrite = False
        elif self._extended:
            write_json(self.folder / _ABOUT, self._extended)
            self._extended = {}

    def _begin_anew(self) -> None:
        about = {"schema": SCHEMA, "settings": self._settings, **self._resolved}
        write_json(self.folder / _ABOUT, about | provenance())

    def _leave_nothing(self) -> None:
        """Remove a run in which nothing was played, so that it isn't taken for one that is under way. A folder that was
        made for it goes with its lock.
        """
        for name in (EPISODES, REPLIES, _ABOUT):
            (self.folder / name).unlink(missing_ok=True)

    def _compare(self) -> None:
        try:
            about = json.loads((self.folder / _ABOUT).read_text(encoding="utf-8"))
            found = about["settings"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.folder} holds a run, but no {_ABOUT} that says how it was played; "
                "choose another --out, or begin again with --overwrite."
            ) from error
        differing = [name for name in {**found, **self._settings} if found.get(name) != self._settings.get(name)]
        if not set(differing) <= self._may_differ:
            others = not {"tasks", "task", "items"}.isdisjoint(differing)  # of which the rest about tasks follows
            asked = [name for name in differing if not (others and name.startswith("tasks_"))]
            what = "; ".join(f"{name} {found.get(name)!r}, not {self._settings.get(name)!r}" for name in asked)
            raise UsageError(
                f"The run in {self.folder} was played with {what}: choose another --out, or begin again with "
                "--overwrite. The same command may ask for more --samples or --tasks, but not for fewer or others."
            )
        self._extended = {**about, **self._resolved, "settings": self._settings} if differing else {}


def is_empty(folder: Path) -> bool:
    """Whether no run is kept in a folder: no episode, and no reply that was paid for."""
    return not any((folder / name).exists() and (folder / name).stat().st_size for name in (EPISODES, REPLIES))


def _reason(error: BaseException) -> str:
    """Why a sitting stopped, in a sentence."""
    if isinstance(error, KeyboardInterrupt):
        return "It was interrupted."
    told = str(error) if isinstance(error, RunStopped | UsageError | OSError) and str(error) else repr(error)
    return redacted(told)


def _cut_half_line(path: Path) -> None:
    """Cut off half a line at the end, which a process that is killed leaves; end a whole one that lacks its newline."""
    if path.exists() and (size := path.stat().st_size):
        with path.open("r+b") as file:
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
                tail = content[end:]
            try:
                json.loads(tail)
            except ValueError:
                file.truncate(end)
            else:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, wholly or not at all.

    Raises:
        ValueError: when it holds a NaN or an infinity, which JSON has no word for.
    """
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
