"""Tests that the thoughts and plans of TextCraft's expert match its plan and the inventory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.worlds.textcraft.recipes import load_table

pytestmark = pytest.mark.quick

NEED = re.compile(
    r"To craft (?P<takers>.+?) I need (?P<need>\d+) (?P<item>.+?)(?: \(as .+?\))? and have (?P<have>\d+)\."
)
HAVE = re.compile(r", and I have (.+)\.$")
ITEMS = sorted(load_table().items, key=len, reverse=True)


def parse_amounts(listed: str) -> dict[str, int]:
    """Parse text such as `3 stick and 1 coal`."""
    parts = re.split(r", | and (?=\d)", listed)
    return {item: int(amount) for amount, _, item in (part.partition(" ") for part in parts)}


def check_thought(thought: str, action: str, held: dict[str, int]) -> None:
    verb, amount, item = re.match(r"(get|craft) (\d+) (.+?)(?: using|$)", action).groups()  # type: ignore[union-attr]
    if need := NEED.match(thought):
        assert need["item"] == item
        assert int(need["have"]) == held.get(item, 0)
        assert int(need["need"]) <= held.get(item, 0) + int(amount)
    else:
        assert thought.startswith(f"That leaves the goal, {item}. ")
    if verb == "get":
        assert thought.endswith("It can be gathered.")
    else:
        using = parse_amounts(action.partition(" using ")[2])
        stated = parse_amounts(HAVE.search(thought)[1])  # type: ignore[index]
        assert stated == {name: held[name] for name in using}


def play(env: Any, task: str, noise: float = 0.0) -> list[str]:
    rng, thoughts = np.random.default_rng(1), list[str]()
    _, info = env.reset(options={"task": task})
    for _ in range(60):
        held = info["raw"]["inventory"]
        action = env.oracle()
        if rng.random() < noise:
            action = info["available_actions"][int(rng.integers(len(info["available_actions"])))]
        else:
            thoughts.append(env.oracle_thought())
            check_thought(thoughts[-1], action, held)
        *_, ended, _, info = env.step(action)
        if ended:
            break
    return thoughts


def test_thoughts_match_actions_and_inventory() -> None:
    env = text_env(make("agentgym/TextCraft-v0"))
    thoughts = [thought for task in env.tasks.test for thought in play(env, task.id)]
    assert len(thoughts) > 300
    assert len(set(thoughts)) > 0.8 * len(thoughts)


def test_thoughts_are_true_after_random_actions() -> None:
    env = text_env(make("agentgym/TextCraft-v0"))
    assert all(play(env, task.id, noise=0.4) for task in env.tasks.train[:60])


def test_plan_text_matches_the_actions() -> None:
    env = text_env(make("agentgym/TextCraft-v0", depth=(3, 4)))
    for task in env.tasks.test:
        env.reset(options={"task": task.id})
        goal, *rows = env.oracle_plan().splitlines()
        assert goal == f"The goal is {task.payload['goal']}. I have nothing."
        ended = False
        for number, row in enumerate(rows, 1):
            index, verb, items = row.removesuffix(".").split(maxsplit=2)
            assert index == f"{number}."
            for amount, item in ((n, i) for i, n in parse_amounts(items.partition(" from ")[0]).items()):
                words = {"Gather": f"get {amount} {item}", "Craft": f"craft {amount} {item} using "}[verb]
                assert env.oracle().startswith(words)
                ended = env.step(env.oracle())[2]
        assert ended


def test_plan_text_accounts_for_the_inventory() -> None:
    env = text_env(make("agentgym/TextCraft-v0"))
    env.reset(options={"task": "textcraft/test/white_banner"})
    for action in ("get 24 string", "craft 5 white wool using 20 string"):
        env.step(action)
    assert env.oracle_thought() == ("To craft 1 stick I need 2 bamboo and have 0. It can be gathered.")
    assert env.oracle_plan().splitlines() == [
        "The goal is white banner. I have 4 string and 5 white wool.",
        "1. Gather 2 bamboo.",
        "2. Craft 1 white wool from 4 string.",
        "3. Craft 1 stick from 2 bamboo.",
        "4. Craft 1 white banner from 1 stick and 6 white wool.",
    ]
