"""Tests that the tree in TextCraft's scenes matches the expert's remaining plan."""

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


def start_env(task: str) -> TextCraft:
    env = TextCraft()
    env.reset(options={"task": task})
    return env


@pytest.mark.parametrize("task", TextCraft().tasks.test.ids[:12])
def test_tree_has_each_remaining_command_once(task: str) -> None:
    env, over = start_env(task), False
    commands, remaining = list[str](), list[set[str]]()
    while not over:
        scene = env.scene()
        missing = [node for node in nodes(scene["tree"]) if node["missing"] and not node.get("shared")]
        assert len({node["item"] for node in missing}) == len(missing)
        remaining.append({node["command"] for node in missing})
        commands.append(env.oracle())
        _, _, over, _, info = env.step(commands[-1])
        assert env.scene()["inventory"] == info["raw"]["inventory"]
    assert remaining == [set(commands[i:]) for i in range(len(commands))]
    tree = env.scene()["tree"]
    assert (tree["held"] > 0, tree["missing"], "parts" in tree) == (True, 0, False)


def test_tree_shows_held_and_missing_amounts() -> None:
    env = start_env("textcraft/train/stick")
    env.step("get 1 bamboo")
    tree = env.scene()["tree"]
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


def test_shared_items_have_parts_only_once() -> None:
    scenes = (start_env(task).scene() for task in TextCraft().tasks.train.ids[:200])
    shared = [node for scene in scenes for node in nodes(scene["tree"]) if node.get("shared")]
    assert shared
    assert all("parts" not in node and node["missing"] for node in shared)
