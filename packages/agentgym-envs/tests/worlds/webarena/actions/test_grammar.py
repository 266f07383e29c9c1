"""Tests of WebArena's action grammar: parsing, corrections, and messages about invalid actions."""

from __future__ import annotations

import re

import pytest
from agentgym_envs.worlds.webarena.actions.action_types import (
    Action,
    Click,
    CloseTab,
    Drag,
    GoBack,
    GoForward,
    Goto,
    Hover,
    NewTab,
    Point,
    Press,
    Scroll,
    Select,
    SelectText,
    Stop,
    TabFocus,
    Type,
    Wait,
)
from agentgym_envs.worlds.webarena.actions.grammar import GRAMMAR, on_one_line, parse
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click [3]", Click(3)),
        ("hover [12]", Hover(12)),
        ("type [3] [red shoes]", Type(3, "red shoes", True)),
        ("type [3] [red shoes] [1]", Type(3, "red shoes", True)),
        ("type [3] [red shoes] [0]", Type(3, "red shoes", False)),
        ("type [3] [x] [press_enter_after=0]", Type(3, "x", False)),
        (r"type [3] [# Changes\n\n- one\n] [0]", Type(3, "# Changes\n\n- one\n", False)),
        (r'type [3] [print("a\\n")]', Type(3, r'print("a\n")', True)),
        ("press [Enter]", Press("Enter")),
        ("scroll [down]", Scroll("down")),
        ("scroll [direction=up]", Scroll("up")),
        ("select_option [3] [Medium]", Select(3, "Medium")),
        ("click [120,45]", Click(Point(120, 45))),
        ("double_click [3]", Click(3, "double")),
        ("right_click [3]", Click(3, "right")),
        ("drag [3] [4]", Drag(3, 4)),
        ("drag [3] [120,45]", Drag(3, Point(120, 45))),
        ("select_text [3] [some words]", SelectText(3, "some words")),
        ("select_text [3]", SelectText(3)),
        ("scroll [down] [3]", Scroll("down", 3)),
        ("wait [2]", Wait(2.0)),
        ("wait", Wait(1.0)),
        ("new_tab", NewTab()),
        ("tab_focus [0]", TabFocus(0)),
        ("close_tab", CloseTab()),
        ("goto [http://shop.example/a?b=[c]]", Goto("http://shop.example/a?b=[c]")),
        ("go_back", GoBack()),
        ("go_forward", GoForward()),
        ("stop [42]", Stop("42")),
        ("stop", Stop("")),
    ],
)
def test_canonical_actions_are_parsed(text: str, action: Action) -> None:
    assert parse(text) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("```click [3]```", Click(3)),
        ("`click [3]`", Click(3)),
        ("In summary, the next action I will perform is ```stop [done]```", Stop("done")),
        ("Click the link: ```click [3]```", Click(3)),
        ("  CLICK  [ 3 ]\n", Click(3)),
        ("click[3]", Click(3)),
        ("click 3", Click(3)),
        ("scroll down", Scroll("down")),
        ("SCROLL [Down]", Scroll("down")),
        ("press enter", Press("Enter")),
        ("click 120, 45", Click(Point(120, 45))),
        ("click 120 45", Click(Point(120, 45))),
        ("click (120, 45)", Click(Point(120, 45))),
        ("click [120 45]", Click(Point(120, 45))),
        ("type [120 45] [red shoes] [0]", Type(Point(120, 45), "red shoes", enter=False)),
        ("select_option [120,45] [Medium]", Select(Point(120, 45), "Medium")),
        ("scroll down [120,45]", Scroll("down", Point(120, 45))),
        ("hover [ 120 , 45 ]", Hover(Point(120, 45))),
        ("double click [3]", Click(3, "double")),
        ("Right-Click 3", Click(3, "right")),
        ("drag [3] to [4]", Drag(3, 4)),
        ("select text [3] [a]", SelectText(3, "a")),
        ("wait 0.5", Wait(0.5)),
        ("Wait [seconds=2]", Wait(2.0)),
        ("wait [3s]", Wait(3.0)),
        ("wait []", Wait(1.0)),
        ("go back", GoBack()),
        ("Go-Forward", GoForward()),
        ("new tab", NewTab()),
        ("new_tab []", NewTab()),
        ("tab_focus 1", TabFocus(1)),
        ("goto shop.example/x", Goto("http://shop.example/x")),
        ("goto [localhost:7770]", Goto("http://localhost:7770")),
        ("goto [about:blank]", Goto("about:blank")),
    ],
)
def test_unambiguous_variants_are_parsed(text: str, action: Action) -> None:
    assert parse(text) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("type [3] [a]b] [0]", Type(3, "a]b", False)),
        ("type [3] [[a] [b]]", Type(3, "[a] [b]", True)),
        ("type [3] [0]", Type(3, "0", True)),
        ("type [3] [a] [2]", Type(3, "a] [2", True)),
        ("type [3] [] [0]", Type(3, "", False)),
        ("type [3] [one\ntwo] [0]", Type(3, "one\ntwo", False)),
        ("type [3] [```code```] [0]", Type(3, "```code```", False)),
        ("select_option [3] [A [B] ]", Select(3, "A [B]")),
        ("select_text [3] [A [B] ]", SelectText(3, "A [B]")),
        ("stop [[1, 2]\n]", Stop("[1, 2]")),
        ("stop []", Stop("")),
        ("stop [N/A]", Stop("N/A")),
    ],
)
def test_brackets_and_newlines_in_arguments_are_kept(text: str, action: Action) -> None:
    assert parse(text) == action


@pytest.mark.parametrize(
    ("spelling", "keys"),
    [
        ("Ctrl+v", "Control+v"),
        ("ctrl + Shift + ArrowDown", "Control+Shift+ArrowDown"),
        ("cmd+a", "Control+a"),
        ("Meta", "Meta"),
        ("esc", "Escape"),
        ("return", "Enter"),
        ("page down", "PageDown"),
        ("Page_Up", "PageUp"),
        ("down", "ArrowDown"),
        ("arrow-left", "ArrowLeft"),
        ("space", "Space"),
        ("F12", "F12"),
        ("a", "a"),
        ("Shift+a", "Shift+A"),
        ("+", "+"),
        ("Ctrl++", "Control++"),
        ("]", "]"),
    ],
)
def test_key_names_are_normalized(spelling: str, keys: str) -> None:
    assert parse(f"press [{spelling}]") == Press(keys)


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("press [Strg+v]", ["'Strg' can't be held", "Ctrl, Shift, Alt and Meta can"]),
        ("press [Foo]", ["There is no key 'Foo'", "Enter, Tab, Escape"]),
        ("press [Ctrl+]", ["There is no key ''"]),
        ("press []", ["write press [key_comb], such as press [Ctrl+v]"]),
        ("clik [3]", ["'clik [3]' is not an action.", "Did you mean click [id]?"]),
        ("select [3] [x]", ["Did you mean select_option [id] [option]?"]),
        ("dblclick [3]", ["Did you mean double_click [id]?"]),
        ("I would like to buy it.", ["is not an action. The actions are: click [id], type [id]"]),
        ("", ["'' is not an action"]),
        ("click [Sign In]", ["write click [id], such as click [12]"]),
        ("click [3] [4]", ["has something left over"]),
        ("click", ["is not complete"]),
        ("type [3]", ["write type [id] [content] [press_enter_after=0|1], such as type [12] [red shoes] [1]"]),
        ("type [3] red shoes", ["write type [id] [content]"]),
        ("scroll [left]", ["write scroll [down|up]"]),
        ("drag [3]", ["write drag [id] [id], such as drag [12] [17]"]),
        ("drag [3] [the bin]", ["write drag [id] [id]"]),
        ("select_text [words]", ["write select_text [id] [text]"]),
        ("click [3,]", ["write click [id]"]),
        ("scroll [down] [big list]", ["write scroll [down|up]"]),
        ("wait [a while]", ["write wait [seconds], such as wait [2]"]),
        ("wait [-1]", ["write wait [seconds]"]),
        ("wait [60]", ["One wait lasts at most 10 seconds; wait [10]"]),
        ("goto []", ["write goto [url]"]),
        ("goto [the shop]", ["write goto [url]"]),
        ("go_back [3]", ["write go_back."]),
        ("stop here", ["write stop [answer], such as stop [42]"]),
        ("click [3]\nclick [4]", ["has something left over"]),
        ("```click [3]``` or ```click [4]```", ["has something left over"]),
    ],
)
def test_invalid_actions_get_a_helpful_message(text: str, hints: list[str]) -> None:
    message = parse(text)
    assert isinstance(message, str)
    assert [hint for hint in hints if hint not in message] == []


def test_bare_verbs_parse_or_report_missing_arguments() -> None:
    verbs = [line.split()[0] for line in GRAMMAR.splitlines()]
    assert len(verbs) == 18
    for verb in verbs:
        parsed = parse(verb)
        assert not isinstance(parsed, str) or f"write {verb} [" in parsed


@given(st.text(max_size=200))
def test_any_text_gives_an_action_or_a_one_line_message(text: str) -> None:
    parsed = parse(text)
    assert isinstance(parsed, Action) or (parsed.isprintable() and parsed)


@given(
    st.sampled_from([line.split()[0] for line in GRAMMAR.splitlines()]),
    st.text(alphabet="[]()|`=+-_0123456789 \n\tabcABC²③\ud800'\"\\", max_size=40),
)
def test_verb_with_any_arguments_gives_an_action_or_a_message(verb: str, rest: str) -> None:
    parsed = parse(f"{verb} {rest}")
    assert isinstance(parsed, Action) or (parsed.isprintable() and parsed)


@given(st.integers(0, 10**6), st.text() | st.text(alphabet="\\n\n] "), st.booleans())
def test_any_text_can_be_typed(element: int, text: str, enter: bool) -> None:
    written = re.sub(r"(\\+)(?=n)", r"\1\1", text)  # backslashes before an n are doubled
    assert parse(f"type [{element}] [{written}] [{int(enter)}]") == Type(element, text, enter)


@given(st.text())
def test_any_answer_can_be_given(answer: str) -> None:
    assert parse(f"stop [{answer}]") == Stop(answer.strip())


@given(st.text() | st.lists(st.sampled_from(["\\", "n", "\n", "]", " "])).map("".join))
def test_content_of_several_lines_is_typed_from_one(content: str) -> None:
    assert "\n" not in on_one_line(content)
    assert parse(f"type [3] [{on_one_line(content)}] [0]") == Type(3, content, False)
