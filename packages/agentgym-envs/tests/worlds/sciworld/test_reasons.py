"""Tests of the thoughts and plans of SciWorld's expert: they count the goals reached and use only what was seen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.reasons import Situation

PROGRESS = """Completed keys:
Sequential Subgoals:
0\ttrue\t    GoalFind\tfocus on substance
1\tfalse\t    GoalChange\tsubstance is liquid
Unordered and Optional Subgoals:
0\tfalse\t    GoalInRoom\tbe in the same place as lead
"""
ROOM = "Your task is to melt lead.\nThis is the kitchen. You see: a metal pot, a stove, a door to the hallway"


def thought(*path: str, shown: tuple[str, ...] = (ROOM,), ambiguous: bool = False) -> str:
    return Situation(path, PROGRESS, shown, ambiguous).thought()


def test_thought_has_goal_observation_and_purpose() -> None:
    assert thought("pick up metal pot", "move metal pot to stove", shown=(ROOM, "The cupboard is now open.")) == (
        "Goal 2 of 2: substance is liquid. I have just seen: The cupboard is now open. "
        "I need the metal pot with me. Then I can move metal pot to stove."
    )


def test_thoughts_name_only_what_was_shown() -> None:
    assert "blast furnace" not in thought("pick up metal pot", "move metal pot to blast furnace")
    path = ("open door to hallway", "go to hallway", "open door to workshop", "go to workshop", "pick up tin")
    assert thought(*path).endswith("My way leads through the door to the hallway, to look for what I need.")
    assert thought(*path, shown=(ROOM, "The hallway: a door to the workshop.", "A cup of tin.")).endswith(
        "My way leads through the door to the hallway and on to the workshop, to pick up tin."
    )
    assert thought("go to hallway", "look around").endswith("My way leads to the hallway, to see what is there.")


def test_ambiguity_is_resolved_with_the_intended_action() -> None:
    question = "Ambiguous request: Please enter the number:\n0:\tmove seed (in jar) to pot 1\n1:\tmove seed to pot 2"
    assert thought("0", shown=(ROOM, question), ambiguous=True).endswith(
        "Of what I am asked I mean: move seed (in jar) to pot 1."
    )


def test_waits_are_counted_and_name_only_known_objects() -> None:
    observations = ("The stove is now on.", *["You decide to wait for 1 iterations."] * 2)
    assert thought("wait1", "examine metal pot", shown=(ROOM, *observations)).endswith(
        "I have waited 2 times in a row. What goes on here takes time before I can examine metal pot."
    )
    assert thought("wait", "focus on hatchling").endswith("What goes on here takes time.")


def test_thought_for_other_actions_and_for_none() -> None:
    assert thought("eat apple").endswith("It is time to eat apple.")
    assert thought().endswith("I have done all that I know to do, so I wait.")


def test_plan_lists_the_remaining_goals() -> None:
    plan = Situation(("wait",), PROGRESS, (ROOM,), False).outline()
    assert plan == "2. substance is liquid\nNow: What goes on here takes time."


@pytest.mark.long
def test_thoughts_match_the_progress_of_an_episode() -> None:
    env: Any = SciWorld()
    observation, _ = env.reset(options={"task": "sciworld/test/find-non-living-thing/225"})
    thoughts: list[str] = []
    over = False
    while not over:
        thought = env.oracle_thought()
        goals = env._now.progress.partition("Unordered")[0]
        number, total = map(int, re.match(r"Goal (\d) of (\d)", thought).groups())  # type: ignore[union-attr]
        assert (number, total) == (goals.count("\ttrue\t") + 1, len(re.findall(r"\t(?:true|false)\t", goals)))
        if seen := re.search(r"I have just seen: (.+?)\. ", thought):
            assert observation.strip().startswith(seen[1])
        thoughts.append(thought)
        observation, _, over, *_ = env.step(env.oracle())
    env.close()
    assert len(set(thoughts)) == len(thoughts) > 4
