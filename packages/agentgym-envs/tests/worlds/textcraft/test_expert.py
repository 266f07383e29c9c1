"""Tests that plans reach the goal from any state, and are shortest from an empty inventory."""

from __future__ import annotations

import itertools
from graphlib import CycleError, TopologicalSorter

import numpy as np
import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.worlds.textcraft.expert import plan
from agentgym_envs.worlds.textcraft.recipes import load_table

TABLE = load_table()


def _possible_ingredients(goal: str) -> set[str]:
    """Return all items that recipes might use for the goal, including the goal."""
    seen, queue = {goal}, [goal]
    while queue:
        item = queue.pop()
        recipes = () if item in TABLE.gathered else TABLE.of[item]
        found = {member for recipe in recipes for ingredient, _ in recipe.using for member in ingredient.members} - seen
        seen |= found
        queue.extend(found)
    return seen


def _fewest_commands(goal: str, items: set[str]) -> int:
    """Breadth-first search over sets of items. Amounts are left out, so no real plan can be shorter."""

    def obtainable(item: str, held: frozenset[str]) -> bool:
        if item in TABLE.gathered:
            return True
        return any(all(held.intersection(i.members) for i, _ in recipe.using) for recipe in TABLE.of[item])

    level, commands = {frozenset[str]()}, 0
    while not any(goal in held for held in level):
        level = {held | {item} for held in level for item in items - held if obtainable(item, held)}
        commands += 1
    return commands


def test_plans_are_as_short_as_breadth_first_search() -> None:
    small = [(goal, items) for goal in TABLE.goals if len(items := _possible_ingredients(goal)) <= 10]
    assert len(small) > 350
    for goal, items in small:
        assert len(plan(goal, {})) == _fewest_commands(goal, items), goal


def _has_shorter_plan(goal: str, length: int) -> bool:
    """Search backwards exhaustively, over all recipes and set members for every item needed."""

    def search(needed: frozenset[str], provided: dict[str, tuple[str, ...]]) -> bool:
        if len(needed) + len(provided) >= length:
            return False
        if not needed:
            return _is_acyclic(provided)
        item = max(needed, key=lambda other: (TABLE.depth[other], other))
        options: list[tuple[str, ...]] = [()]
        if item not in TABLE.gathered:
            options = [option for r in TABLE.of[item] for option in itertools.product(*(i.members for i, _ in r.using))]
        return any(search((needed | set(option)) - {item, *provided}, {**provided, item: option}) for option in options)

    return search(frozenset({goal}), {})


def _is_acyclic(ingredients_of: dict[str, tuple[str, ...]]) -> bool:
    try:
        TopologicalSorter(ingredients_of).prepare()
    except CycleError:
        return False
    return True


def test_exhaustive_search_finds_no_shorter_plan() -> None:
    assert _has_shorter_plan("lectern", 11)
    assert [goal for goal in TABLE.goals if _has_shorter_plan(goal, len(plan(goal, {})))] == []


def test_plans_share_items_between_ingredients() -> None:
    assert len(plan("barrel", {})) == 4  # planks and slabs of the same wood
    assert len(plan("lectern", {})) == 10


def test_oracle_reaches_every_goal() -> None:
    env = make("agentgym/TextCraft-v0")
    oracle = text_env(env)
    lengths: dict[int, list[int]] = {}
    for task in oracle.tasks:
        env.reset(options={"task": task.id})
        ended, length = False, 0
        while not ended:
            *_, ended, truncated, info = env.step(oracle.oracle())
            length += 1
            assert info["valid"] and not truncated
        assert info["success"]
        lengths.setdefault(task.difficulty, []).append(length)
    assert {depth: max(found) for depth, found in lengths.items()} == {1: 4, 2: 6, 3: 11, 4: 11}


@pytest.mark.parametrize("seed", range(4))
def test_oracle_recovers_from_random_actions(seed: int) -> None:
    env = text_env(make("agentgym/TextCraft-v0"))
    rng = np.random.default_rng(seed)
    for task in env.tasks.train[seed * 40 : seed * 40 + 40]:
        _, info = env.reset(options={"task": task.id})
        ended = False
        for _ in range(100):
            # One action in four is random.
            actions = info["available_actions"] if rng.random() < 0.25 else [env.oracle()]
            *_, ended, _, info = env.step(actions[int(rng.integers(len(actions)))])
            if ended:
                break
        assert ended, task.id


def test_plans_use_the_inventory() -> None:
    assert plan("stick", {"stick": 1}) == []
    (only,) = plan("crafting table", {"oak planks": 3, "birch planks": 1})
    assert only.command == "craft 1 crafting table using 1 birch planks, 3 oak planks"
