"""The folder of a run: its settings, its provenance and the episodes played so far.

An episode is one line, written and flushed when the episode ends; each paid reply is written and flushed when it
arrives. A killed process loses only its work in progress: at most an incomplete last line, which is cut off when the
folder is opened again. This module depends neither on environments nor on policies.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentgym_envs import Episode, read_episodes
from agentgym_envs.util.files import write_whole
from agentgym_envs.util.redaction import redacted

from agentgym_eval.storage.annotations import annotations_file
from agentgym_eval.storage.distances import distances_file
from agentgym_eval.storage.journal import Journal
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.storage.provenance import provenance
from agentgym_eval.util.errors import RunStopped, UsageError

SCHEMA = "agentgym.run/1"
EPISODES = "episodes.jsonl"
REPLIES = "replies.jsonl"
USAGE = "usage.json"
STOPPED = "stopped.json"
"""The reason why the last session stopped early; removed when the run is resumed."""
RUN = "run.json"
PROMPT_DIGEST = "prompt_sha256"
"""The setting with the digest of the system message that the setting `prompt` gave."""
_PLOTS = ("turns.png", "turns.svg", "k.png", "k.svg", "turns_k.png", "turns_k.svg")
_BESIDE = tuple(beside(Path(EPISODES)).name for beside in (distances_file, annotations_file))
_REPORT = ("report.json", "report.md", "report.html", *_PLOTS)
_OUTCOMES = (REPLIES, USAGE, *_BESIDE, *_REPORT)
"""Files derived from the episodes or about them, removed together with them."""


class Store:
    """The episodes of one run on disk, opened by one process at a time.

    Used as a context manager. Entering it locks the folder and raises `UsageError` if the folder is in use, can't be
    written, is damaged, or holds episodes that were played with other settings.
    """

    episodes: list[Episode]
    """All episodes of the run so far; those of earlier sessions come first."""
    journal: Journal
    """The replies of a paid endpoint."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        resolved: Mapping[str, Any] | None = None,
        may_differ: Set[str] = frozenset(),
        overwrite: bool = False,
        tags: Sequence[str] = (),
    ) -> None:
        """Create the store without touching the disk.

        Args:
            folder: Created on entering if it doesn't exist.
            settings: The settings that determine the episodes, as JSON values.
            resolved: The values that the environment chose where the settings leave the choice to it; recorded when a
                run starts.
            may_differ: Names of settings in which the existing run may differ, because this run extends it. The new
                values are written with the first episode or reply.
            overwrite: Discard an existing run as soon as there is an episode or a paid reply to replace it.
            tags: Tags of the run; of an existing run, they replace those that it has, if there are any.
        """
        self.folder = folder
        self._lock = FolderLock(folder)
        self.episodes = []
        self.journal = Journal(folder / REPLIES, self._replace)
        self._settings = dict(settings)
        self._resolved = {"resolved": dict(resolved)} if resolved else {}
        self._tags = {"tags": list(tags)} if tags else {}
        self._may_differ, self._extended = may_differ, dict[str, Any]()
        self._overwrite = overwrite
        self.begun = False
        """Whether this session has stored anything yet; the first write replaces an earlier run."""
        self._playing = False

    @property
    def replaces(self) -> bool:
        """Whether the folder holds an earlier run that is going to be replaced."""
        return self._overwrite

    def __enter__(self) -> Self:
        self._check_schema()
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
            if self._lock.taken_by():
                return  # the files are another process's now
            if is_empty(self.folder):
                self._remove_empty()
            elif error is not None and self._playing and not self._overwrite:
                with suppress(OSError):  # the error may be that the disk is full
                    write_json(self.folder / STOPPED, {"reason": _reason(error)})
        finally:
            try:
                # After an error, such as of a full disk, closing the file tries to write the rest again.
                with suppress(OSError) if error is not None else nullcontext():
                    self._file.close()
            finally:
                self._lock.release()

    def start(self) -> None:
        """Mark the run as active: if an error stops the session now, this run records it as its reason."""
        self._playing = True
        (self.folder / STOPPED).unlink(missing_ok=True)

    def rest(self) -> None:
        """Mark the run as inactive."""
        self._playing = False

    def append(self, episode: Episode) -> None:
        """Append an episode that has just ended and flush it, so that it survives the process.

        Raises:
            LockLost: If another process has taken the folder over; nothing is written.
        """
        self._lock.check()
        self._replace()
        self._file.write(episode.to_json().encode() + b"\n")
        self._file.flush()
        self.episodes.append(episode)
        self.journal.done(episode.task_id, episode.sample)

    @property
    def _episodes(self) -> Path:
        return self.folder / EPISODES

    def _check_schema(self) -> None:
        """Raise `UsageError` if the folder's `run.json` has another schema, such as that of a training run."""
        try:
            schema = json.loads((self.folder / RUN).read_text(encoding="utf-8"))["schema"]
        except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
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
            self._write_about()
            return
        self._check_settings()
        try:
            self.episodes = list(read_episodes(self._episodes))
            self.journal.read()
        except ValueError as error:
            raise UsageError(
                f"{error} Repair the file, choose another --out, or start over with --overwrite."
            ) from error
        for episode in self.episodes:
            self.journal.done(episode.task_id, episode.sample)

    def _replace(self) -> None:
        """Before the first write: discard an earlier run, or record that it is extended and remove its report, which
        says that it is complete.
        """
        self.begun = True
        if self._overwrite:
            self._file.truncate(0)
            self._remove(_OUTCOMES)
            self._write_about()
            self._overwrite = False
        elif self._extended:
            now = provenance()
            again = {name: now[name] for name in ("command", "folder")}  # the command that resumes it from now on
            write_json(self.folder / RUN, self._extended | again)
            self._remove(_REPORT)
            self._extended = {}

    def _write_about(self) -> None:
        about = {"schema": SCHEMA, "settings": self._settings, **self._resolved, **self._tags}
        write_json(self.folder / RUN, about | provenance())

    def _remove_empty(self) -> None:
        """Remove a run without episodes and replies, so that it isn't mistaken for one in progress. A folder that was
        created for it is removed with its lock.
        """
        self._remove((EPISODES, REPLIES, RUN))

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _check_settings(self) -> None:
        try:
            about = json.loads((self.folder / RUN).read_text(encoding="utf-8"))
            found = dict(about["settings"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.folder} holds a run without a readable {RUN}, so its settings are unknown; "
                "choose another --out, or start over with --overwrite."
            ) from error
        differing = [name for name in {**found, **self._settings} if found.get(name) != self._settings.get(name)]
        if not set(differing) <= self._may_differ:
            tasks_differ = not {"tasks", "task", "items"}.isdisjoint(differing)  # then the `tasks_*` differ as well
            named = [name for name in differing if not (tasks_differ and name.startswith("tasks_"))]
            named = [name for name in named if name != PROMPT_DIGEST or "prompt" not in named]
            listing = "; ".join(map(partial(_difference, found, self._settings), named))
            raise UsageError(
                f"The run in {self.folder} was played with {listing}: choose another --out, or start over with "
                "--overwrite. A run can be extended to more --samples or --tasks, but not to fewer or other ones."
            )
        if self._tags and about.get("tags") != self._tags["tags"]:
            about |= self._tags
            write_json(self.folder / RUN, about)
        self._extended = {**about, **self._resolved, "settings": self._settings} if differing else {}


def _difference(found: Mapping[str, Any], asked: Mapping[str, Any], name: str) -> str:
    if name == PROMPT_DIGEST:
        return f"another text of the prompt {found['prompt']} (restore it)"
    return f"{name} {found.get(name)!r}, not {asked.get(name)!r}"


def is_empty(folder: Path) -> bool:
    """Return whether a folder holds no run: neither episodes nor paid replies."""
    return not any((folder / name).exists() and (folder / name).stat().st_size for name in (EPISODES, REPLIES))


def _reason(error: BaseException) -> str:
    """Return the reason why a session stopped, as one sentence."""
    if isinstance(error, KeyboardInterrupt):
        return "It was interrupted."
    reason = str(error) if isinstance(error, RunStopped | UsageError | OSError) and str(error) else repr(error)
    return redacted(reason)


def _cut_half_line(path: Path) -> None:
    """Cut off an incomplete last line, as a killed process leaves it; end a complete one that lacks its newline."""
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
    """Write `value` as indented JSON, atomically.

    Raises:
        ValueError: If it contains a NaN or an infinity, which JSON can't represent.
    """
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def expected_episodes(about: Mapping[str, Any]) -> int | None:
    """Return the number of episodes of a complete run with this `run.json`; None if its settings don't give it."""
    resolved, settings = (at if isinstance(at := about.get(key), dict) else {} for key in ("resolved", "settings"))
    named, samples = settings.get("task"), settings.get("samples")
    # The named tasks may be of several environments, each with a run of its own.
    asked = len(named) if named and isinstance(named, list) else settings.get("tasks")
    tasks = resolved.get("tasks", asked)
    return tasks * samples if isinstance(tasks, int) and isinstance(samples, int) else None
