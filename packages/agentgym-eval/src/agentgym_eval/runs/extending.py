"""Extending the run in a folder with more attempts at its tasks, or with more tasks.

The run's existing episodes are kept, regardless of how the tasks are named.
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
"""Setting of a run that was extended by --tasks: the numbers of tasks that it had before, in order."""
GROWING = frozenset({"samples", "tasks", "task", "items", "tasks_sha256", BEFORE})
"""Settings in which an extended run may differ from the original."""


def settings_in(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder; empty if it has no episodes, or its `run.json` can't be read."""
    if is_empty(folder):
        return {}
    try:
        return dict(json.loads((folder / "run.json").read_text(encoding="utf-8"))["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def counts_before(earlier: Mapping[str, Any], settings: PlaySettings) -> tuple[int, ...]:
    """Return the numbers of tasks that a run had before it is extended to `settings.tasks`."""
    previous, before = earlier.get("tasks"), earlier.get(BEFORE, ())
    before = tuple(before) if isinstance(before, list | tuple) else ()
    if previous is None or settings.tasks is None or settings.tasks < previous:
        return ()
    return before if settings.tasks == previous else (*before, previous)


def extends(earlier: Mapping[str, Any], settings: PlaySettings, env: ReplyWrapper, tasks: Sequence[Task]) -> bool:
    """Return whether the run with the settings `earlier` can be extended to `tasks`: all its tasks are among them and
    unchanged, and it has no more attempts at each.
    """
    try:
        available, ids = {task.id: task for task in tasks}, _ids(earlier, env)
        found = [available[task_id] for task_id in dict.fromkeys(ids) if task_id in available]
        return earlier["tasks_sha256"] == digest(found) and earlier["samples"] <= settings.samples
    except (KeyError, TypeError, ValueError):  # settings of other versions, or missing files
        return False


def digest(tasks: Sequence[Task]) -> str:
    """Return a hash of the tasks in their order, including their content."""
    return Tasks([task.id for task in tasks], {task.id: task for task in tasks}.__getitem__).digest()


def _ids(earlier: Mapping[str, Any], env: ReplyWrapper) -> Sequence[str]:
    """Return the task ids of a run; with named tasks, these may include tasks of other environments."""
    if earlier["task"]:
        return earlier["task"]
    if earlier["items"]:
        return task_ids(tuple(map(Path, earlier["items"])), skip=True)
    split = text_env(env).tasks.split(earlier["split"])
    if earlier["tasks"] is None:
        return [task.id for task in split]
    return [task.id for task in widened(split, (*earlier.get(BEFORE, ()), earlier["tasks"]))]
