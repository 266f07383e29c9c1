"""Tests of names in place of ids: translation of actions in both directions, and hints."""

from __future__ import annotations

import re

import pytest
from agentgym_envs.worlds.webarena.page.element_names import ElementNames, without_ids
from agentgym_envs.worlds.webarena.page.snapshot import Node
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def _node(id: int, role: str, name: str) -> Node:
    return Node(id, role, name, (), depth=0, parent=None, box=None, seen=None, backend_id=id, frame="", place="hidden")


PAGE = ElementNames(
    [
        _node(1, "RootWebArea", "Notes"),
        _node(2, "button", "Save"),
        _node(3, "textbox", ""),
        _node(4, "textbox", ""),
        _node(5, "link", 'It\'s [3] "here"'),
        _node(6, "button", "Save"),
        _node(7, "textbox", ""),
    ]
)


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


@pytest.mark.parametrize(
    "action", ["stop [2]", "tab_focus [2]", "wait [2]", "press [2]", "goto [2]", "scroll [down]", "click [120,45]"]
)
def test_other_numbers_stay_as_they_are(action: str) -> None:
    assert PAGE.with_names(action) == PAGE.with_ids(action) == action


@pytest.mark.parametrize("answer", ["stop [click [button 'Save']]", "type [3] [button 'Save']"])
def test_a_name_in_what_is_said_or_typed_stays_as_it_is(answer: str) -> None:
    assert PAGE.with_ids(answer) == answer


@given(st.lists(st.text(max_size=20), min_size=1, max_size=6))
def test_any_names_of_elements_are_read_back(names: list[str]) -> None:
    page = ElementNames([_node(number, "link", name) for number, name in enumerate(names, 1)])
    for id in range(1, len(names) + 1):
        for action in (f"click [{id}]", f"type [{id}] [[1] 'x' #2] [0]", f"drag [{id}] [1]"):
            assert page.with_ids(page.with_names(action)) == action


@pytest.mark.parametrize(
    "written",
    ["CLICK [button 'Save' #2]", "`click [ button 'Save' #2 ]`", "I save: ```click [button 'Save' #2]```"],
)
def test_spellings_of_the_grammar_are_accepted(written: str) -> None:
    assert PAGE.with_ids(written) == re.sub(r"\[.*\]", "[6]", written)


@pytest.mark.parametrize("start", ["click", "click [", "click [4", "drag [", "drag [4] [", "`"])
def test_many_spaces_are_read_in_little_time(start: str) -> None:
    """A policy may repeat a space until its token budget; with backtracking, 400 of them took minutes."""
    spaces = 3000 * " "
    for action in (f"{start}{spaces}", f"{start}{spaces}4{spaces}]", f"{start}{spaces}4,{spaces}5{spaces}"):
        assert "".join(PAGE.with_ids(action).split()) == "".join(action.split())


def test_an_unknown_name_is_told_with_the_nearest_one() -> None:
    with pytest.raises(LookupError, match=r"no element \[button 'Safe'\].*Did you mean \[button 'Save'\]\?"):
        PAGE.with_ids("click [button 'Safe']")
    with pytest.raises(LookupError, match=r"no element \[button 'Save' #3\]"):
        PAGE.with_ids("drag [button 'Save'] [button 'Save' #3]")


def test_sentences_for_the_agent_have_no_ids() -> None:
    refused = "[2] button 'Save' can't be reached: [5] dialog 'Cookies' is in front of it."
    assert without_ids(refused) == "button 'Save' can't be reached: dialog 'Cookies' is in front of it."
    incomplete = "'click Save' is not complete or has something left over; write click [id], such as click [12]."
    assert without_ids(incomplete) == incomplete.replace("[id], such as click [12]", "[role 'name']")
