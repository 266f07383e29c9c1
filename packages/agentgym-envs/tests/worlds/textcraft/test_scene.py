"""The tree of a goal shows what the expert's plan does, and falls together as things are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agentgym_envs.worlds.textcraft.env import TextCraft

pytestmark = pytest.mark.quick


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for part in node.get("parts", ()):
        yield from nodes(part)


def begun(task: str) -> TextCraft:
    world = TextCraft()
    world.reset(options={"task": task})
    return world


@pytest.mark.parametrize("task", TextCraft().tasks.test.ids[:12])
def test_the_tree_holds_each_command_that_is_left_once(task: str) -> None:
    world, over = begun(task), False
    commands, left = list[str](), list[set[str]]()
    while not over:
        scene = world.scene()
        drawn = [node for node in nodes(scene["tree"]) if node["missing"] and not node.get("shared")]
        assert len({node["item"] for node in drawn}) == len(drawn)
        left.append({node["command"] for node in drawn})
        commands.append(world.oracle())
        _, _, over, _, info = world.step(commands[-1])
        assert world.scene()["inventory"] == info["raw"]["inventory"]
    assert left == [set(commands[at:]) for at in range(len(commands))]
    tree = world.scene()["tree"]
    assert (tree["held"] > 0, tree["missing"], "parts" in tree) == (True, 0, False)


def test_what_is_held_has_no_parts_and_what_is_missing_says_how_many() -> None:
    world = begun("textcraft/train/stick")
    world.step("get 1 bamboo")
    tree = world.scene()["tree"]
    assert (tree["item"], tree["missing"], tree["crafted"]) == ("stick", 1, True)
    (bamboo,) = tree["parts"]
    assert bamboo == {
        "item": "bamboo",
        "amount": 2,
        "held": 1,
        "missing": 1,
        "command": "get 1 bamboo",
        "crafted": False,
        "parts": [],
    }


def test_an_item_that_several_take_has_its_parts_once() -> None:
    scenes = (begun(task).scene() for task in TextCraft().tasks.train.ids[:200])
    shared = [node for scene in scenes for node in nodes(scene["tree"]) if node.get("shared")]
    assert shared
    assert all("parts" not in node and node["missing"] for node in shared)
