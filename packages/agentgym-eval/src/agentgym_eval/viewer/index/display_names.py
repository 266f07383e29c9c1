"""Display names and notes of runs, in a file beside the run's own files, which it never changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentgym_envs.util.files import write_whole

from agentgym_eval.util.errors import UsageError

_SCHEMA = "agentgym.viewer/1"
_MOST_NAME, _MOST_NOTE = 200, 10_000


@dataclass(frozen=True, slots=True)
class DisplayName:
    """What a user called a run; empty texts if nothing."""

    title: str = ""
    """The name; empty shows the path."""
    note: str = ""


def display_name_file(run: Path) -> Path:
    """Return the file with the name and note of a run: `viewer.json` in its folder, or beside a file of episodes."""
    return run.with_name(f"{run.name}.viewer.json") if run.is_file() else run / "viewer.json"


def read_display_name(run: Path) -> DisplayName:
    """Read the name and note of a run; empty ones if there are none, or the file is damaged."""
    try:
        record = json.loads(display_name_file(run).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return DisplayName()
    if not isinstance(record, dict) or record.get("schema") != _SCHEMA:
        return DisplayName()
    return DisplayName(str(record.get("name") or "")[:_MOST_NAME], str(record.get("note") or "")[:_MOST_NOTE])


def write_display_name(run: Path, named: DisplayName) -> None:
    """Write the name and note of a run; empty ones remove the file.

    Raises:
        UsageError: if one is too long, or the folder can't be written.
    """
    if len(named.title) > _MOST_NAME or len(named.note) > _MOST_NOTE:
        raise UsageError(f"A name has at most {_MOST_NAME} characters and a note {_MOST_NOTE:,}; shorten it.")
    path = display_name_file(run)
    record = {"schema": _SCHEMA, "name": named.title, "note": named.note}
    try:
        if named.title or named.note:
            write_whole(path, json.dumps(record, ensure_ascii=False, indent=2) + "\n")
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}); make its folder writable.") from error
