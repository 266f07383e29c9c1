"""Moving runs to a trash folder below the viewed one, and back. Only emptying the trash deletes them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from agentgym_eval.storage.annotations import annotations_file
from agentgym_eval.storage.distances import distances_file
from agentgym_eval.storage.lock import NAME as LOCK
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.discovery import ALIVE_S, read_json
from agentgym_eval.viewer.index.run_notes import notes_file
from agentgym_eval.viewer.index.runs import Run, path_key
from agentgym_eval.viewer.index.tokens import tokens_file

TRASH = ".trash"
_ENTRY, _CONTENT = "entry.json", "run"
_DELETED = "deleted-"
"""The prefix of the folders of runs that are being deleted."""
_SCHEMA = "agentgym.trash/1"
_KEY = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TrashedRun:
    """A run in the trash."""

    key: str
    """The name of its folder in the trash."""
    name: str
    """Its path relative to the viewed folder."""
    title: str
    deleted: float
    """When it was moved, in Unix seconds."""
    episodes: int
    size: int
    """Bytes of its files."""
    single: bool
    """Whether it is a single file of episodes, with the files that belong to it, and not a folder."""


def run_size(run: Run) -> int:
    """Return the bytes of all files of a run."""
    return _bytes(_paths(run))


def why_each_is_kept(root: Path, selected: Iterable[Run], runs: Iterable[Run]) -> list[tuple[Run, str]]:
    """Return for each selected run why it can't be moved to the trash with the others, as by `why_kept`. Runs come
    before those whose folder contains them, the order in which they can be moved.
    """
    left, reasons = {run.slug: run for run in runs}, list[tuple[Run, str]]()
    for run in sorted(selected, key=lambda run: -len(run.path.parts)):
        reasons.append((run, why_kept(root, run, left.values())))
        if not reasons[-1][1]:
            left.pop(run.slug, None)
    return reasons


def why_kept(root: Path, run: Run, runs: Iterable[Run]) -> str:
    """Return why a run can't be moved to the trash, as a sentence; empty if it can.

    Args:
        root: The viewed folder.
        run: The run.
        runs: All runs below the folder.
    """
    if run.path == root or root.is_file():
        return "It is all that this viewer shows; to remove it, delete its folder."
    if any(path.is_symlink() for path in _below(root, run.path)):
        return "Its path contains a symbolic link, so its files may belong to something else; delete the link by hand."
    if not run.path.resolve().is_relative_to(root.resolve()):
        return f"It isn't below {root}."
    if isinstance(path_key(run.path.relative_to(root)), bytes):
        return "Its name isn't UTF-8, so it couldn't be restored; rename it first."
    if run.state in ("running", "waiting"):
        return f"It is {run.state}; stop it first."
    if run.path.is_file() and time.time() - run.changed < ALIVE_S:
        return "It was written in the last three minutes, so it may still be in use; try again later."
    inside = [other.name for other in runs if run.path in other.path.parents]
    if inside:
        return f"Its folder contains other runs ({', '.join(inside[:3])}); move those first."
    return ""


def move_to_trash(root: Path, run: Run, runs: Iterable[Run], episodes: int) -> str:
    """Move a run to the trash and return its key there.

    Args:
        root: The viewed folder.
        run: The run.
        runs: All runs below the folder.
        episodes: The number of its episodes, for the record.

    Raises:
        UsageError: if it must stay, is in use by a process, or can't be moved.
    """
    if reason := why_kept(root, run, runs):
        raise UsageError(f"{run.name} can't be moved to the trash. {reason}")
    key = f"{time.strftime('%Y%m%d-%H%M%S')}-{run.slug}"
    target = root / TRASH / key
    entry = {"schema": _SCHEMA, "name": run.name, "title": run.title, "deleted": time.time(), "episodes": episodes}
    try:
        if (root / TRASH).is_symlink():
            raise UsageError(f"{root / TRASH} is a symbolic link; remove it first.")
        entry |= {"size": run_size(run), "single": run.path.is_file()}
        target.mkdir(parents=True)
        (target / _ENTRY).write_text(json.dumps(entry, ensure_ascii=False), encoding="utf-8")
        with FolderLock(run.path) if run.path.is_dir() else nullcontext():
            _move(run, target / _CONTENT)
    except (OSError, UsageError) as error:
        _forget(target)
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{run.name} can't be moved to {target.parent}: {error}") from error
    return key


def trashed_runs(root: Path) -> list[TrashedRun]:
    """Return the runs in the trash of the viewed folder, the last moved one first."""
    return sorted(_trashed(root), key=lambda each: -each.deleted)


def restore(root: Path, key: str) -> str:
    """Move a run from the trash to where it was, and return its name.

    Raises:
        UsageError: if it isn't in the trash, its former place is taken, or it can't be moved.
    """
    found = next((each for each in _trashed(root) if each.key == key), None)
    if found is None:
        raise UsageError("This run is no longer in the trash.")
    target, content = root / found.name, root / TRASH / key / _CONTENT
    if not target.parent.resolve().is_relative_to(root.resolve()) or ".." in Path(found.name).parts:
        raise UsageError(f"{found.name} isn't below {root}; move {content} by hand.")
    moves = {path: target.parent / path.name for path in content.iterdir()} if found.single else {content: target}
    if taken := [place for place in moves.values() if place.exists()]:
        raise UsageError(f"{taken[0]} exists again, so {found.name} can't be restored; move or rename that first.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for path, place in moves.items():
            path.rename(place)
    except OSError as error:
        raise UsageError(f"{found.name} can't be restored: {error}") from error
    _forget(root / TRASH / key)
    return found.name


def trash_size(root: Path) -> int:
    """Return the bytes of all files of the runs in the trash, and of those that could not be deleted completely."""
    return _bytes([*(root / TRASH / each.key for each in _trashed(root)), *left_over(root)])


def empty_trash(root: Path, until: float) -> int:
    """Delete for good the runs that were in the trash at a time, and return their number.

    Args:
        root: The viewed folder.
        until: The time in Unix seconds at which the user saw what is in the trash; runs that were moved there since
            stay.

    Raises:
        UsageError: if something can't be deleted. No run is left that could be restored in part.
    """
    asked = [each for each in _trashed(root) if each.deleted <= until]
    try:
        doomed = [*left_over(root)]
        for each in asked:
            target = root / TRASH / f"{_DELETED}{each.key}"
            doomed.append((root / TRASH / each.key).rename(target))
        for path in doomed:
            shutil.rmtree(path)
    except OSError as error:
        raise UsageError(
            f"The trash can't be emptied completely ({error}). Make {error.filename} writable and try again, or delete "
            f"{root / TRASH} by hand."
        ) from error
    if not any((root / TRASH).iterdir()):
        (root / TRASH).rmdir()
    return len(asked)


def left_over(root: Path) -> list[Path]:
    """Return the folders of runs of which an earlier emptying could delete only a part."""
    folder = root / TRASH
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [path for path in folder.glob(f"{_DELETED}*") if path.is_dir() and not path.is_symlink()]


def _bytes(paths: Iterable[Path]) -> int:
    return sum(path.lstat().st_size for each in paths for path in (each, *each.rglob("*")) if path.is_file())


def _trashed(root: Path) -> Iterator[TrashedRun]:
    folder = root / TRASH
    if root.is_file() or folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        record = read_json(path / _ENTRY)
        if not _KEY.fullmatch(path.name) or path.is_symlink() or record.get("schema") != _SCHEMA:
            continue
        name, title = str(record.get("name") or ""), str(record.get("title") or "")
        deleted, episodes, size = (record.get(each) for each in ("deleted", "episodes", "size"))
        if name and isinstance(deleted, int | float) and isinstance(episodes, int) and isinstance(size, int):
            yield TrashedRun(path.name, name, title, deleted, episodes, size, record.get("single") is True)


def _below(root: Path, path: Path) -> list[Path]:
    """Return the path and its parents below `root`."""
    return [each for each in (path, *path.parents) if each != root and root in each.parents]


def _paths(run: Run) -> list[Path]:
    """Return the folder of a run, or a single file with all that belongs to it."""
    if run.path.is_dir():
        return [run.path]
    named = (notes_file, annotations_file, distances_file, tokens_file)
    beside = [run.path.with_suffix(".card.json"), *(file_of(run.path) for file_of in named)]
    return [run.path, *(path for path in beside if path.exists())]


def _move(run: Run, target: Path) -> None:
    if run.path.is_dir():
        run.path.rename(target)
        (target / LOCK).unlink(missing_ok=True)
        return
    target.mkdir()
    for path in reversed(_paths(run)):
        path.rename(target / path.name)


def _forget(entry: Path) -> None:
    """Remove an entry of the trash whose content is elsewhere."""
    if (entry / _CONTENT).exists() and any((entry / _CONTENT).iterdir()):
        return
    (entry / _ENTRY).unlink(missing_ok=True)
    for folder in (entry / _CONTENT, entry, entry.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
