"""Tests of BabyAI's scenes: they match the simulator's state and the observations."""

from __future__ import annotations

import re

import pytest
from agentgym_envs.worlds.babyai.env import BabyAI

pytestmark = pytest.mark.quick

LEVELS = ("KeyInBox", "UnlockPickup", "GoToRedBall", "PutNextLocal")
_OBSERVED = re.compile(r"There is a (\w+) (?:(open|closed|locked) )?(\w+) \d+ ")


@pytest.mark.parametrize("level", LEVELS)
def test_visible_objects_match_the_observation(level: str) -> None:
    env = BabyAI(levels=level)
    observation, _ = env.reset(seed=0, options={"task": f"babyai/test/{level}/1000000"})
    over, seen = False, set[tuple[int, ...]]()
    while not over:
        scene = env.scene()
        assert f"Your goal: {scene['mission']}" in observation or seen
        agent_cell = (scene["agent"]["x"], scene["agent"]["y"])
        visible = {tuple(cell) for cell in scene["visible"]}
        seen |= visible
        assert {tuple(cell) for cell in scene["seen"]} == seen
        drawn = [
            (thing["colour"], thing.get("state", ""), thing["type"])
            for thing in scene["things"]
            if (thing["x"], thing["y"]) in visible - {agent_cell}
        ]
        assert sorted(drawn) == sorted(_OBSERVED.findall(observation))
        if scene["carrying"] is not None:
            assert f"You are carrying a {scene['carrying']['colour']} {scene['carrying']['type']}." in observation
        observation, _, over, *_ = env.step(env.oracle())


def test_scene_has_surrounding_walls_and_the_agents_direction() -> None:
    env = BabyAI(levels="GoToRedBall")
    env.reset(seed=0, options={"task": "babyai/test/GoToRedBall/1000000"})
    scene = env.scene()
    right, bottom = scene["width"] - 1, scene["height"] - 1
    edge = {(x, y) for x in range(right + 1) for y in range(bottom + 1) if x in (0, right) or y in (0, bottom)}
    assert {tuple(cell) for cell in scene["walls"]} == edge
    compass = ["right", "down", "left", "up"]
    facing = compass.index(scene["agent"]["direction"])
    env.step("turn right")
    assert env.scene()["agent"]["direction"] == compass[(facing + 1) % 4]


def test_scene_shows_box_contents_and_locked_doors() -> None:
    env = BabyAI(levels="KeyInBox")
    env.reset(seed=0, options={"task": "babyai/test/KeyInBox/1000000"})
    things = env.scene()["things"]
    assert [thing["holds"]["type"] for thing in things if thing["type"] == "box"] == ["key"]
    assert "locked" in {thing["state"] for thing in things if thing["type"] == "door"}
