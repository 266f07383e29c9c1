"""Tests of the thoughts and plans of BabyAI's expert: they are true and use only what was seen."""

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
LOCATION = re.compile(rf"(?:^|\. )([^.]*?) is {PLACE}\.")
OBJECT_NAME = re.compile(
    r"(?:red|green|blue|purple|yellow|grey) (?:open |closed |locked )?(?:ball|key|box|door) \d+", re.IGNORECASE
)
ENV: Any = BabyAI()


def cell_of(env: Any, forward_steps: str, along: str, side_steps: str, hand: str) -> Cell:
    (x, y), (fx, fy) = env._simulator.position, AHEAD[env._simulator.level.agent_dir]
    forward = int(forward_steps or 0) * (1 if along == "ahead" else -1)
    right = int(side_steps or 0) * (1 if hand == "right" else -1)
    return x + fx * forward - fy * right, y + fy * forward + fx * right


def check_thought(env: Any, thought: str) -> None:
    """Check that named objects are visible, and that locations are correct and were seen."""
    view, simulator, seen = env._view, env._simulator, env._seen
    for name in OBJECT_NAME.findall(thought):
        assert name.lower() in {thing.name for thing in view.things}, thought
    for subject, *place in LOCATION.findall(thought):
        cell = cell_of(env, *place)
        if subject == "The next place that I haven't seen":
            assert cell not in seen
            continue
        assert cell in seen, thought
        if before := re.fullmatch(r"The (.+) I saw before", subject):
            assert kind_of(simulator.at(cell)) == before[1]
            assert cell not in view.cells
        elif subject != "That place":
            assert subject.lower() in {thing.name for thing in view.things if thing.cell == cell}, thought


@pytest.mark.parametrize("level", list(tasks.all_levels()))
def test_thoughts_are_true_and_use_only_what_was_seen(level: str) -> None:
    rng = np.random.default_rng(7)
    task = ENV.tasks[next(i for i in ENV.tasks.train.ids if f"/{level}/" in i)]
    _, info = ENV.reset(options={"task": task.id})
    for _ in range(25):
        thought = ENV.oracle_thought()
        assert thought.startswith("I am to ")
        check_thought(ENV, thought)
        noisy = rng.random() < 0.3
        actions = info["available_actions"]
        *_, ended, truncated, info = ENV.step(actions[rng.integers(len(actions))] if noisy else ENV.oracle())
        if ended or truncated:
            break


def test_thoughts_name_the_actions_object_and_vary() -> None:
    thoughts: list[str] = []
    for task in ENV.tasks.test[::200]:
        over = False
        ENV.reset(options={"task": task.id})
        while not over:
            thought, action = ENV.oracle_thought(), ENV.oracle()
            assert all(name in thought.lower() for name in OBJECT_NAME.findall(action)), (thought, action)
            thoughts.append(thought)
            *_, ended, truncated, _ = ENV.step(action)
            over = ended or truncated
    assert len(set(thoughts)) > 0.6 * len(thoughts)


def test_plan_lists_the_remaining_subgoals() -> None:
    found = 0
    env: Any = BabyAI(levels="GoToSeqS5R2")
    for task in env.tasks.test:
        goal = env.reset(options={"task": task.id})[0].splitlines()[0]
        if " after you " not in goal:
            continue
        found += 1
        *subgoals, now = env.oracle_plan().splitlines()
        assert subgoals[0].startswith("1. Go to ") and now.startswith("Now: ")
        assert subgoals[0].removeprefix("1. Go to ").rstrip(".") in goal.partition(" after you ")[2]
        assert len(subgoals) == goal.count("go to")
        while len(env.oracle_plan().splitlines()) == len(subgoals) + 1:
            env.step(env.oracle())
        assert [row[3:] for row in env.oracle_plan().splitlines()[:-1]] == [row[3:] for row in subgoals[1:]]
        break
    assert found


def test_thoughts_do_not_reveal_the_contents_of_boxes() -> None:
    env: Any = BabyAI(levels="KeyInBox")
    thoughts: set[str] = set()
    for task in env.tasks.train[:5]:
        env.reset(options={"task": task.id})
        while not (action := env.oracle()).startswith("toggle"):
            thoughts.add(env.oracle_thought())
            env.step(action)
        thoughts.add(env.oracle_thought())
    guesses = {thought for thought in thoughts if "key" in thought}
    assert guesses
    unknown = re.compile("I have seen none, but one may be in|I haven't seen a \\w+ key yet")
    assert all(map(unknown.search, guesses))
