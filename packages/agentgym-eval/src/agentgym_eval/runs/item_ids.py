"""AgentGym's item-id files as tasks to play: `[{"item_id": "babyai_123"}]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from agentgym_envs import agentgym_ids
from agentgym_envs.util.json_text import parse

from agentgym_eval.util.errors import UsageError, listed

_LONGEST = 60  # ids in messages are cut to this length


@dataclass(frozen=True, slots=True)
class Items:
    """The items of some files, with the tasks that they correspond to."""

    tasks: Mapping[str, str]
    """Task ids by item id, in the order of the files."""
    refused: Mapping[str, str]
    """Reasons why items correspond to no task, by item id."""

    @property
    def without_tasks(self) -> str:
        """A sentence on the items without a task and the reason of the first one; empty if all have one."""
        if not self.refused:
            return ""
        ids = list(self.refused)
        shown = [item if len(item) <= _LONGEST else f"{item[:_LONGEST]}…" for item in ids]
        total = len(ids) + len(self.tasks)
        return f"{len(ids)} of {total} items correspond to no task: {listed(shown)}. {self.refused[ids[0]]}"


def read_items(files: Sequence[Path]) -> Items:
    """Read the items in `files`, without duplicates.

    Raises:
        UsageError: If a file can't be read or has another format, or an environment's package is missing.
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
    """Return the task ids of the items in `files`, without duplicates.

    Args:
        files: Item-id files.
        skip: Leave out items that correspond to no task.

    Raises:
        UsageError: See `read_items`; also if no item corresponds to a task or, without `skip`, if one doesn't.
    """
    items = read_items(files)
    if not items.tasks:
        named = items.without_tasks or "They have no items."
        raise UsageError(f"--items {' '.join(map(str, files))} can't be played. {named} Choose tasks with --split.")
    if items.refused and not skip:
        raise UsageError(f"{items.without_tasks} Leave them out with --skip.")
    return tuple(dict.fromkeys(items.tasks.values()))


def _ids(file: Path) -> Iterator[str]:
    try:
        entries: Any = parse(file.read_text(encoding="utf-8-sig"))
        yield from [_id(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f'{file} is not an item-id file ({error}); expected a JSON array such as [{{"item_id": "babyai_123"}}].'
        ) from error


def _id(entry: Any) -> str:
    item = entry["item_id"]
    if not isinstance(item, str):
        raise ValueError(f"the item_id {item!r} is not a string")
    return item
