"""Files with readers' annotations, next to files of episodes (schema `agentgym.annotation/1`).

A line has the position of an episode in its file, its environment, task and sample, and its labels and note. Lines are
only appended, each in a single write, so several processes can annotate at once; the last line of an episode counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from agentgym_eval.metrics.failure_causes import EpisodeKey
from agentgym_eval.storage.labels import checked_labels
from agentgym_eval.util.errors import UsageError

SCHEMA = "agentgym.annotation/1"
_SUFFIX = ".annotations.jsonl"
_MAX_NOTE = 20_000


@dataclass(frozen=True, slots=True)
class Annotation:
    """What a reader wrote about an episode; without labels and note, an earlier annotation is withdrawn."""

    labels: tuple[str, ...] = ()
    note: str = ""
    written: str = ""
    """When, as UTC in ISO 8601."""

    @classmethod
    def of(cls, labels: Iterable[str], note: str) -> Self:
        """Make an annotation as of now: labels are sorted and distinct, and spaces around labels and note removed.

        Raises:
            UsageError: for labels that can't be told from filters or are too many or too long, and too long notes.
        """
        distinct = checked_labels(labels, "label", "An episode")
        text = note.replace("\r\n", "\n").strip()
        if len(text) > _MAX_NOTE:
            raise UsageError(f"A note has at most {_MAX_NOTE:,} characters, not {len(text):,}.")
        return cls(distinct, text, datetime.now(UTC).isoformat(timespec="seconds"))


def annotations_file(episodes: Path) -> Path:
    """Return the path of the annotations that belong to a file of episodes; it may not exist."""
    return episodes.with_suffix(_SUFFIX)


def is_annotations_file(path: Path) -> bool:
    """Return whether a path is that of a file of annotations."""
    return path.name.endswith(_SUFFIX)


def read_annotations(episodes: Path) -> dict[int, tuple[EpisodeKey, Annotation]]:
    """Read the annotations that belong to a file of episodes, by the episode's line from 0, each with the environment,
    task and sample that the episode had; empty if there are none. Invalid lines and withdrawn annotations are left out.
    """
    try:
        lines = annotations_file(episodes).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return {}
    last = {number: (key, annotation) for number, key, annotation in filter(None, map(_parsed, lines))}
    return {number: found for number, found in sorted(last.items()) if found[1].labels or found[1].note}


def add_annotation(episodes: Path, number: int, key: EpisodeKey, annotation: Annotation) -> None:
    """Append an annotation of the episode at line `number` of a file. Raises OSError if it can't be written."""
    names = dict(zip(("env", "task_id", "sample"), key, strict=True))
    written = {"labels": annotation.labels, "note": annotation.note, "written": annotation.written}
    line = json.dumps({"schema": SCHEMA, "episode": number, **names, **written})
    path = annotations_file(episodes)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        torn = size and os.pread(file, 1, size - 1) != b"\n"  # by a process that was killed, or a full disk
        content = f"{chr(10) if torn else ''}{line}\n".encode()
        if os.write(file, content) != len(content):
            raise OSError(f"{path} could not be written completely; is the disk full?")
    finally:
        os.close(file)


def _parsed(line: str) -> tuple[int, EpisodeKey, Annotation] | None:
    try:
        record: Any = json.loads(line)
        if not isinstance(record, Mapping) or record["schema"] != SCHEMA:
            return None
        number, env, task, sample = (record[name] for name in ("episode", "env", "task_id", "sample"))
        labels, note, written = (record[name] for name in ("labels", "note", "written"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    texts: tuple[Any, ...] = (env, task, note, written, *(labels if isinstance(labels, list) else (None,)))
    if type(number) is not int or type(sample) is not int or not all(isinstance(text, str) for text in texts):
        return None
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:  # lone surrogates, which no page and no database can hold
        return None
    in_range = 0 <= number < 2**63 and abs(sample) < 2**63
    return (number, (env, task, sample), Annotation(tuple(labels), note, written)) if in_range else None
