"""Plans lead to the goal from wherever one stands, and no shorter plan exists from empty hands."""

from __future__ import annotations

import itertools
from graphlib import CycleError, TopologicalSorter

import numpy as np
import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.worlds.textcraft.expert import plan
from agentgym_envs.worlds.textcraft.recipes import load_table

TABLE = load_table()


def _below(goal: str) -> set[str]:
    """Everything that recipes might make the goal of, itself included."""
    seen, waiting = {goal}, [goal]
    while waiting:
        item = waiting.pop()
        recipes = () if item in TABLE.gathered else TABLE.of[item]
        found = {member for recipe in recipes for ingredient, _ in recipe.using for member in ingredient.members} - seen
        seen |= found
        waiting.extend(found)
    return seen


def _fewest_commands(goal: str, world: set[str]) -> int:
    """Breadth-first search over sets of items. Amounts are left out, so no real plan can be shorter."""

    def within_reach(item: str, held: frozenset[str]) -> bool:
        if item in TABLE.gathered:
            return True
        return any(all(held.intersection(i.members) for i, _ in recipe.using) for recipe in TABLE.of[item])

    level, commands = {frozenset[str]()}, 0
    while not any(goal in held for held in level):
        level = {held | {item} for held in level for item in world - held if within_reach(item, held)}
        commands += 1
    return commands


def test_no_plan_is_longer_than_breadth_first_search_finds() -> None:
    small = [(goal, world) for goal in TABLE.goals if len(world := _below(goal)) <= 10]
    assert len(small) > 350
    for goal, world in small:
        assert len(plan(goal, {})) == _fewest_commands(goal, world), goal


def _has_shorter_plan(goal: str, length: int) -> bool:
    """Exhaustive search backwards: every item needed is provided in every way that recipes and sets leave open."""

    def goes(need: frozenset[str], provided: dict[str, tuple[str, ...]]) -> bool:
        if len(need) + len(provided) >= length:
            return False
        if not need:
            return _is_acyclic(provided)
        item = max(need, key=lambda other: (TABLE.depth[other], other))
        ways: list[tuple[str, ...]] = [()]
        if item not in TABLE.gathered:
            ways = [way for r in TABLE.of[item] for way in itertools.product(*(i.members for i, _ in r.using))]
        return any(goes((need | set(way)) - {item, *provided}, {**provided, item: way}) for way in ways)

    return goes(frozenset({goal}), {})


def _is_acyclic(made_of: dict[str, tuple[str, ...]]) -> bool:
    try:
        TopologicalSorter(made_of).prepare()
    except CycleError:
        return False
    return True


def test_no_goal_has_a_shorter_plan() -> None:
    assert _has_shorter_plan("lectern", 11)
    assert [goal for goal in TABLE.goals if _has_shorter_plan(goal, len(plan(goal, {})))] == []


def test_plans_share_work_between_the_members_of_sets() -> None:
    assert len(plan("barrel", {})) == 4  # planks and slabs of the same wood
    assert len(plan("lectern", {})) == 10


def test_every_goal_is_reached_from_empty_hands() -> None:
    env = make("agentgym/TextCraft-v0")
    world = text_env(env)
    lengths: dict[int, list[int]] = {}
    for task in world.tasks:
        env.reset(options={"task": task.id})
        ended, length = False, 0
        while not ended:
            *_, ended, truncated, info = env.step(world.oracle())
            length += 1
            assert info["valid"] and not truncated
        assert info["success"]
        lengths.setdefault(task.difficulty, []).append(length)
    assert {depth: max(found) for depth, found in lengths.items()} == {1: 4, 2: 6, 3: 11, 4: 11}


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_finds_its_way_from_any_mess(seed: int) -> None:
    world = text_env(make("agentgym/TextCraft-v0"))
    rng = np.random.default_rng(seed)
    for task in world.tasks.train[seed * 40 : seed * 40 + 40]:
        _, info = world.reset(options={"task": task.id})
        ended = False
        for _ in range(100):
            # One command in four is not the oracle's.
            actions = info["available_actions"] if rng.random() < 0.25 else [world.oracle()]
            *_, ended, _, info = world.step(actions[int(rng.integers(len(actions)))])
            if ended:
                break
        assert ended, task.id


def test_what_is_held_is_used() -> None:
    assert plan("stick", {"stick": 1}) == []
    (only,) = plan("crafting table", {"oak planks": 3, "birch planks": 1})
    assert only.command == "craft 1 crafting table using 1 birch planks, 3 oak planks"
