"""What the expert says of a plan is what the plan and the inventory are."""

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


def amounts(listed: str) -> dict[str, int]:
    """`3 stick and 1 coal` as data."""
    parts = re.split(r", | and (?=\d)", listed)
    return {item: int(amount) for amount, _, item in (part.partition(" ") for part in parts)}


def check(thought: str, action: str, held: dict[str, int]) -> None:
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
        using = amounts(action.partition(" using ")[2])
        said = amounts(HAVE.search(thought)[1])  # type: ignore[index]
        assert said == {name: held[name] for name in using}


def thoughts(world: Any, task: str, noise: float = 0.0) -> list[str]:
    rng, said = np.random.default_rng(1), list[str]()
    _, info = world.reset(options={"task": task})
    for _ in range(60):
        held = info["raw"]["inventory"]
        action = world.oracle()
        if rng.random() < noise:
            action = info["available_actions"][int(rng.integers(len(info["available_actions"])))]
        else:
            said.append(world.oracle_thought())
            check(said[-1], action, held)
        *_, ended, _, info = world.step(action)
        if ended:
            break
    return said


def test_thoughts_are_true_and_name_what_is_done() -> None:
    world = text_env(make("agentgym/TextCraft-v0"))
    said = [thought for task in world.tasks.test for thought in thoughts(world, task.id)]
    assert len(said) > 300
    assert len(set(said)) > 0.8 * len(said)


def test_thoughts_are_true_in_any_mess() -> None:
    world = text_env(make("agentgym/TextCraft-v0"))
    assert all(thoughts(world, task.id, noise=0.4) for task in world.tasks.train[:60])


def test_a_plan_in_words_is_the_plan() -> None:
    world = text_env(make("agentgym/TextCraft-v0", depth=(3, 4)))
    for task in world.tasks.test:
        world.reset(options={"task": task.id})
        goal, *rows = world.oracle_plan().splitlines()
        assert goal == f"The goal is {task.payload['goal']}. I have nothing."
        ended = False
        for number, row in enumerate(rows, 1):
            index, verb, what = row.removesuffix(".").split(maxsplit=2)
            assert index == f"{number}."
            for amount, item in ((n, i) for i, n in amounts(what.partition(" from ")[0]).items()):
                words = {"Gather": f"get {amount} {item}", "Craft": f"craft {amount} {item} using "}[verb]
                assert world.oracle().startswith(words)
                ended = world.step(world.oracle())[2]
        assert ended


def test_what_is_held_is_not_planned_again() -> None:
    world = text_env(make("agentgym/TextCraft-v0"))
    world.reset(options={"task": "textcraft/test/white_banner"})
    for action in ("get 24 string", "craft 5 white wool using 20 string"):
        world.step(action)
    assert world.oracle_thought() == ("To craft 1 stick I need 2 bamboo and have 0. It can be gathered.")
    assert world.oracle_plan().splitlines() == [
        "The goal is white banner. I have 4 string and 5 white wool.",
        "1. Gather 2 bamboo.",
        "2. Craft 1 white wool from 4 string.",
        "3. Craft 1 stick from 2 bamboo.",
        "4. Craft 1 white banner from 1 stick and 6 white wool.",
    ]
