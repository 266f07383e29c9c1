"""The task sets of the environment: our own on the embedded sites, WebArena's, and files of tasks."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentgym_envs.core.tasks import SPLITS, Task, Tasks, TaskSet
from agentgym_envs.worlds.webarena.evaluation import needs_judge
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.tasks.agentgym_rl import AGENTGYM_RL, split_tasks
from agentgym_envs.worlds.webarena.tasks.task_files import read_tasks, task_of
from agentgym_envs.worlds.webarena.tasks.verified import ORIGINAL, VERIFIED_SETS, verified_tasks

EMBEDDED, MINIWOB = "embedded", "miniwob"
SETS = (EMBEDDED, *VERIFIED_SETS, AGENTGYM_RL, MINIWOB)
"""The names of task sets. The tasks of `MINIWOB` are in `agentgym_envs.worlds.webarena.miniwob`."""


def find_task_set(name: str) -> Path | None:
    """Return the absolute path of the file or folder `name`; None if it is the name of a task set.

    Raises:
        ValueError: if it is neither.
    """
    if name in SETS:
        return None
    path = Path(name).expanduser().resolve()
    if not path.exists():
        known = ", ".join(SETS)
        raise ValueError(
            f"There is no task set {name!r}: give {known}, or a file or folder of tasks in WebArena's JSON."
        )
    return path


def choose_templates(asked: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the selected templates of the embedded tasks, sorted; None selects all.

    Raises:
        ValueError: for an unknown template or an empty selection.
    """
    if asked is None:
        return None
    names: Any = [asked] if isinstance(asked, str) else asked
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"templates must be a template's name or a list of names, such as 'map/phone', not {asked!r}.")
    known = {task.cluster for task in _embedded()}
    for name in sorted({*names} - known):
        near = difflib.get_close_matches(name, sorted(known), n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Names are like 'map/phone' or 'wiki/award'."
        raise ValueError(f"There is no template {name!r} among the {len(known)} of agentgym/WebArena-v0. {hint}")
    if not names:
        raise ValueError("templates is empty; name at least one, such as 'map/phone', or leave it out for all.")
    return tuple(sorted({*names}))


@cache
def embedded_tasks(templates: tuple[str, ...]) -> TaskSet:
    """Return the embedded tasks of these templates."""
    every = _embedded()
    ids = {split: [task.id for task in every.split(split) if task.cluster in templates] for split in SPLITS}
    train, dev, test = (Tasks(ids[split], every.__getitem__) for split in SPLITS)
    return TaskSet(train=train, dev=dev, test=test, name=every.name)


def task_set(name: str, path: Path | None = None, *, judged: bool, skip_judged: bool = False) -> TaskSet:
    """Return the task set `name`.

    Args:
        name: `embedded`, `webarena`, `webarena-verified`, `webarena-verified-hard`, `webarena-agentgym-rl`, or any name
            of the tasks at `path`.
        path: A file or folder of tasks; see `find_task_set`.
        judged: Whether a judge model is configured. Without one, selecting a task that needs it raises a `ValueError`.
        skip_judged: Leave such tasks out instead.

    Raises:
        ValueError: if a file isn't a valid task file.
        DependencyNotInstalled: if the set needs a package that isn't installed.
    """
    if name == EMBEDDED:
        return _embedded()
    tasks = _published(name) if path is None else _read(path)
    if skip_judged and not judged:
        tasks = tuple(task for task in tasks if not needs_judge(task.payload))
    return _set_of(tasks, name, judged=judged)


@cache
def _embedded() -> TaskSet:
    parts = {split: [task_of(record, split, split) for record in store.tasks()[split]] for split in SPLITS}
    by_id = {task.id: task for tasks in parts.values() for task in tasks}
    train, dev, test = (Tasks([task.id for task in parts[split]], by_id.__getitem__) for split in SPLITS)
    return TaskSet(train=train, dev=dev, test=test, name="AgentGym's embedded sites, not WebArena's benchmark")


@cache
def _published(name: str) -> tuple[Task, ...]:
    if name == AGENTGYM_RL:
        return split_tasks(_published(ORIGINAL))
    return verified_tasks(name)


@cache
def _read(path: Path) -> tuple[Task, ...]:
    return read_tasks(path, path.name.partition(".")[0])


def _set_of(tasks: Sequence[Task], name: str, *, judged: bool) -> TaskSet:
    """Build a task set without `dev`, which no published set has."""
    by_id = {task.id: task for task in tasks}

    def build(task_id: str) -> Task:
        task = by_id[task_id]
        if not judged and needs_judge(task.payload):
            raise ValueError(
                f"Task {task_id} needs a judge model, and none is configured: give judge='MODEL@URL' of an "
                "OpenAI-compatible endpoint, or skip_judged=True to leave such tasks out."
            )
        return task

    train, test = (Tasks([task.id for task in tasks if task.split == split], build) for split in ("train", "test"))
    return TaskSet(train=train, test=test, name=name)
