"""The task sets: questions of the almanac, of published sets, or of your own, as tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from agentgym_envs.core.tasks import SPLITS, Split, Task, Tasks, TaskSet
from agentgym_envs.worlds.searchqa import almanac
from agentgym_envs.worlds.searchqa.published import PUBLISHED, load

ENV_ID = "agentgym/SearchQA-v0"
ALMANAC = "almanac"


@cache
def task_set(names: tuple[str, ...], folder: Path | None) -> TaskSet:
    """Return the questions of the sets `names`, one set after the other.

    Raises:
        ValueError, DependencyNotInstalled, OSError: see `published.load`.
    """
    sets = [_almanac() if name == ALMANAC else _published(name, folder) for name in names]
    train, dev, test = (Tasks([i for one in sets for i in one.split(split).ids], _builder(sets)) for split in SPLITS)
    return TaskSet(train=train, dev=dev, test=test)


def _builder(sets: list[TaskSet]) -> Callable[[str], Task]:
    def build(task_id: str) -> Task:
        return next(one[task_id] for one in sets if task_id in one)

    return build


@cache
def _almanac() -> TaskSet:
    def build(task_id: str) -> Task:
        question = by_id[task_id]
        payload = {
            "question": question.text,
            "answers": list(question.answers),
            "queries": list(question.queries),
            "support": list(question.support),
        }
        form = task_id.split("/")[2]
        return Task(task_id, ENV_ID, question.split, question.category, question.hops, payload, form)

    by_id = {
        question.id.replace("almanac", "searchqa", 1): question
        for split in ("train", "test")
        for question in almanac.questions(split)
    }
    train, test = (
        Tasks([i for i, question in by_id.items() if question.split == split], build) for split in ("train", "test")
    )
    return TaskSet(train=train, test=test)


def _published(name: str, folder: Path | None) -> TaskSet:
    rows = load(name, folder)
    hops = PUBLISHED[name].hops if name in PUBLISHED else 1

    def build(task_id: str) -> Task:
        _, part, numbered = task_id.split("/", 2)  # the name of a set may have slashes
        position = numbered.rpartition("/")[2]
        split: Split = next(split for split in SPLITS if split == part)
        row = rows[split][int(position)]
        return Task(task_id, ENV_ID, split, name, hops, {"question": row.question, "answers": list(row.answers)})

    train, dev, test = (
        Tasks([f"searchqa/{split}/{name}/{i}" for i in range(len(rows.get(split, ())))], build) for split in SPLITS
    )
    return TaskSet(train=train, dev=dev if "dev" in rows else None, test=test)
