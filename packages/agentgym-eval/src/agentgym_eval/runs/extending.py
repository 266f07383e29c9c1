"""Whether a run that lies in a folder can be extended: with more attempts at its tasks, or with more tasks.

What it has stays, whichever way the tasks are named. Knows nothing about playing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_envs import ReplyWrapper, Task, Tasks, text_env

from agentgym_eval.runs.environments import widened
from agentgym_eval.runs.item_ids import task_ids
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.storage.store import is_empty

BEFORE = "tasks_before"
"""Among the settings of a run that was extended by --tasks: how many tasks it had before, in order."""
GROWING = frozenset({"samples", "tasks", "task", "items", "tasks_sha256", BEFORE})
"""Settings in which an extended run differs from what it was."""


def settings_in(folder: Path) -> dict[str, Any]:
    """What the run in a folder was played with; empty where nothing was played, or its `run.json` can't be read."""
    if is_empty(folder):
        return {}
    try:
        return dict(json.loads((folder / "run.json").read_text(encoding="utf-8"))["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def counts_before(earlier: Mapping[str, Any], settings: PlaySettings) -> tuple[int, ...]:
    """How many tasks a run had before it has as many as `settings` ask for."""
    had, before = earlier.get("tasks"), tuple(earlier.get(BEFORE, ()))
    if had is None or settings.tasks is None or settings.tasks < had:
        return ()
    return before if settings.tasks == had else (*before, had)


def extends(earlier: Mapping[str, Any], settings: PlaySettings, env: ReplyWrapper, tasks: Sequence[Task]) -> bool:
    """Whether the run that was played with `earlier` is part of one of `tasks`: it had no task that isn't among them,
    its tasks are what they were, and there are no fewer attempts at each.
    """
    try:
        there, ids = {task.id: task for task in tasks}, _ids(earlier, env)
        had = [there[task_id] for task_id in dict.fromkeys(ids) if task_id in there]
        return earlier["tasks_sha256"] == digest(had) and earlier["samples"] <= settings.samples
    except (KeyError, TypeError, ValueError):  # settings of other versions, or files that are gone
        return False


def digest(tasks: Sequence[Task]) -> str:
    """Of the tasks in their order, with all that they consist of."""
    return Tasks([task.id for task in tasks], {task.id: task for task in tasks}.__getitem__).digest()


def _ids(earlier: Mapping[str, Any], env: ReplyWrapper) -> Sequence[str]:
    """Of the tasks that a run had; of those that were named, of other worlds as well."""
    if earlier["task"]:
        return earlier["task"]
    if earlier["items"]:
        return task_ids(tuple(map(Path, earlier["items"])), skip=True)
    split = text_env(env).tasks.split(earlier["split"])
    if earlier["tasks"] is None:
        return [task.id for task in split]
    return [task.id for task in widened(split, (*earlier.get(BEFORE, ()), earlier["tasks"]))]
