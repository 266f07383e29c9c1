from __future__ import annotations

import json
from importlib import resources

import pytest
from agentgym_envs import make, text_env
from agentgym_envs.worlds.babyai.tasks import all_levels, task_set
from share import share

WORLD = text_env(make("agentgym/BabyAI-v0"))
PAPER = {"GoTo", "Pickup", "ActionObjDoor", "FindObj", "OneRoom", "SynthLoc"}


def test_the_manifest_is_that_of_the_tasks() -> None:
    committed = json.loads(resources.files("agentgym_envs.worlds.babyai").joinpath("manifest.json").read_text())
    assert WORLD.tasks.manifest() == committed


def test_there_are_enough_tasks_of_every_level() -> None:
    assert len(all_levels()) >= 90
    for name in all_levels():
        tasks = task_set((name,))
        assert len(tasks.train) >= 60
        assert len(tasks.test) >= 10


def test_levels_take_turns() -> None:
    count = len(all_levels())
    assert [task.payload["level"] for task in WORLD.tasks.test[:count]] == list(all_levels())


def test_tasks_say_what_they_are() -> None:
    seeds = {split: {task.payload["seed"] for task in WORLD.tasks.split(split)} for split in ("train", "test")}
    assert not seeds["train"] & seeds["test"]
    assert {task.category for task in WORLD.tasks} >= PAPER
    assert all(task.difficulty >= 1 for task in WORLD.tasks)


@pytest.mark.long
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_oracle_takes_as_many_turns_as_the_table_says(split: str) -> None:
    """One task per level: each of another seed, so that all of them get their turn over the levels."""
    for number, name in enumerate(all_levels()):
        tasks = task_set((name,)).split("train" if split == "train" else "test")
        task = tasks[(number * 7) % len(tasks)]
        _, info = WORLD.reset(options={"task": task.id})
        for _ in range(task.difficulty):
            assert not info["success"]
            *_, info = WORLD.step(WORLD.oracle())
            assert info["valid"]
        assert info["success"], task.id


@pytest.mark.long
def test_the_oracle_solves_every_test_task() -> None:
    for task in share(WORLD.tasks.test, 7):
        _, info = WORLD.reset(options={"task": task.id})
        for _ in range(task.difficulty):
            *_, info = WORLD.step(WORLD.oracle())
        assert info["success"], task.id
