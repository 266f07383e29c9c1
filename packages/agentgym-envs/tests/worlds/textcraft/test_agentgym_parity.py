"""What the original TextCraft carries out is carried out here, but for what docs/compat.md lists."""

from __future__ import annotations

import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.worlds.textcraft.recipes import load_table
from agentgym_textcraft import Original, course

ORIGINAL = Original()


def goes(command: str) -> bool:
    """Whether a world is past `command`: it was carried out."""
    return WORLD.step(command)[-1]["valid"]


WORLD = make("agentgym/TextCraft-v0", max_episode_steps=-1)
IDS = {task.payload["goal"]: task.id for task in text_env(WORLD).tasks}


def test_every_goal_of_both_is_reached_by_the_same_commands() -> None:
    both = [goal for goal in load_table().goals if goal in ORIGINAL.recipes]
    assert len(both) == 547
    refused: dict[str, set[str]] = {"iron ingot": set(), "wooden slabs": set()}
    for goal in both:
        there = Original()
        WORLD.reset(options={"task": IDS[goal]})
        for command in course(goal):
            if not there.say(command):
                (why,) = (name for name in refused if name in command)
                refused[why].add(goal)
                break
            observation, reward, terminated, _, info = WORLD.step(command)
            assert info["valid"], (goal, command, observation)
        else:
            assert (there.held.get(goal, 0) > 0, terminated, reward) == (True, True, 1.0), goal
    assert {why: len(goals) for why, goals in refused.items()} == {"iron ingot": 42, "wooden slabs": 4}


def test_what_is_gathered_only_here_or_only_there() -> None:
    gathered = {name for name in ORIGINAL.names if name not in ORIGINAL.recipes}
    here = load_table().gathered
    assert here - gathered == {"charcoal", "iron ingot", "soul sand", "soul soil"}
    WORLD.reset(options={"task": IDS["cake"]})
    there = {name for name in gathered - here if not goes(f"get 1 {name}")}
    assert there == {"iron nugget", "quartz pillar", "wooden slabs"}


@pytest.mark.parametrize(
    ("commands", "there", "here"),
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
def test_where_they_differ(commands: list[str], there: bool, here: bool) -> None:
    original = Original()
    WORLD.reset(options={"task": IDS["cake"]})
    assert [original.say(command) for command in commands][-1] is there
    assert [goes(command) for command in commands][-1] is here
