"""Tests of names in place of ids: translation of actions in both directions, hints, and episodes played by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import pytest
from agentgym_envs.core.action_schema import action_of, call_for
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.page.element_names import ElementNames, without_ids
from agentgym_envs.worlds.webarena.page.snapshot import Snapshot


@dataclass(frozen=True)
class _Node:
    id: int
    role: str
    name: str


PAGE = ElementNames(
    cast(
        "Snapshot",
        type(
            "Page",
            (),
            {
                "nodes": [
                    _Node(1, "RootWebArea", "Notes"),
                    _Node(2, "button", "Save"),
                    _Node(3, "textbox", ""),
                    _Node(4, "textbox", ""),
                    _Node(5, "link", 'It\'s [3] "here"'),
                    _Node(6, "button", "Save"),
                    _Node(7, "textbox", ""),
                ]
            },
        )(),
    )
)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("by_id", "by_name"),
    [
        ("click [2]", "click [button 'Save']"),
        ("click [6]", "click [button 'Save' #2]"),
        ("double_click [2]", "double_click [button 'Save']"),
        ("hover [5]", r"""hover [link 'It\'s [3] "here"']"""),
        ("type [7] [2] [0]", "type [textbox '' #3] [2] [0]"),
        ("type [3] [click [2]]", "type [textbox ''] [click [2]]"),
        ("select_option [4] [2]", "select_option [textbox '' #2] [2]"),
        ("select_text [2] [some]", "select_text [button 'Save'] [some]"),
        ("scroll [down] [2]", "scroll [down] [button 'Save']"),
        ("drag [2] [6]", "drag [button 'Save'] [button 'Save' #2]"),
        ("drag [2] [120,45]", "drag [button 'Save'] [120,45]"),
        ("drag [120,45] [2]", "drag [120,45] [button 'Save']"),
    ],
)
def test_actions_on_elements_are_written_with_names_and_read_back(by_id: str, by_name: str) -> None:
    assert PAGE.with_names(by_id) == by_name
    assert PAGE.with_ids(by_name) == by_id


@pytest.mark.quick
@pytest.mark.parametrize(
    "action", ["stop [2]", "tab_focus [2]", "wait [2]", "press [2]", "goto [2]", "scroll [down]", "click [120,45]"]
)
def test_other_numbers_stay_as_they_are(action: str) -> None:
    assert PAGE.with_names(action) == PAGE.with_ids(action) == action


@pytest.mark.quick
@pytest.mark.parametrize("answer", ["stop [click [button 'Save']]", "type [3] [button 'Save']"])
def test_a_name_in_what_is_said_or_typed_stays_as_it_is(answer: str) -> None:
    assert PAGE.with_ids(answer) == answer


@pytest.mark.quick
@pytest.mark.parametrize(
    "written",
    ["CLICK [button 'Save' #2]", "`click [ button 'Save' #2 ]`", "I save: ```click [button 'Save' #2]```"],
)
def test_spellings_of_the_grammar_are_accepted(written: str) -> None:
    assert PAGE.with_ids(written) == re.sub(r"\[.*\]", "[6]", written)


@pytest.mark.quick
def test_an_unknown_name_is_told_with_the_nearest_one() -> None:
    with pytest.raises(LookupError, match=r"no element \[button 'Safe'\].*Did you mean \[button 'Save'\]\?"):
        PAGE.with_ids("click [button 'Safe']")
    with pytest.raises(LookupError, match=r"no element \[button 'Save' #3\]"):
        PAGE.with_ids("drag [button 'Save'] [button 'Save' #3]")


@pytest.mark.quick
def test_sentences_for_the_agent_have_no_ids() -> None:
    refused = "[2] button 'Save' can't be reached: [5] dialog 'Cookies' is in front of it."
    assert without_ids(refused) == "button 'Save' can't be reached: dialog 'Cookies' is in front of it."
    incomplete = "'click Save' is not complete or has something left over; write click [id], such as click [12]."
    assert without_ids(incomplete) == incomplete.replace("[id], such as click [12]", "[role 'name']")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "problem"), [({"elements": "both"}, "'ids' or 'names'"), ({"marks": True, "screenshot": True}, "Marks")]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        WebArena(**{"elements": "names"} | options)


@pytest.mark.quick
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
    [({"templates": "shop/reorder"}, 1), ({"skin": "rough"}, 3)],
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
