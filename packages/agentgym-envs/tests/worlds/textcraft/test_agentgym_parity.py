"""Tests that we carry out the same commands as the original TextCraft, except for those listed in docs/compat.md."""

from __future__ import annotations

import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.worlds.textcraft.recipes import load_table
from agentgym_textcraft import Original, original_commands

ORIGINAL = Original()


def is_valid(command: str) -> bool:
    """Return whether our environment carries out `command`."""
    return ENV.step(command)[-1]["valid"]


ENV = make("agentgym/TextCraft-v0", max_episode_steps=-1)
IDS = {task.payload["goal"]: task.id for task in text_env(ENV).tasks}


def test_common_goals_are_reached_by_the_same_commands() -> None:
    common = [goal for goal in load_table().goals if goal in ORIGINAL.recipes]
    assert len(common) == 547
    refused: dict[str, set[str]] = {"iron ingot": set(), "wooden slabs": set()}
    for goal in common:
        original = Original()
        ENV.reset(options={"task": IDS[goal]})
        for command in original_commands(goal):
            if not original.step(command):
                (item,) = (name for name in refused if name in command)
                refused[item].add(goal)
                break
            observation, reward, terminated, _, info = ENV.step(command)
            assert info["valid"], (goal, command, observation)
        else:
            assert (original.inventory.get(goal, 0) > 0, terminated, reward) == (True, True, 1.0), goal
    assert {item: len(goals) for item, goals in refused.items()} == {"iron ingot": 42, "wooden slabs": 4}


def test_items_that_only_one_side_can_gather() -> None:
    gathered = {name for name in ORIGINAL.names if name not in ORIGINAL.recipes}
    ours = load_table().gathered
    assert ours - gathered == {"charcoal", "iron ingot", "soul sand", "soul soil"}
    ENV.reset(options={"task": IDS["cake"]})
    only_original = {name for name in gathered - ours if not is_valid(f"get 1 {name}")}
    assert only_original == {"iron nugget", "quartz pillar", "wooden slabs"}


@pytest.mark.parametrize(
    ("commands", "in_original", "in_ours"),
    [
        (["get 1 oak logs", "craft 4 oak planks using 1 oak logs"], True, True),
        (["get 1 oak log", "craft 4 oak planks using 1 oak log"], False, True),
        (["get 1 oak logs", "craft 4 oak planks using 1 oak log"], False, True),
        (["get 2 oak logs", "craft 8 oak planks using 2 oak logs"], False, True),
        (["get 1 oak logs", "craft 1 oak planks using 1 oak logs"], True, False),
        (["get 1 oak logs", "craft oak planks using 1 oak logs"], True, False),
        (["get 1 oak logs", "craft 4 oak planks using 1 oak logs", "craft 4 stick using 2 planks"], False, True),
        (["get 3 sand\nget 1 clay"], True, False),
        (["inventory of mine"], True, False),
    ],
)
def test_known_differences_from_the_original(commands: list[str], in_original: bool, in_ours: bool) -> None:
    original = Original()
    ENV.reset(options={"task": IDS["cake"]})
    assert [original.step(command) for command in commands][-1] is in_original
    assert [is_valid(command) for command in commands][-1] is in_ours
