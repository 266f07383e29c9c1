"""Tests of the recipe table: its size, and properties that the rules and the planner depend on."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from agentgym_envs.worlds.textcraft.recipes import load_table

pytestmark = pytest.mark.quick

TABLE = load_table()


def test_table_has_all_goals_of_minecraft_1_16_by_depth() -> None:
    assert len(TABLE.recipes) == 626
    assert len(TABLE.sets) == 28
    assert Counter(TABLE.depth[goal] for goal in TABLE.goals) == {1: 144, 2: 280, 3: 116, 4: 11}
    assert len(TABLE.of) == 562
    assert len(TABLE.of.keys() & TABLE.gathered) == 11


def test_sets_accept_all_members_and_aliases() -> None:
    (stick_of_planks,) = (r for r in TABLE.of["stick"] if r.count == 4)
    ((planks, amount),) = stick_of_planks.using
    assert amount == 2
    assert planks.members == tuple(
        f"{w} planks" for w in ["acacia", "birch", "crimson", "dark oak", "jungle", "oak", "spruce", "warped"]
    )
    assert "oak logs" in next(i for i, _ in TABLE.of["campfire"][0].using if i.name == "logs").accepts


def test_ingredients_of_a_recipe_share_no_items() -> None:
    for recipe in TABLE.recipes:
        for (one, _), (other, _) in combinations(recipe.using, 2):
            assert not one.accepts & other.accepts, recipe.line


def test_set_names_differ_from_item_names() -> None:
    assert not TABLE.sets.keys() & TABLE.items


def test_recipe_line_is_its_crafting_command() -> None:
    assert TABLE.of["oak door"][0].line == "craft 3 oak door using 6 oak planks"
    assert TABLE.of["torch"][0].line == "craft 4 torch using 1 charcoal or coal, 1 stick"
