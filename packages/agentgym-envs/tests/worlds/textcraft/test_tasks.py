"""Tests of TextCraft's task sets, their options, and the first observation."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.worlds.textcraft import simulator, tasks
from agentgym_envs.worlds.textcraft.expert import plan
from agentgym_envs.worlds.textcraft.recipes import load_table
from agentgym_envs.worlds.textcraft.simulator import understand
from agentgym_envs.worlds.textcraft.tasks import brief

TASKS = text_env(make("agentgym/TextCraft-v0")).tasks


def test_splits_partition_the_goals_by_depth() -> None:
    goals = [task.payload["goal"] for task in TASKS]
    assert sorted(goals) == list(load_table().goals)
    for split, counts in ((TASKS.train, (95, 204, 80, 8)), (TASKS.dev, (15, 19, 13, 0)), (TASKS.test, (34, 57, 23, 3))):
        by_depth = Counter(task.category for task in split)
        assert tuple(by_depth[f"depth-{depth}"] for depth in (1, 2, 3, 4)) == counts


def test_depth_option_filters_tasks_without_changing_them() -> None:
    narrowed = text_env(make("agentgym/TextCraft-v0", depth=(2, 3))).tasks
    assert {task.difficulty for task in narrowed} == {2, 3}
    assert [task for task in TASKS if task.difficulty in (2, 3)] == list(narrowed)
    assert list(text_env(make("agentgym/TextCraft-v0", depth=[4, 4])).tasks.test) == [
        task for task in TASKS.test if task.difficulty == 4
    ]


@pytest.mark.parametrize("depth", [(0, 2), (3, 2), (1, 5), 2, "12", (1, 2, 3), (1.0, 2.0), None])
def test_invalid_depth_is_rejected(depth: Any) -> None:
    with pytest.raises(ValueError, match=r"depth must be a pair \(lo, hi\) with 1 <= lo <= hi <= 4"):
        make("agentgym/TextCraft-v0", depth=depth)


@pytest.mark.parametrize("distractors", [-1, 2.5, "10", True])
def test_invalid_number_of_distractors_is_rejected(distractors: Any) -> None:
    with pytest.raises(ValueError, match="distractors must be a non-negative integer"):
        make("agentgym/TextCraft-v0", distractors=distractors)


@pytest.mark.parametrize("distractors", [0, 1, 10, 25])
def test_first_observation_lists_needed_recipes_and_distractors(distractors: int) -> None:
    recipes = {recipe.line for recipe in load_table().recipes}
    for task in TASKS.test:
        goal = task.payload["goal"]
        head, *lines, blank, last = brief(goal, distractors).text.split("\n")
        assert (head, blank, last) == ("Crafting commands:", "", f"Goal: craft {goal}.")
        needed = {step.recipe.line for step in plan(goal, {}) if step.recipe is not None}
        assert needed <= set(lines) <= recipes
        assert len(lines) == len(set(lines)) == len(needed) + distractors


def test_layouts_of_episodes_differ_by_seed_and_list_what_is_needed() -> None:
    env, plain = (make("agentgym/TextCraft-v0", distractors=4, layout=layout) for layout in ("episode", "task"))
    options = {"task": "textcraft/test/red_sandstone_stairs"}

    def text(env: Any, seed: int | None) -> str:
        return env.reset(seed=seed, options=options)[0]

    drawn = [text(env, seed) for seed in range(8)]
    assert [text(env, seed) for seed in range(8)] == drawn
    assert len({*drawn}) == 8
    assert text(env, 0) != text(env, None)  # the next of the environment's generator
    needed = {step.recipe.line for step in plan("red sandstone stairs", {}) if step.recipe is not None}
    assert all(needed <= {*layout.split("\n")} for layout in drawn)
    assert len({frozenset(layout.split("\n")) for layout in drawn}) > 1  # other distractors, not only another order
    assert {text(plain, seed) for seed in range(8)} == {brief("red sandstone stairs", 4).text}


def test_layout_of_a_drawn_task_is_that_of_the_same_task_and_seed() -> None:
    env = make("agentgym/TextCraft-v0", layout="episode")
    for seed in range(5):
        drawn, info = env.reset(seed=seed)
        assert env.reset(seed=seed, options={"task": info["task_id"]})[0] == drawn
        assert env.reset(options={"task": info["task_id"]})[0] != drawn  # the next of the environment's generator


def test_invalid_layout_is_rejected() -> None:
    with pytest.raises(ValueError, match="layout is 'task' or 'episode', not 'seed'"):
        make("agentgym/TextCraft-v0", layout="seed")


def test_distractors_are_limited_by_the_number_of_recipes() -> None:
    assert brief("stick", 10_000).text.count("\ncraft ") == len(load_table().recipes)


def test_what_a_client_can_make_large_is_not_kept() -> None:
    kept = simulator._cached.cache_info().currsize, tasks._cached.cache_info().currsize
    assert understand("get 1 brick" + " " * 1_000) == understand("get 1" + " " * 1_001 + "brick")
    assert brief("stick", 10_000, 7) == brief("stick", 9_999, 7)
    assert (simulator._cached.cache_info().currsize, tasks._cached.cache_info().currsize) == kept
    assert max(len(recipe.line) for recipe in load_table().recipes) < 256


def test_available_actions_are_listed_recipes_and_ingredients() -> None:
    text, actions = brief("oak door", 3).text, brief("oak door", 3).actions
    assert actions[0] == "inventory"
    assert [action for action in actions if action.startswith("craft")] == text.split("\n")[1:-2]
    gets = [action for action in actions if action.startswith("get")]
    assert {"get 1 oak log", "get 64 oak log"} <= set(gets)
    assert {re.sub(r"get \d+ ", "", action) for action in gets} <= load_table().gathered
    assert len(actions) == len(set(actions))


def test_random_policy_rarely_succeeds() -> None:
    env = make("agentgym/TextCraft-v0", depth=(2, 4))
    successes = 0
    for i, task in enumerate(text_env(env).tasks.test[:40]):
        rng = np.random.default_rng(i)
        _, info = env.reset(options={"task": task.id})
        ended = False
        while not ended:
            actions = info["available_actions"]
            *_, terminated, truncated, info = env.step(actions[int(rng.integers(len(actions)))])
            ended = terminated or truncated
        successes += info["success"]
    assert successes < 4
