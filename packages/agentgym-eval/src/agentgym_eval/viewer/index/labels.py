"""Display names and notes of runs, in a file beside the run's own files, which it never changes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentgym_eval.util.errors import UsageError

_SCHEMA = "agentgym.viewer/1"
_MOST_NAME, _MOST_NOTE = 200, 10_000


@dataclass(frozen=True, slots=True)
class Label:
    """What a user called a run; empty texts if nothing."""

    title: str = ""
    note: str = ""


def label_file(run: Path) -> Path:
    """Return the file with the label of a run: `viewer.json` in its folder, or beside a single file of episodes."""
    return run.with_name(f"{run.name}.viewer.json") if run.is_file() else run / "viewer.json"


def read_label(run: Path) -> Label:
    """Read the label of a run; an empty one if there is none, or it is damaged."""
    try:
        record = json.loads(label_file(run).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Label()
    if not isinstance(record, dict) or record.get("schema") != _SCHEMA:
        return Label()
    return Label(str(record.get("name") or "")[:_MOST_NAME], str(record.get("note") or "")[:_MOST_NOTE])


def write_label(run: Path, label: Label) -> None:
    """Write the label of a run; an empty one removes the file.

    Raises:
        UsageError: if the label is too long, or the folder can't be written.
    """
    if len(label.title) > _MOST_NAME or len(label.note) > _MOST_NOTE:
        raise UsageError(f"A name has at most {_MOST_NAME} characters and a note {_MOST_NOTE:,}; shorten it.")
    path = label_file(run)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if not (label.title or label.note):
            path.unlink(missing_ok=True)
            return
        record = {"schema": _SCHEMA, "name": label.title, "note": label.note}
        temporary.write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UsageError(f"{path} can't be written ({error.strerror}); make its folder writable.") from error
