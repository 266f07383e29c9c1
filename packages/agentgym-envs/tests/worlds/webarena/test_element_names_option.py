"""Tests of `elements="names"`: its options, functions and episodes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from agentgym_envs.core.action_schema import action_of, call_for
from agentgym_envs.worlds.webarena.env import WebArena


@pytest.mark.parametrize(
    ("options", "problem"), [({"elements": "both"}, "'ids' or 'names'"), ({"marks": True, "screenshot": True}, "Marks")]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        WebArena(**{"elements": "names"} | options)


def test_functions_take_names() -> None:
    functions = WebArena(elements="names").functions
    for action in (
        "click [button 'Save']",
        "type [textbox '' #2] [a] [0]",
        "drag [link 'A'] [link 'B']",
        "click [1,2]",
    ):
        call = call_for(functions, action)
        assert call.name == action.split()[0]
        assert action_of(functions, call) == action
    schema = functions[0].schema["function"]["parameters"]["properties"]["id"]
    assert schema["type"] == "string"
    assert "name" in schema["description"]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({"templates": "shop/reorder"}, 1), pytest.param({"skin": "rough"}, 3, marks=pytest.mark.long)],
)
def test_the_oracle_reaches_the_goal_by_names(options: dict[str, Any], tasks: int) -> None:
    env = WebArena(elements="names", **options)
    try:
        for task in env.tasks.split("test")[:tasks]:
            observation, info = env.reset(options={"task": task.id})
            assert "click [button 'Save']" in env.instructions
            for _ in range(40):
                assert not re.search(r"^\t*\[\d+\] ", observation, re.MULTILINE)
                action = env.oracle()
                assert not re.match(r"(click|type|hover|select_option) \[\d+\]", action)
                observation, _, terminated, truncated, info = env.step(action)
                assert info["valid"]
                if terminated or truncated:
                    break
                assert f"PREVIOUS ACTION: {action[:900]}" in observation
            assert info["success"], task.id
    finally:
        env.close()


@pytest.mark.long
def test_boxes_on_a_screenshot_have_names() -> None:
    env = WebArena(elements="names", screenshot=True)
    try:
        observation, info = env.reset()
        lines = {line.strip() for line in observation.splitlines()}
        first = next(action for action in info["available_actions"] if action.startswith("click [link '"))
        name = first.removeprefix("click [").removesuffix("]")
        left, top, right, bottom = info["element_boxes"][name]
        assert 0 <= left < right <= 1280
        assert 0 <= top < bottom <= 720
        assert any(line.startswith(name) for line in lines)
        assert not any(key.isdecimal() for key in info["element_boxes"])
    finally:
        env.close()


@pytest.mark.long
def test_a_name_that_the_page_does_not_have_is_an_invalid_action() -> None:
    env = WebArena(elements="names")
    try:
        before, _ = env.reset()
        observation, _, _, _, info = env.step("click [button 'No such thing']")
        assert not info["valid"]
        assert "There is no element [button 'No such thing']" in observation
        assert observation.startswith(before.split("\nURL:")[0])
        candidates = info["available_actions"]
        assert any(action.startswith("click [link '") for action in candidates)
    finally:
        env.close()
