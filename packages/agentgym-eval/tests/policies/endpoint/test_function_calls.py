"""Functions that models behind an endpoint call, natively or in words, and what becomes of the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Message, Reply
from agentgym_envs.core.action_schema import ACT, Call, described
from agentgym_eval.policies.endpoint.messages import reply
from agentgym_eval.util.tool_calls import native, plain
from fake_endpoint import Answer, called, play, played, said, serving
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("key")


def test_functions_are_called_natively_and_recorded_neutrally(tmp_path: Path) -> None:
    def calling(request: dict[str, Any]) -> Answer:
        if request.get("tool_choice") == "none":
            return said("I shall add, then stop.")
        done = sum(message["role"] == "tool" for message in request["messages"])
        return called(("act", {"action": "stop" if done == 2 else "add"}), thought=f"{done} of 2")

    with serving(calling) as fake:
        assert play(fake, tmp_path, "--task", "count/test/2", "--agent", "function-call+plan") == 0
    (episode,) = played(tmp_path)
    assert episode.success
    assert [turn.action for turn in episode.turns] == [None, "add", "add", "stop"]
    assert episode.turns[1].reply.text == Call("act", {"action": "add"}, "0 of 2").to_json()
    assert all(request["tools"] == [ACT.schema] for request in fake.asked)
    assert ["tool_choice" in request for request in fake.asked] == [True, False, False, False]
    last = fake.asked[-1]["messages"]
    assert [message["role"] for message in last] == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert last[4]["content"] == "0 of 2"
    assert json.loads(last[4]["tool_calls"][0]["function"]["arguments"]) == {"action": "add"}
    assert [message["tool_call_id"] for message in last if message["role"] == "tool"] == [
        message["tool_calls"][0]["id"] for message in last if "tool_calls" in message
    ]


def test_an_endpoint_without_tools_is_told_of_the_functions_in_words(tmp_path: Path) -> None:
    with serving(lambda request: said(Call("act", {"action": "stop"}).to_json())) as fake:
        flags = ["--task", "count/test/0", "--agent", "function-call", "--no-native-tools"]
        assert play(fake, tmp_path, *flags) == 0
    (request,) = fake.asked
    assert "tools" not in request
    assert request["messages"][0]["content"].endswith(described([ACT.schema]))
    assert played(tmp_path)[0].success
    assert plain((Message("user", "hello"),), [ACT.schema])[0]["role"] == "system"


def test_several_calls_at_once_are_malformed_as_several_actions_are(tmp_path: Path) -> None:
    twice = called(("act", {"action": "add"}), ("act", {"action": "stop"}))
    with serving(
        lambda request: twice if len(request["messages"]) == 2 else called(("act", {"action": "stop"}))
    ) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0", "--agent", "function-call") == 0
    assert [turn.action for turn in played(tmp_path)[0].turns] == [None, "stop"]
    assert "2 function calls" in fake.asked[1]["messages"][-1]["content"]
    assert fake.asked[1]["messages"][-1]["role"] == "user"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)

NAMES = st.text(st.characters(categories=["Ll"]), min_size=1, max_size=6)


@settings(max_examples=50)
@given(NAMES, st.dictionaries(NAMES, JSON, max_size=3), st.text())
def test_a_call_is_the_same_there_and_back(name: str, arguments: dict[str, Any], thought: str) -> None:
    text = Call(name, arguments, thought.strip()).to_json()
    conversation = (Message("user", "now?"), Message("assistant", text), Message("user", "done"))
    there = native(conversation, write=json.dumps)
    assert there[1]["role"] == "assistant"
    assert there[2] == {"role": "tool", "tool_call_id": there[1]["tool_calls"][0]["id"], "content": "done"}
    answer = {"choices": [{"message": there[1], "finish_reason": "tool_calls"}]}
    assert reply(answer) == Reply(text, finish_reason="tool_calls")


def test_arguments_that_are_none_keep_the_thought_beside_them() -> None:
    function = {"name": "act", "arguments": '{"action": "st'}
    message = {"content": "Enough.", "tool_calls": [{"function": function}]}
    text = reply({"choices": [{"message": message}]}).text
    assert json.loads(text) == {"thought": "Enough.", "function_name": "act", "arguments": '{"action": "st'}


@settings(max_examples=50)
@given(st.lists(st.text(), max_size=6))
def test_what_is_no_call_is_text(texts: list[str]) -> None:
    conversation = tuple(Message("assistant" if i % 2 else "user", f"said: {text}") for i, text in enumerate(texts))
    assert native(conversation, write=json.dumps) == [
        {"role": message.role, "content": message.content} for message in conversation
    ]


@given(JSON, st.sampled_from(["content", "refusal", "tool_calls", "parts", "function"]))
def test_whatever_an_endpoint_answers_is_a_reply_or_not_of_the_protocol(value: Any, where: str) -> None:
    message: dict[str, Any] = {"content": "said", where: value}
    if where == "parts":
        message = {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": value}]}
    if where == "function":
        message = {"tool_calls": [{"function": {"name": "act", "arguments": value}}]}
    try:
        text = reply({"choices": [{"message": message}]}).text
    except (LookupError, TypeError, ValueError, AttributeError):
        return
    text.encode()
