"""What users wrote about runs: names, notes and tags, in a file beside the run's own files, which it never changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentgym_envs.util.files import write_whole

from agentgym_eval.storage.labels import checked_tags
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.runs import Run

_SCHEMA = "agentgym.viewer/1"
_MOST_NAME, _MOST_NOTE = 200, 10_000


@dataclass(frozen=True, slots=True)
class RunNotes:
    """What a user wrote about a run."""

    title: str = ""
    """The name; empty shows the path."""
    note: str = ""
    tags: tuple[str, ...] | None = None
    """The tags, which replace those that the run recorded from its command line; None if the user set none."""

    def put_on(self, run: Run) -> Run:
        """Return the run with this name, note and tags; without tags, with those in its run.json."""
        tags = _valid(run.record.get("tags")) if self.tags is None else self.tags
        return replace(run, title=self.title, note=self.note, tags=tags)


def notes_file(run: Path) -> Path:
    """Return the file with the notes of a run: `viewer.json` in its folder, or beside a file of episodes."""
    return run.with_name(f"{run.name}.viewer.json") if run.is_file() else run / "viewer.json"


def read_notes(run: Path) -> RunNotes:
    """Read the notes of a run; empty ones if there are none, or the file is damaged."""
    try:
        record = json.loads(notes_file(run).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return RunNotes()
    if not isinstance(record, dict) or record.get("schema") != _SCHEMA:
        return RunNotes()
    tags = _valid(record["tags"]) if isinstance(record.get("tags"), list) else None
    return RunNotes(str(record.get("name") or "")[:_MOST_NAME], str(record.get("note") or "")[:_MOST_NOTE], tags)


def write_notes(run: Path, notes: RunNotes) -> None:
    """Write the notes of a run; empty ones remove the file.

    Raises:
        UsageError: if one is too long, or the folder can't be written.
    """
    if len(notes.title) > _MOST_NAME or len(notes.note) > _MOST_NOTE:
        raise UsageError(f"A name has at most {_MOST_NAME} characters and a note {_MOST_NOTE:,}; shorten it.")
    path = notes_file(run)
    record: dict[str, Any] = {"schema": _SCHEMA, "name": notes.title, "note": notes.note}
    record |= {} if notes.tags is None else {"tags": list(notes.tags)}
    try:
        if notes != RunNotes():
            write_whole(path, json.dumps(record, ensure_ascii=False, indent=2) + "\n")
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}); make its folder writable.") from error


def retag(runs: Sequence[Run], add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[Run]:
    """Add tags to runs and remove others, and return the changed runs. Runs with the tags that their command line gave
    them keep no list of their own.

    Raises:
        UsageError: for invalid tags, before any file is changed; or if a folder can't be written.
    """
    tags = [checked_tags([*(tag for tag in run.tags if tag not in remove), *add]) for run in runs]
    changed: list[Run] = []
    for run, wanted in zip(runs, tags, strict=True):
        notes = replace(read_notes(run.path), tags=own_tags(run, wanted))
        write_notes(run.path, notes)
        changed.append(notes.put_on(run))
    return changed


def own_tags(run: Run, tags: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the tags that a user gave a run; None if they are those of its command line."""
    return None if tags == _valid(run.record.get("tags")) else tags


def _valid(tags: object) -> tuple[str, ...]:
    """Return the tags in a record; none if it is damaged."""
    try:
        return checked_tags(map(str, tags)) if isinstance(tags, list) else ()
    except UsageError:
        return ()
