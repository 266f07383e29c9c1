"""What the expert says of things and places is so, and was seen."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from agentgym_envs.worlds.babyai import tasks
from agentgym_envs.worlds.babyai.env import BabyAI
from agentgym_envs.worlds.babyai.simulator import AHEAD, Cell
from agentgym_envs.worlds.babyai.view import kind_of

pytestmark = pytest.mark.quick

PLACE = r"(?:(\d+) steps? (ahead|behind me))?(?: and )?(?:(\d+)(?: steps?)? to my (left|right))?"
IS = re.compile(rf"(?:^|\. )([^.]*?) is {PLACE}\.")
IN_SIGHT = re.compile(
    r"(?:red|green|blue|purple|yellow|grey) (?:open |closed |locked )?(?:ball|key|box|door) \d+", re.IGNORECASE
)
WORLD: Any = BabyAI()


def cell_of(world: Any, depth: str, along: str, side: str, hand: str) -> Cell:
    (x, y), (fx, fy) = world._simulator.position, AHEAD[world._simulator.level.agent_dir]
    forward = int(depth or 0) * (1 if along == "ahead" else -1)
    right = int(side or 0) * (1 if hand == "right" else -1)
    return x + fx * forward - fy * right, y + fy * forward + fx * right


def check(world: Any, thought: str) -> None:
    """Names in sight are in sight, and what lies somewhere lies there and was seen."""
    view, simulator, seen = world._view, world._simulator, world._seen
    for name in IN_SIGHT.findall(thought):
        assert name.lower() in {thing.name for thing in view.things}, thought
    for what, *place in IS.findall(thought):
        cell = cell_of(world, *place)
        if what == "The next place that I haven't seen":
            assert cell not in seen
            continue
        assert cell in seen, thought
        if before := re.fullmatch(r"The (.+) I saw before", what):
            assert kind_of(simulator.at(cell)) == before[1]
            assert cell not in view.cells
        elif what != "That place":
            assert what.lower() in {thing.name for thing in view.things if thing.cell == cell}, thought


@pytest.mark.parametrize("level", list(tasks.all_levels()))
def test_thoughts_are_true_and_of_what_was_seen(level: str) -> None:
    rng = np.random.default_rng(7)
    task = WORLD.tasks[next(i for i in WORLD.tasks.train.ids if f"/{level}/" in i)]
    _, info = WORLD.reset(options={"task": task.id})
    for _ in range(25):
        thought = WORLD.oracle_thought()
        assert thought.startswith("I am to ")
        check(WORLD, thought)
        noisy = rng.random() < 0.3
        actions = info["available_actions"]
        *_, ended, truncated, info = WORLD.step(actions[rng.integers(len(actions))] if noisy else WORLD.oracle())
        if ended or truncated:
            break


def test_thoughts_name_the_thing_of_the_action_and_differ() -> None:
    said: list[str] = []
    for task in WORLD.tasks.test[::200]:
        over = False
        WORLD.reset(options={"task": task.id})
        while not over:
            thought, action = WORLD.oracle_thought(), WORLD.oracle()
            assert all(name in thought.lower() for name in IN_SIGHT.findall(action)), (thought, action)
            said.append(thought)
            *_, ended, truncated, _ = WORLD.step(action)
            over = ended or truncated
    assert len(set(said)) > 0.6 * len(said)


def test_the_plan_is_the_deeds_that_are_left() -> None:
    found = 0
    world: Any = BabyAI(levels="GoToSeqS5R2")
    for task in world.tasks.test:
        goal = world.reset(options={"task": task.id})[0].splitlines()[0]
        if " after you " not in goal:
            continue
        found += 1
        *deeds, now = world.oracle_plan().splitlines()
        assert deeds[0].startswith("1. Go to ") and now.startswith("Now: ")
        assert deeds[0].removeprefix("1. Go to ").rstrip(".") in goal.partition(" after you ")[2]
        assert len(deeds) == goal.count("go to")
        while len(world.oracle_plan().splitlines()) == len(deeds) + 1:
            world.step(world.oracle())
        assert [row[3:] for row in world.oracle_plan().splitlines()[:-1]] == [row[3:] for row in deeds[1:]]
        break
    assert found


def test_no_thought_knows_what_is_in_a_box() -> None:
    world: Any = BabyAI(levels="KeyInBox")
    thoughts: set[str] = set()
    for task in world.tasks.train[:5]:
        world.reset(options={"task": task.id})
        while not (action := world.oracle()).startswith("toggle"):
            thoughts.add(world.oracle_thought())
            world.step(action)
        thoughts.add(world.oracle_thought())
    guesses = {thought for thought in thoughts if "key" in thought}
    assert guesses
    unknown = re.compile("I have seen none, but one may be in|I haven't seen a \\w+ key yet")
    assert all(map(unknown.search, guesses))
