"""Thoughts count the goals that are reached, repeat what was seen and name nothing that wasn't."""

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


def thought(*left: str, shown: tuple[str, ...] = (ROOM,), asking: bool = False) -> str:
    return Situation(left, PROGRESS, shown, asking).thought()


def test_a_thought_has_the_goal_what_was_seen_and_a_purpose() -> None:
    assert thought("pick up metal pot", "move metal pot to stove", shown=(ROOM, "The cupboard is now open.")) == (
        "Goal 2 of 2: substance is liquid. I have just seen: The cupboard is now open. "
        "I need the metal pot with me. Then I can move metal pot to stove."
    )


def test_nothing_is_named_before_it_was_shown() -> None:
    assert "blast furnace" not in thought("pick up metal pot", "move metal pot to blast furnace")
    way = ("open door to hallway", "go to hallway", "open door to workshop", "go to workshop", "pick up tin")
    assert thought(*way).endswith("My way leads through the door to the hallway, to look for what I need.")
    assert thought(*way, shown=(ROOM, "The hallway: a door to the workshop.", "A cup of tin.")).endswith(
        "My way leads through the door to the hallway and on to the workshop, to pick up tin."
    )
    assert thought("go to hallway", "look around").endswith("My way leads to the hallway, to see what is there.")


def test_a_question_is_answered_with_what_is_meant() -> None:
    question = "Ambiguous request: Please enter the number:\n0:\tmove seed (in jar) to pot 1\n1:\tmove seed to pot 2"
    assert thought("0", shown=(ROOM, question), asking=True).endswith(
        "Of what I am asked I mean: move seed (in jar) to pot 1."
    )


def test_waits_are_counted_and_end_at_what_is_known() -> None:
    waited = ("The stove is now on.", *["You decide to wait for 1 iterations."] * 2)
    assert thought("wait1", "examine metal pot", shown=(ROOM, *waited)).endswith(
        "I have waited 2 times in a row. What goes on here takes time before I can examine metal pot."
    )
    assert thought("wait", "focus on hatchling").endswith("What goes on here takes time.")


def test_actions_without_words_of_their_own_and_no_action_at_all() -> None:
    assert thought("eat apple").endswith("It is time to eat apple.")
    assert thought().endswith("I have done all that I know to do, so I wait.")


def test_a_plan_is_the_goals_that_are_left() -> None:
    plan = Situation(("wait",), PROGRESS, (ROOM,), False).outline()
    assert plan == "2. substance is liquid\nNow: What goes on here takes time."


@pytest.mark.long
def test_thoughts_are_true_of_a_game() -> None:
    world: Any = SciWorld()
    observation, _ = world.reset(options={"task": "sciworld/test/find-non-living-thing/225"})
    said: list[str] = []
    over = False
    while not over:
        thought = world.oracle_thought()
        goals = world._now.progress.partition("Unordered")[0]
        number, total = map(int, re.match(r"Goal (\d) of (\d)", thought).groups())  # type: ignore[union-attr]
        assert (number, total) == (goals.count("\ttrue\t") + 1, len(re.findall(r"\t(?:true|false)\t", goals)))
        if seen := re.search(r"I have just seen: (.+?)\. ", thought):
            assert observation.strip().startswith(seen[1])
        said.append(thought)
        observation, _, over, *_ = world.step(world.oracle())
    world.close()
    assert len(set(said)) == len(said) > 4
