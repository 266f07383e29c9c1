"""AgentGym's item-id files, as tasks to play: `[{"item_id": "babyai_123"}]`. Knows no world but by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from agentgym_envs import agentgym_ids
from agentgym_envs.util.json_text import parse

from agentgym_eval.util.errors import UsageError, listed

_LONGEST = 60  # of an id that is shown


@dataclass(frozen=True, slots=True)
class Items:
    """What the items of some files name here."""

    tasks: Mapping[str, str]
    """Our task by item id, in the order of the files."""
    refused: Mapping[str, str]
    """Why there is none of ours, by item id."""

    @property
    def without_tasks(self) -> str:
        """How many name no task here, which, and why the first of them does not; empty when all do."""
        if not self.refused:
            return ""
        ids = list(self.refused)
        shown = [item if len(item) <= _LONGEST else f"{item[:_LONGEST]}…" for item in ids]
        whole = len(ids) + len(self.tasks)
        return f"{len(ids)} of {whole} items name no task here: {listed(shown)}. {self.refused[ids[0]]}"


def read_items(files: Sequence[Path]) -> Items:
    """What the items in `files` name. One that is there twice counts once.

    Raises:
        UsageError: when a file can't be read or isn't of this form, or a world's package is missing.
    """
    tasks: dict[str, str] = {}
    refused: dict[str, str] = {}
    for item in (item for file in files for item in _ids(file)):
        try:
            tasks[item] = agentgym_ids.task_id(item)
        except KeyError as error:
            refused[item] = str(error.args[0])
        except gymnasium.error.DependencyNotInstalled as error:
            raise UsageError(str(error)) from error
    return Items(tasks, refused)


def task_ids(files: Sequence[Path], *, skip: bool) -> tuple[str, ...]:
    """Our ids of the tasks that `files` name, each once.

    Args:
        files: Item-id files.
        skip: Leave out what names no task of ours.

    Raises:
        UsageError: as `read_items`; when none names a task of ours, or without `skip` when one doesn't.
    """
    items = read_items(files)
    if not items.tasks:
        named = items.without_tasks or "They hold no items."
        raise UsageError(f"--items {' '.join(map(str, files))} can't be played. {named} Choose tasks with --split.")
    if items.refused and not skip:
        raise UsageError(f"{items.without_tasks} Go on without them: --skip.")
    return tuple(dict.fromkeys(items.tasks.values()))


def _ids(file: Path) -> Iterator[str]:
    try:
        entries: Any = parse(file.read_text(encoding="utf-8-sig"))
        yield from [_id(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f'{file} is no item-id file ({error}); give a JSON array such as [{{"item_id": "babyai_123"}}].'
        ) from error


def _id(entry: Any) -> str:
    item = entry["item_id"]
    if not isinstance(item, str):
        raise ValueError(f"the item_id {item!r} is no text")
    return item
