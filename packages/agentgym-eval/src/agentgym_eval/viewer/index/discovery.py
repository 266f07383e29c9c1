"""Discovery of the runs below a folder: runs of `evaluate` and `train`, collected data, and single files of episodes.

Runs are recognized by the `schema` in their files, never by folder names. This module writes nothing, keeps no state,
and does not read the episodes themselves.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentgym_eval.storage.store import STOPPED
from agentgym_eval.viewer.index.run_notes import read_notes
from agentgym_eval.viewer.index.runs import HUMAN, EpisodeFile, Kind, Part, Run, State, printable, slug_of

ALIVE_S = 180.0
"""Seconds since the last change of a file in which a run counts as running."""
_WRITTEN = ("run.json", "card.json", "metrics.jsonl", "replies.jsonl")
"""Files whose modification times show progress, besides the episodes; the first one is written when the run begins."""
_PRUNED = {"node_modules"}
_MODELS = {"checkpoints", "model", "start"}
"""Folders with models in that of a training run, which hold many files but no episodes."""
_EPISODE = "agentgym.episode/"
_LINE = 1 << 20  # bytes of a line that are read for its schema
_STEP = re.compile(r"(?:step|test|iteration)-(\d+)")


def discover(root: Path) -> list[Run]:
    """Find the runs in `root`, which is a folder or one file of episodes, sorted by name."""
    if root.is_file():
        run = _single_file(root, root.parent) if _holds_episodes(root) else None
        return [run] if run else []
    run_files: dict[Path, list[Path]] = {}
    records: dict[Path, Mapping[str, Any]] = {}
    single_files: list[Path] = []
    errors: dict[Path, str] = {}
    for folder, folders, files in _walk(root):
        record = _record(folder, files)
        if not record and (name := _unreadable_record(folder, files)):
            errors[folder] = f"{name} can't be read, so only the episodes of this run are shown."
        if record:
            records[folder] = record
            run_files[folder] = []
        within = [each for each in (folder, *folder.parents) if each in records]
        if any(_kind(str(records[each]["schema"])) == "train" for each in within):
            folders[:] = [name for name in folders if name not in _MODELS]
        owner = next(iter(within), None)
        names = [name for name in files if name.endswith(".jsonl")]
        episodes = [
            folder / name
            for name in names
            if _holds_episodes(folder / name) or (owner and _is_episode_file(folder, name))
        ]
        (single_files if owner is None else run_files[owner]).extend(episodes)
    runs = [_run(folder, root, record, run_files[folder]) for folder, record in records.items()]
    for path in single_files:
        folder = next((each for each in path.parents if each in errors), None)
        run = _single_file(path, root)
        runs.append(run and replace(run, read_error=errors[folder] if folder else ""))
    return sorted(_with_command_states(filter(None, runs)), key=lambda run: run.name)


def _walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with the names of its folders, of which the caller may remove some, and of its files. Links to
    folders outside `root` are followed; each folder is yielded once.
    """
    real, seen = root.resolve(), set[Path]()
    for folder, folders, files in os.walk(root, followlinks=True):
        here = Path(folder)
        if (target := here.resolve()) in seen:
            folders.clear()
            continue
        seen.add(target)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _PRUNED and not name.startswith(".") and not _leads_back(here / name, real)
        )
        yield here, folders, sorted(name for name in files if not name.startswith("."))


def _leads_back(folder: Path, root: Path) -> bool:
    """Return whether a folder is a link into `root`, or to a folder that contains it."""
    if not folder.is_symlink():
        return False
    target = folder.resolve()
    return target.is_relative_to(root) or root.is_relative_to(target)


def _record(folder: Path, files: list[str]) -> Mapping[str, Any]:
    """Read the record that makes a folder a run; empty if it has none."""
    for name in ("run.json", "card.json"):
        if name in files:
            record = read_json(folder / name)
            if str(record.get("schema", "")).startswith(("agentgym.run/", "agentgym.train/", "agentgym.card/")):
                return record
    return {}


def _unreadable_record(folder: Path, files: list[str]) -> str:
    """Return the name of a damaged file that would make the folder a run; empty if there is none."""
    return next((name for name in ("run.json", "card.json") if name in files and not read_json(folder / name)), "")


def _is_episode_file(folder: Path, name: str) -> bool:
    """Return whether a non-empty file of a run must hold episodes by its name, so that damage to it is shown."""
    expected = name == "episodes.jsonl" or (folder.name in ("evaluations", "rollouts") and name.count(".") == 1)
    try:
        return expected and (folder / name).stat().st_size > 0
    except OSError:
        return False  # deleted


def _run(folder: Path, root: Path, record: Mapping[str, Any], paths: list[Path]) -> Run | None:
    """Make the run of a folder; None if it was deleted since its record was read."""
    name = root.resolve().name if folder == root else folder.relative_to(root).as_posix()
    kind = _kind(str(record["schema"]))
    settings = record.get("settings")
    interactive = isinstance(settings, dict) and settings.get("policy") == HUMAN
    final_output = None if interactive else {"train": "summary.json", "evaluate": "report.json"}.get(kind)
    done = not final_output or (folder / final_output).exists()
    reason = "" if done else str(read_json(folder / STOPPED).get("reason") or "")
    times = [at for path in (*(folder / each for each in _WRITTEN), *paths) if (at := _mtime(path)) is not None]
    if not times:
        return None
    run = Run(
        slug=slug_of(name),
        name=printable(name),
        path=folder,
        kind=kind,
        record=record,
        began=_started(record) or times[0],
        changed=max(times),
        state="done" if done else "stopped" if reason else _state(max(times)),
        reason=reason,
    )
    return read_notes(folder).put_on(replace(run, files=tuple(_file(path, run) for path in paths)))


def _started(record: Mapping[str, Any]) -> float | None:
    """Return when a run was started by its record, in Unix seconds; None if it doesn't say."""
    try:
        started = datetime.fromisoformat(record["started"])
        return (started if started.tzinfo else started.replace(tzinfo=UTC)).astimezone(UTC).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):  # overflows in the year 1, or 9999, of other time zones
        return None


def _with_command_states(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs, with adjusted states where one command executes several runs one after the other."""
    commands: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        alone = run.kind != "evaluate" or run.state == "done" or not run.command
        commands.setdefault((run.path,) if alone else (run.path.parent, run.command), []).append(run)
    for group in commands.values():
        if len(group) == 1 or all(run.state == "stopped" for run in group):
            yield from group
            continue
        order = sorted(group, key=lambda run: (run.began, _mtime(run.path / _WRITTEN[0]) or 0.0, run.name))
        current = max((run for run in order if run.files), key=lambda run: run.changed, default=order[0])
        before = order[: order.index(current)]
        yield from (replace(run, state="done" if run.files else "stopped") for run in before)  # no files: skipped
        yield replace(current, state="running")
        yield from (replace(run, state="waiting") for run in order[len(before) + 1 :])


def _state(changed: float) -> State:
    return "running" if time.time() - changed < ALIVE_S else "stopped"


def _kind(schema: str) -> Kind:
    kinds: dict[str, Kind] = {"run": "evaluate", "train": "train", "card": "collect"}
    return kinds[schema.removeprefix("agentgym.").partition("/")[0]]


def _file(path: Path, run: Run) -> EpisodeFile:
    name = path.relative_to(run.path).as_posix()
    step = _STEP.search(name)
    part: Part = "played"
    if run.kind in ("train", "collect"):
        parts: dict[str, Part] = {"evaluations": "evaluation", "rollouts": "rollouts", "played.jsonl": "played"}
        part = parts.get(name.partition("/")[0], "data")
        part = "rollouts" if path.name == "sampled.jsonl" else part
    decoding = split = ""
    if part == "evaluation":
        decoding = path.stem.rpartition("-")[2]
        split = "test" if path.name.startswith("test-") else run.split
    name = name.removesuffix(".jsonl")
    return EpisodeFile(path, slug_of(name), printable(name), part, int(step[1]) if step else None, decoding, split)


def _single_file(path: Path, root: Path) -> Run | None:
    """Make a run of a file outside any run's folder: collected data if it has a card, otherwise plain episodes. None if
    it was deleted.
    """
    name = path.relative_to(root).as_posix()
    card = path.with_suffix(".card.json")
    record = read_json(card) if card.exists() else {}
    if (written := _mtime(path)) is None:
        return None
    file = EpisodeFile(path, slug_of(path.stem), printable(path.stem), "data" if record else "played")
    kind: Kind = "collect" if record else "episodes"
    run = Run(slug_of(name), printable(name), path, kind, record, (file,), written, written)
    return read_notes(path).put_on(run)


def _mtime(path: Path) -> float | None:
    """Return the modification time of a file in Unix seconds; None if it doesn't exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _holds_episodes(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            line = file.readline(_LINE)
    except OSError:
        return False  # deleted, or no permission to read
    begins = line[:64].removeprefix(b"\xef\xbb\xbf").replace(b" ", b"")
    if begins.startswith(f'{{"schema":"{_EPISODE}'.encode()):
        return True
    return _EPISODE.encode() in line and str(_object(line).get("schema", "")).startswith(_EPISODE)


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty if the file is damaged, missing, too deep or holds something else."""
    try:
        return _object(path.read_bytes())
    except OSError:
        return {}


def _object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; empty if the text is anything else."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
