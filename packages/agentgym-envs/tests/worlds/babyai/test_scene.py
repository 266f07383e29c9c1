"""What is drawn is what the simulator has, and what the agent sees is drawn as it says."""

from __future__ import annotations

import re

import pytest
from agentgym_envs.worlds.babyai.env import BabyAI

pytestmark = pytest.mark.quick

TASKS = ("KeyInBox", "UnlockPickup", "GoToRedBall", "PutNextLocal")
_SEEN = re.compile(r"There is a (\w+) (?:(open|closed|locked) )?(\w+) \d+ ")


@pytest.mark.parametrize("level", TASKS)
def test_the_things_in_sight_are_those_the_agent_reads_of(level: str) -> None:
    world = BabyAI(levels=level)
    observation, _ = world.reset(seed=0, options={"task": f"babyai/test/{level}/1000000"})
    over, seen = False, set[tuple[int, ...]]()
    while not over:
        scene = world.scene()
        assert f"Your goal: {scene['mission']}" in observation or seen
        here = (scene["agent"]["x"], scene["agent"]["y"])
        visible = {tuple(cell) for cell in scene["visible"]}
        seen |= visible
        assert {tuple(cell) for cell in scene["seen"]} == seen
        drawn = [
            (thing["colour"], thing.get("state", ""), thing["type"])
            for thing in scene["things"]
            if (thing["x"], thing["y"]) in visible - {here}
        ]
        assert sorted(drawn) == sorted(_SEEN.findall(observation))
        if scene["carrying"] is not None:
            assert f"You are carrying a {scene['carrying']['colour']} {scene['carrying']['type']}." in observation
        observation, _, over, *_ = world.step(world.oracle())


def test_walls_surround_the_grid_and_turning_turns_the_agent() -> None:
    world = BabyAI(levels="GoToRedBall")
    world.reset(seed=0, options={"task": "babyai/test/GoToRedBall/1000000"})
    scene = world.scene()
    right, bottom = scene["width"] - 1, scene["height"] - 1
    edge = {(x, y) for x in range(right + 1) for y in range(bottom + 1) if x in (0, right) or y in (0, bottom)}
    assert {tuple(cell) for cell in scene["walls"]} == edge
    compass = ["right", "down", "left", "up"]
    facing = compass.index(scene["agent"]["direction"])
    world.step("turn right")
    assert world.scene()["agent"]["direction"] == compass[(facing + 1) % 4]


def test_a_box_shows_what_it_holds_and_a_door_whether_it_is_locked() -> None:
    world = BabyAI(levels="KeyInBox")
    world.reset(seed=0, options={"task": "babyai/test/KeyInBox/1000000"})
    things = world.scene()["things"]
    assert [thing["holds"]["type"] for thing in things if thing["type"] == "box"] == ["key"]
    assert "locked" in {thing["state"] for thing in things if thing["type"] == "door"}
