"""Tests of reply formats: `parse` turns any reply into an action or `Malformed`, and inverts `format`."""

from __future__ import annotations

import pickle
import re
from typing import Any

import gymnasium
import pytest
from agentgym_envs import Malformed, ReplyWrapper
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import REPLY_FORMATS, Bare, ReAct, Tags
from agentgym_envs.agents.formats.function_calls import _signature
from agentgym_envs.agents.names import FORMAT_NAMES
from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.core.json_actions import ToolFunction
from door_world import Door
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

REPLIES = st.text() | st.lists(
    st.sampled_from(
        ["Thought:", "Action:", " ", "\n", "\r", "\u2028", "open", "A", "<think>", "</think>", "<search>", "</search>"]
    )
).map("".join)
ACTIONS = REPLIES.filter(lambda text: text.strip() == text and len(text.splitlines()) == 1)
every_wrapper = pytest.mark.parametrize(
    "wrapper", [wrapper(Door()) for wrapper in REPLY_FORMATS.values()], ids=list(REPLY_FORMATS)
)


def test_signatures_have_the_types_of_a_tools_own_schema() -> None:
    schemas: dict[str, Any] = {
        "names": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "share": {"type": "number"},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": None},
    }
    tool = ToolFunction.of("sort", "Sort.", {"properties": schemas, "required": ["names", "sizes", "share"]})
    first, *_ = _signature(tool).splitlines()
    assert first == "sort(names: list[str], sizes: list, share: float, any: object = None)"


def test_names_for_completion_are_those_of_the_formats() -> None:
    assert tuple(REPLY_FORMATS) == FORMAT_NAMES


@every_wrapper
@given(reply=REPLIES)
def test_parsing_is_total(wrapper: ReplyWrapper, reply: str) -> None:
    parsed = wrapper.parse(reply)
    if isinstance(parsed, Malformed):
        assert parsed == reply
        assert parsed.hint
    else:
        assert parsed == parsed.strip()
        assert len(parsed.splitlines()) == 1


@every_wrapper
@given(action=ACTIONS, thought=REPLIES)
def test_parse_inverts_format(wrapper: ReplyWrapper, action: str, thought: str) -> None:
    parsed = wrapper.parse(wrapper.format(action, thought))
    assert parsed == action
    assert not isinstance(parsed, Malformed)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Thought: I knock.\nAction: knock", "knock"),
        ("Action: knock", "knock"),
        ("Thought: hm\n  Action:\n\n  knock  \nand so on", "knock"),
        ("My last Action: was wrong.\nAction: open", "open"),
        ("<think>\nAction: knock\nor not?\n</think>\n\nThought: no.\nAction: open", "open"),
        ("<think>\nAction: knock\nor not?\n</think>Action: open", "open"),
        ("<think>hm</think> Action: open", "open"),
        ("<think>\nAction: knock</think>Action: open", "open"),
        ("hm</think>\nAction: say </think> loudly", "say </think> loudly"),
    ],
)
def test_react_finds_the_action(reply: str, action: str) -> None:
    assert ReAct(Door()).parse(reply) == action


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<think>Who lives here?</think>\n<search>the house</search>", "<search>the house</search>"),
        ("<think>I <search>could</search> search.</think> <answer>a cat</answer>", "<answer>a cat</answer>"),
        ("<search>the house</search>", "<search>the house</search>"),
        ("<think>hm</think>\nSo:\n<search>the\nhouse</search>\nand so on", "<search>the house</search>"),
        ("<think>hm</think>\nopen", "open"),
    ],
)
def test_tags_find_the_action(reply: str, action: str) -> None:
    assert Tags(Door()).parse(reply) == action


def test_action_after_a_thought_block_is_found() -> None:
    assert Bare(Door()).parse("<think>\nknock\nor open?\n</think>\n\nopen") == "open"
    assert Bare(Door()).parse("<think>\nknock\nor open?\n</think>open") == "open"
    for after in ("\n\nI am done.", "I am done.", ""):
        assert isinstance(ReAct(Door()).parse(f"<think>\nAction: knock\n</think>{after}"), Malformed)


@given(st.lists(st.sampled_from(["<a>", "</a>", "<b>", "</b>", "<", "x", "\n"])).map("".join))
def test_tag_search_agrees_with_a_slower_regular_expression(text: str) -> None:
    expected = [match[0] for match in re.finditer(r"<(\w+)>.*?</\1>", text, re.DOTALL)]
    assert list(Tags(Door())._tags(text)) == expected


@pytest.mark.parametrize(
    ("wrapper", "reply", "hint"),
    [
        (ReAct, "knock", "no action"),
        (ReAct, "Action: knock\nAction: open", "several actions"),
        (ReAct, "Thought: hm\nAction: ", "nothing after 'Action:'"),
        (Bare, " \n", "empty"),
        (Bare, "knock\nopen", "several lines"),
        (Tags, "<think>hm</think>\n", "no action"),
        (Tags, "<search>a</search>\n<search>b</search>", "several actions"),
    ],
)
def test_malformed_reply_costs_a_turn_and_returns_a_hint(wrapper: type[ReplyWrapper], reply: str, hint: str) -> None:
    env = wrapper(Door())
    env.reset(options={"task": "door/train/2"})
    observation, reward, terminated, truncated, info = env.step(reply)
    assert hint in observation
    assert (reward, terminated, truncated, info["valid"], info["action"]) == (0.0, False, False, False, None)


@every_wrapper
def test_formatted_action_is_played(wrapper: ReplyWrapper) -> None:
    wrapper.reset(options={"task": "door/train/1"})
    observation, reward, *_, info = wrapper.step(wrapper.format("knock", "It says so."))
    assert (observation, reward, info["action"], info["valid"]) == ("You knocked 1 times.", 0.5, "knock", True)


@every_wrapper
def test_instructions_end_with_the_reply_format(wrapper: ReplyWrapper) -> None:
    instructions = wrapper.instructions
    assert instructions.startswith("Knock as often as you are told to, then open.\n\n")
    assert instructions.endswith(f"\n\n{wrapper.format_instructions}")
    assert type(wrapper)(Door(), instructions="").instructions == ""


@pytest.mark.parametrize("reply_format", REPLY_FORMATS)
def test_wrapped_environments_are_made_again_from_their_specification(reply_format: str) -> None:
    made = gymnasium.make("agentgym/TextCraft-v0", depth=(1, 1))
    spec = REPLY_FORMATS[reply_format](made, instructions="Craft.", scaffold=Scaffold(window=2)).spec
    assert spec is not None
    again = gymnasium.make(spec)
    assert isinstance(again, ReplyWrapper)
    assert (again.agent, again.instructions) == (str(Agent(reply_format, Scaffold(window=2))), "Craft.")
    assert again.reset(seed=0)[0] == made.reset(seed=0)[0]


def test_malformed_survives_pickling() -> None:
    malformed = pickle.loads(pickle.dumps(Malformed("hm", "Say knock.")))
    assert (type(malformed), malformed, malformed.hint) == (Malformed, "hm", "Say knock.")
