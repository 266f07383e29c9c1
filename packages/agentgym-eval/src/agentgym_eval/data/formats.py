"""Files of episodes in any format, which is detected from their content.

for episode in read_data(["runs/textcraft.jsonl", "babyai_train.json"], score=1.0):
    ...
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, Task, read_episodes
from agentgym_envs.util.installation import command
from agentgym_envs.util.json_text import parse

from agentgym_eval.data import agentgym, chat_messages, other_formats, trl
from agentgym_eval.data.agentgym import NoCounterpart
from agentgym_eval.data.recorded import Recording, episode
from agentgym_eval.metrics.failure_causes import episode_key
from agentgym_eval.storage.annotations import Annotation, annotations_file, is_annotations_file, read_annotations
from agentgym_eval.storage.distances import is_distances_file
from agentgym_eval.storage.store import REPLIES, RUN
from agentgym_eval.util.errors import UsageError, listed

FORMATS = {
    "episodes": "schema",
    "trl": "messages",
    "agentgym": "conversations",
    "items": "item_id",
}
"""The formats that can be written, and the key that identifies their records. `other_formats` has the read-only
ones.
"""
_BEGINNING = b'{"schema":"agentgym.episode/'
"""How `Episode.to_json` begins."""


def read_data(
    paths: Iterable[Path | str] | Path | str,
    *,
    score: float | None = None,
    skip: Callable[[str], object] | None = None,
    keep: bool = False,
    half: Callable[[str], object] | None = None,
    on_change: Callable[[str], object] | None = None,
    label: str = "",
) -> Iterator[Episode]:
    """Yield the episodes in files of any format, in order.

    Args:
        paths: Files of this package's episodes, of AgentGym's or TRL's conversations or in a format of `other_formats`,
            as JSON lines or a JSON array; or folders: of a run, or of such files. Of a training run, only the rollouts
            are read.
        score: Score, from 0 to 1, of all conversations whose file has none.
        skip: Called with the reason for each conversation that is left out because this package doesn't have its task.
            Without it, such conversations raise an error.
        keep: Keep such conversations under their own ids instead, without an environment.
        half: Called with a message if a file of episodes ends in an incomplete line, left by a killed process.
        on_change: Called with a description of each conversion within a conversation.
        label: Yield only this package's episodes that a reader gave this label in the viewer.

    Raises:
        UsageError: If a file doesn't exist, is damaged, has none of these formats, or lacks a score; the message says
            which file and where.
    """
    if score is not None and not 0 <= score <= 1:
        raise UsageError(f"A score must be between 0 and 1, not {score:g}.")
    reading = _Reading(score, skip, keep, half, on_change or (lambda _: None), label)
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        for file in _files(Path(path)):
            yield from reading.file(file)


@dataclass(frozen=True, slots=True)
class _Reading:
    score: float | None
    skip: Callable[[str], object] | None
    keep: bool
    half: Callable[[str], object] | None
    on_change: Callable[[str], object]
    label: str
    attempts: Counter[str] = field(default_factory=Counter[str])
    """Number of recorded conversations by task, so far."""

    def file(self, path: Path) -> Iterator[Episode]:
        if self.label and not annotations_file(path).exists():
            return
        if _is_ours(path):
            yield from self._ours(path)
            return
        found = _records(path)
        number, first = next(found, (0, {}))
        if not number:
            raise UsageError(f"{path} has no records.")
        kind = _format(first, path)
        if kind == "episodes" and not _is_array(path):
            yield from self._ours(path)
            return
        for number, record in itertools.chain([(1, first)], found):
            try:
                yield from self._episodes(kind, record, f"{path.name}/{number}")
            except UsageError as error:
                raise UsageError(f"{path}, conversation {number}: {error}") from error
            except RecursionError as error:
                raise UsageError(f"{path}, conversation {number} is nested too deeply.") from error
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                why = f"it has no {error}" if isinstance(error, KeyError) else error
                raise UsageError(f"{path}, conversation {number} is not a valid {kind} record: {why}.") from error

    def _ours(self, path: Path) -> Iterator[Episode]:
        annotations = read_annotations(path) if self.label else {}
        try:
            for number, ours in enumerate(read_episodes(path, half=self.half)):
                key, annotation = annotations.get(number, (None, Annotation()))
                if not self.label or (key == episode_key(ours) and self.label in annotation.labels):
                    yield ours
        except ValueError as error:
            raise UsageError(str(error)) from error

    def _episodes(self, kind: str, record: dict[str, Any], name: str) -> Iterator[Episode]:
        if kind == "episodes":
            yield Episode.from_json(json.dumps(record))
        elif kind == "trl" and record.get(trl.OURS):
            if (original := trl.original(record)) is not None:
                yield original
        elif kind == "trl":
            recording = chat_messages.recording(record["messages"], record.get("tools"), on_change=self.on_change)
            yield self._recorded(recording, Task(name, "", "train", "", 0), self.score)
        elif kind == "agentgym":
            if (task := self._task(record)) is not None:
                yield self._recorded(agentgym.read(record), task, self.score)
        else:
            for found in other_formats.conversations(kind, record, self.on_change):
                task = Task(found.task_id or name, found.env, "train", "", 0)
                score = self.score if found.score is None else found.score
                yield self._recorded(found.recording, task, score, found.agent)

    def _task(self, record: dict[str, Any]) -> Task | None:
        """Return the task of a conversation of AgentGym; None if it is left out."""
        try:
            return agentgym.task(record)
        except NoCounterpart as error:
            if self.keep:
                return Task(str(record["item_id"]), "", "train", "", 0)
            if self.skip is not None:
                self.skip(str(error))
                return None
            raise UsageError(
                f"{error} Leave such conversations out with --skip, or keep them without an environment with --keep."
            ) from error

    def _recorded(self, recording: Recording, task: Task, score: float | None, agent: str = "") -> Episode:
        if score is None:
            raise UsageError("it has no score. Set the score of such conversations, as in --score 1.")
        attempt = self.attempts[task.id]
        self.attempts[task.id] += 1
        return episode(recording, task, score=score, sample=attempt, agent=agent)


def training_runs(path: Path) -> list[Path]:
    """Return the folders of training runs at and below `path`, of which only the rollouts are read: evaluations may be
    on test tasks.
    """
    return sorted(file.parent for file in path.rglob(RUN) if _is_of_training(file))


def _is_of_training(file: Path) -> bool:
    try:
        return str(parse(file.read_text(encoding="utf-8"))["schema"]).startswith("agentgym.train/")
    except (OSError, ValueError, LookupError, TypeError):  # another program's file, or damaged
        return False


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"There is no file or folder {path}.")
    if path.is_file():
        return [path]
    if (path / "episodes.jsonl").exists():
        return [path / "episodes.jsonl"]
    lines = [file for file in path.rglob("*.jsonl") if not (_is_beside_episodes(file) or _is_empty(file))]
    trained = training_runs(path)
    found = [file for file in lines if _counts(file, trained)]
    found += [file for file in path.rglob("*.json") if _counts(file, trained) and not _is_about(file)]
    if found:
        return sorted(found)
    if trained and lines:
        raise UsageError(
            f"The training run {trained[0]} has no rollouts, and its other episodes are read only by the names of "
            f"their files: {listed(list(map(str, sorted(lines))))}."
        )
    raise UsageError(f"There is no .jsonl or .json file of episodes in the folder {path}; name a file.")


def _is_beside_episodes(path: Path) -> bool:
    """Return whether a file belongs to episodes in other files, or to a run."""
    tokens = path.name.endswith(".tokens.jsonl")
    return tokens or is_annotations_file(path) or is_distances_file(path) or path.name in (REPLIES, "metrics.jsonl")


def _is_empty(path: Path) -> bool:
    """Return whether a file is empty, as that of a run is until its first episode ends."""
    return path.is_file() and not path.stat().st_size


def _counts(path: Path, trained: Iterable[Path]) -> bool:
    """Return whether a file is outside of these training runs, or among their rollouts."""
    return all(run / "rollouts" in path.parents for run in trained if run in path.parents)


def _is_about(path: Path) -> bool:
    """Return whether a file is a single JSON object other than a record, such as a card or report."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        value = parse(text) if text.lstrip().startswith("{") else None
    except (OSError, ValueError):  # JSON lines, or damaged, which the reader reports
        return False
    if not isinstance(value, dict):
        return False
    ours = str(value.get("schema", "")).startswith("agentgym.episode/")
    return not (ours or ({*FORMATS.values()} - {"schema"}) & value.keys() or other_formats.kind_of(value))


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a JSON array or of JSON lines, numbered from 1."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            numbered = enumerate(parse(file.read()) if _is_array(path) else _lines(file), 1)
            for number, record in numbered:
                if not isinstance(record, dict):
                    raise UsageError(f"{path}, record {number} is not a JSON object.")
                yield number, record
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error}.") from error
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is neither a JSON array nor JSON lines: {error}.") from error


def _is_ours(path: Path) -> bool:
    """Return whether a file begins with an episode of this package, which may be half a line."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:  # which reading the records reports
        return False


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1_000).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _lines(lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield parse(line)
            except ValueError as error:
                raise ValueError(f"line {number}, {error}") from error


def _format(record: dict[str, Any], path: Path) -> str:
    schema = str(record.get("schema", ""))
    if schema.startswith("agentgym.") and not schema.startswith("agentgym.episode/"):
        raise UsageError(f"{path} holds no episodes: its schema is {schema}. Name a file of episodes.")
    ours = {name: key for name, key in FORMATS.items() if name != "agentgym"}
    found = next((name for name, key in ours.items() if key in record), None) or other_formats.kind_of(record)
    if found in ("items", "sharegpt") and "item_id" in record and record.get("conversations"):
        return "agentgym"
    if found == "items" or record.get("conversations") == []:
        raise UsageError(
            f"{path} has task ids, but no conversations. To play the tasks, run: {command('collect')} --items {path}, "
            "or evaluate."
        )
    if found is None:
        known = [f"`{key}` ({name})" for name, key in FORMATS.items() if name != "items"]
        known += [_keys(keys) + f" ({name})" for name, (keys, _) in other_formats.FORMATS.items()]
        raise UsageError(f"{path} has no known format: its first record has none of the keys {', '.join(known)}.")
    return found


def _keys(keys: Iterable[str]) -> str:
    return " and ".join(f"`{key}`" for key in sorted(keys))


def records(
    episodes: Iterable[Episode], to: str, *, skip: Callable[[str], object] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the records of these episodes in the format `to`.

    Args:
        episodes: Episodes in order.
        to: One of `FORMATS`.
        skip: Called with the reason for each episode that is left out because AgentGym doesn't have its task. Without
            it, such episodes raise an error.

    Raises:
        UsageError: If an episode can't be converted, or its turns can't be reproduced by its agent.
    """
    made = {"episodes": _own, "trl": trl.records, "agentgym": agentgym.records, "items": agentgym.items}[to]
    seen: set[str] = set()
    for found in episodes:
        try:
            new = list(made(found))
        except NoCounterpart as error:
            if skip is None:
                raise UsageError(f"{error} Leave such episodes out with --skip.") from error
            skip(str(error))
            continue
        except ValueError as error:
            raise UsageError(str(error)) from error
        if to == "items":
            new = [record for record in new if record["item_id"] not in seen]
            seen.update(record["item_id"] for record in new)
        yield from new


def _own(found: Episode) -> Iterator[dict[str, Any]]:
    yield json.loads(found.to_json())


def content(found: Iterable[dict[str, Any]], to: str) -> str:
    """Return the content of a file with these records: a JSON array for AgentGym's formats, otherwise JSON lines."""
    if to in ("agentgym", "items"):
        return json.dumps(list(found), ensure_ascii=False, indent=1) + "\n"
    return "".join(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in found)
