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
    """So many ids, made when they are asked for; notes how often that was."""

    def __init__(self, count: int) -> None:
        self.length = count
        self.asked = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        self.asked += 1
        numbers = range(self.length)[index]
        return [f"toy/{n}" for n in numbers] if isinstance(numbers, range) else f"toy/{numbers}"


def build(task_id: str) -> Task:
    BUILT.append(task_id)
    return Task(task_id, "toy/Toy-v0", "train", "toys", 1)


def made(ids: Sequence[str], dev: Tasks | None = None) -> TaskSet:
    return TaskSet(train=Tasks(ids, build), test=Tasks(["toy/test/0"], build), dev=dev)


def hashed_for_dev(task_id: str) -> bool:
    return int(hashlib.sha256(task_id.encode()).hexdigest()[:16], 16) % 10 == 0


def test_without_a_dev_split_one_training_task_in_ten_is_set_aside() -> None:
    ids = [f"toy/{n}" for n in range(5_000)]
    tasks = made(ids)
    assert list(tasks.dev.ids) == [task_id for task_id in ids if hashed_for_dev(task_id)]
    assert list(tasks.train.ids) == [task_id for task_id in ids if not hashed_for_dev(task_id)]
    assert 400 < len(tasks.dev) < 600
    assert len(tasks) == 5_001


def test_a_task_that_is_set_aside_keeps_its_id_and_says_that_it_is_for_dev() -> None:
    tasks = made([f"toy/{n}" for n in range(100)])
    for split in ("train", "dev"):
        assert {task.split for task in tasks.split(split)} == {split}
    task = tasks.dev[0]
    assert tasks[task.id] == task == tasks.dev[:1][0]
    assert task.id.startswith("toy/")
    assert tasks.manifest().keys() == {"train", "dev", "test"}


def test_the_order_of_the_tasks_and_what_else_there_is_change_no_split() -> None:
    all_of_them, some = [f"toy/{n}" for n in range(500)], [f"toy/{n}" for n in range(499, 99, -1)]
    assert set(made(some).dev.ids) == set(made(all_of_them).dev.ids) & set(some)


def test_a_dev_split_that_is_given_stays_as_it_is() -> None:
    ids = [f"toy/{n}" for n in range(100)]
    for dev in (Tasks(["toy/dev/0"], build), Tasks([], build)):
        tasks = made(ids, dev)
        assert tasks.dev is dev
        assert list(tasks.train.ids) == ids


def test_of_few_training_tasks_none_is_set_aside() -> None:
    few = made([f"toy/{n}" for n in range(FEWEST_TO_SHARE - 1)])
    assert (len(few.train), len(few.dev)) == (FEWEST_TO_SHARE - 1, 0)
    enough = made([f"toy/{n}" for n in range(FEWEST_TO_SHARE)])
    assert len(enough.dev) > 0


def test_to_make_a_task_set_and_to_read_its_test_tasks_looks_at_no_training_task() -> None:
    ids = Ids(1_000_000)
    BUILT.clear()
    tasks = made(ids)
    assert tasks.test[0].id == "toy/test/0"
    assert (ids.asked, BUILT) == (0, ["toy/test/0"])


def test_to_carve_a_split_builds_no_task_and_happens_once() -> None:
    ids = Ids(1_000)
    tasks = made(ids)
    BUILT.clear()
    assert len(tasks.train) + len(tasks.dev) == 1_000
    asked = ids.asked
    assert tasks.train is tasks.train
    assert tasks.split("dev") is tasks.dev
    assert (ids.asked, BUILT) == (asked, [])


@pytest.mark.parametrize(
    ("world", "options", "narrower"),
    [
        ("TextCraft", {}, {"depth": (1, 2)}),
        ("BabyAI", {"levels": ["GoToRedBall", "PickupLoc"]}, {"levels": "PickupLoc"}),
    ],
)
def test_a_world_s_task_is_in_the_same_split_under_all_options(
    world: str, options: dict[str, Any], narrower: dict[str, Any]
) -> None:
    wide, narrow = (text_env(agentgym_envs.make(f"agentgym/{world}-v0", **some)).tasks for some in (options, narrower))
    assert len(narrow) < len(wide)
    for split in ("train", "dev", "test"):
        assert narrow.split(split)
        assert set(narrow.split(split).ids) <= set(wide.split(split).ids)
