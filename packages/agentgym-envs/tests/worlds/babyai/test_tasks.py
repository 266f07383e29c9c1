"""Tests of BabyAI's task sets."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from agentgym_envs import make, text_env
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.worlds.babyai.tasks import all_levels, task_set
from ci_subset import subset_in_ci

ENV = text_env(make("agentgym/BabyAI-v0"))
PAPER_CATEGORIES = {"GoTo", "Pickup", "ActionObjDoor", "FindObj", "OneRoom", "SynthLoc"}


def test_tasks_match_the_manifest() -> None:
    committed = json.loads(resources.files("agentgym_envs.worlds.babyai").joinpath("manifest.json").read_text())
    assert ENV.tasks.manifest() == committed


def test_every_level_has_enough_tasks() -> None:
    assert len(all_levels()) >= 90
    for name in all_levels():
        tasks = task_set((name,))
        assert len(tasks.train) >= 60
        assert len(tasks.test) >= 10


def test_task_order_interleaves_levels() -> None:
    count = len(all_levels())
    assert [task.payload["level"] for task in ENV.tasks.test[:count]] == list(all_levels())


def test_tasks_have_category_difficulty_and_split_seeds() -> None:
    seeds = {split: {task.payload["seed"] for task in ENV.tasks.split(split)} for split in ("train", "test")}
    assert not seeds["train"] & seeds["test"]
    assert {task.category for task in ENV.tasks} >= PAPER_CATEGORIES
    assert all(task.difficulty >= 1 for task in ENV.tasks)


@pytest.mark.parametrize(("name", "shared"), [("OpenRedDoor", 64), ("GoToObjS4", 54), ("GoToRedBallNoDists", 9)])
def test_small_levels_share_starts_between_splits(name: str, shared: int) -> None:
    """The numbers in the docstring of `tasks`."""
    tasks = task_set((name,))
    starts = {
        split: [ENV.reset(options={"task": task_id})[1]["state_key"] for task_id in tasks.split(split).ids]
        for split in SPLITS
    }
    assert sum(start in {*starts["train"], *starts["dev"]} for start in starts["test"]) == shared


@pytest.mark.long
@pytest.mark.parametrize("split", ["train", "test"])
def test_oracle_takes_as_many_turns_as_the_difficulty(split: str) -> None:
    """One task per level, each at a different position of its split."""
    for index, name in enumerate(all_levels()):
        tasks = task_set((name,)).split("train" if split == "train" else "test")
        task = tasks[(index * 7) % len(tasks)]
        _, info = ENV.reset(options={"task": task.id})
        for _ in range(task.difficulty):
            assert not info["success"]
            *_, info = ENV.step(ENV.oracle())
            assert info["valid"]
        assert info["success"], task.id


@pytest.mark.long
def test_oracle_solves_every_test_task() -> None:
    for task in subset_in_ci(ENV.tasks.test, 7):
        _, info = ENV.reset(options={"task": task.id})
        for _ in range(task.difficulty):
            *_, info = ENV.step(ENV.oracle())
        assert info["success"], task.id
