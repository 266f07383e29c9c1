"""Tests of task sets: the dev split, lazy construction of tasks, and splits under different options."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import agentgym_envs
import pytest
from agentgym_envs import Task, Tasks, TaskSet, text_env
from agentgym_envs.core.tasks import FEWEST_TO_SHARE

BUILT: list[str] = []


class Ids(Sequence[str]):
    """A sequence of `count` ids that are created on access, and counts the accesses."""

    def __init__(self, count: int) -> None:
        self.length = count
        self.accesses = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        self.accesses += 1
        numbers = range(self.length)[index]
        return [f"toy/{n}" for n in numbers] if isinstance(numbers, range) else f"toy/{numbers}"


def build(task_id: str) -> Task:
    BUILT.append(task_id)
    return Task(task_id, "toy/Toy-v0", "train", "toys", 1)


def task_set(ids: Sequence[str], dev: Tasks | None = None) -> TaskSet:
    return TaskSet(train=Tasks(ids, build), test=Tasks(["toy/test/0"], build), dev=dev)


def hashed_for_dev(task_id: str) -> bool:
    return int(hashlib.sha256(task_id.encode()).hexdigest()[:16], 16) % 10 == 0


def test_one_in_ten_training_tasks_becomes_a_dev_task() -> None:
    ids = [f"toy/{n}" for n in range(5_000)]
    tasks = task_set(ids)
    assert list(tasks.dev.ids) == [task_id for task_id in ids if hashed_for_dev(task_id)]
    assert list(tasks.train.ids) == [task_id for task_id in ids if not hashed_for_dev(task_id)]
    assert 400 < len(tasks.dev) < 600
    assert len(tasks) == 5_001


def test_dev_tasks_keep_their_ids_and_name_their_split() -> None:
    tasks = task_set([f"toy/{n}" for n in range(100)])
    for split in ("train", "dev"):
        assert {task.split for task in tasks.split(split)} == {split}
    task = tasks.dev[0]
    assert tasks[task.id] == task == tasks.dev[:1][0]
    assert task.id.startswith("toy/")
    assert tasks.manifest().keys() == {"train", "dev", "test"}


def test_dev_split_depends_on_neither_order_nor_other_tasks() -> None:
    all_ids, some_ids = [f"toy/{n}" for n in range(500)], [f"toy/{n}" for n in range(499, 99, -1)]
    assert set(task_set(some_ids).dev.ids) == set(task_set(all_ids).dev.ids) & set(some_ids)


def test_explicit_dev_split_is_kept() -> None:
    ids = [f"toy/{n}" for n in range(100)]
    for dev in (Tasks(["toy/dev/0"], build), Tasks([], build)):
        tasks = task_set(ids, dev)
        assert tasks.dev is dev
        assert list(tasks.train.ids) == ids


def test_few_training_tasks_give_no_dev_split() -> None:
    few = task_set([f"toy/{n}" for n in range(FEWEST_TO_SHARE - 1)])
    assert (len(few.train), len(few.dev)) == (FEWEST_TO_SHARE - 1, 0)
    enough = task_set([f"toy/{n}" for n in range(FEWEST_TO_SHARE)])
    assert len(enough.dev) > 0


def test_test_tasks_are_read_without_access_to_training_ids() -> None:
    ids = Ids(1_000_000)
    BUILT.clear()
    tasks = task_set(ids)
    assert tasks.test[0].id == "toy/test/0"
    assert (ids.accesses, BUILT) == (0, ["toy/test/0"])


def test_dev_split_is_computed_once_without_building_tasks() -> None:
    ids = Ids(1_000)
    tasks = task_set(ids)
    BUILT.clear()
    assert len(tasks.train) + len(tasks.dev) == 1_000
    accesses = ids.accesses
    assert tasks.train is tasks.train
    assert tasks.split("dev") is tasks.dev
    assert (ids.accesses, BUILT) == (accesses, [])


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("craft/test/clay", "Did you mean craft/train/clay?"),
        ("clay", "Did you mean craft/train/clay?"),
        ("craft/tset/map", "Did you mean craft/test/map?"),
        ("craft/test/mop", "Did you mean craft/test/map or craft/test/cake?"),
        ("bread", "Ids look like craft/train/clay."),
    ],
)
def test_unknown_id_names_those_with_the_same_last_part_first(asked: str, hint: str) -> None:
    tasks = TaskSet(
        train=Tasks(["craft/train/clay", "craft/train/bowl"], build),
        test=Tasks(["craft/test/map", "craft/test/cake"], build),
    )
    with pytest.raises(KeyError) as error:
        tasks[asked]
    assert error.value.args == (f"There is no task {asked!r} among the 4 of this environment. {hint}",)


@pytest.mark.parametrize(
    ("world", "options", "narrower"),
    [
        ("TextCraft", {}, {"depth": (1, 2)}),
        ("BabyAI", {"levels": ["GoToRedBall", "PickupLoc"]}, {"levels": "PickupLoc"}),
    ],
)
def test_tasks_stay_in_their_split_under_narrower_options(
    world: str, options: dict[str, Any], narrower: dict[str, Any]
) -> None:
    wide, narrow = (
        text_env(agentgym_envs.make(f"agentgym/{world}-v0", **given)).tasks for given in (options, narrower)
    )
    assert len(narrow) < len(wide)
    for split in ("train", "dev", "test"):
        assert narrow.split(split)
        assert set(narrow.split(split).ids) <= set(wide.split(split).ids)
