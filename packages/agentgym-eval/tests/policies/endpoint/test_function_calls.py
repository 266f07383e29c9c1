"""Tests of function calls of models behind an endpoint, with native tools and as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Message, Reply
from agentgym_envs.core.action_schema import ACT, Call, described
from agentgym_eval.policies.endpoint.messages import reply
from agentgym_eval.util.tool_calls import native, plain
from fake_endpoint import Answer, completion_answer, read_run, run_evaluate, serve_endpoint, tool_call_answer
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("api_key")


def test_native_function_calls_are_recorded_in_our_syntax(tmp_path: Path) -> None:
    def answer(request: dict[str, Any]) -> Answer:
        if request.get("tool_choice") == "none":
            return completion_answer("I shall add, then stop.")
        steps = sum(message["role"] == "tool" for message in request["messages"])
        return tool_call_answer(("act", {"action": "stop" if steps == 2 else "add"}), thought=f"{steps} of 2")

    with serve_endpoint(answer) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/2", "--agent", "function-call+plan") == 0
    (episode,) = read_run(tmp_path)
    assert episode.success
    assert [turn.action for turn in episode.turns] == [None, "add", "add", "stop"]
    assert episode.turns[1].reply.text == Call("act", {"action": "add"}, "0 of 2").to_json()
    assert all(request["tools"] == [ACT.schema] for request in fake.requests)
    assert ["tool_choice" in request for request in fake.requests] == [True, False, False, False]
    last = fake.requests[-1]["messages"]
    assert [message["role"] for message in last] == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert last[4]["content"] == "0 of 2"
    assert json.loads(last[4]["tool_calls"][0]["function"]["arguments"]) == {"action": "add"}
    assert [message["tool_call_id"] for message in last if message["role"] == "tool"] == [
        message["tool_calls"][0]["id"] for message in last if "tool_calls" in message
    ]


def test_functions_are_described_in_text_without_native_tools(tmp_path: Path) -> None:
    with serve_endpoint(lambda request: completion_answer(Call("act", {"action": "stop"}).to_json())) as fake:
        flags = ["--task", "count/test/0", "--agent", "function-call", "--no-native-tools"]
        assert run_evaluate(fake, tmp_path, *flags) == 0
        assert run_evaluate(fake, tmp_path, *flags[:-1], "--samples", "2") == 2  # a run has one kind of prompt
    (request,) = fake.requests
    assert "tools" not in request
    assert request["messages"][0]["content"].endswith(described([ACT.schema]))
    assert read_run(tmp_path)[0].success
    assert plain((Message("user", "hello"),), [ACT.schema])[0]["role"] == "system"


def test_several_calls_in_one_reply_are_malformed(tmp_path: Path) -> None:
    two_calls = tool_call_answer(("act", {"action": "add"}), ("act", {"action": "stop"}))
    with serve_endpoint(
        lambda request: two_calls if len(request["messages"]) == 2 else tool_call_answer(("act", {"action": "stop"}))
    ) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/0", "--agent", "function-call") == 0
    assert [turn.action for turn in read_run(tmp_path)[0].turns] == [None, "stop"]
    assert "2 function calls" in fake.requests[1]["messages"][-1]["content"]
    assert fake.requests[1]["messages"][-1]["role"] == "user"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)

NAMES = st.text(st.characters(categories=["Ll"]), min_size=1, max_size=6)


@settings(max_examples=50)
@given(NAMES, st.dictionaries(NAMES, JSON, max_size=3), st.text())
def test_function_call_round_trips_through_native_format(name: str, arguments: dict[str, Any], thought: str) -> None:
    text = Call(name, arguments, thought.strip()).to_json()
    conversation = (Message("user", "now?"), Message("assistant", text), Message("user", "done"))
    messages = native(conversation, write=json.dumps)
    assert messages[1]["role"] == "assistant"
    assert messages[2] == {"role": "tool", "tool_call_id": messages[1]["tool_calls"][0]["id"], "content": "done"}
    answer = {"choices": [{"message": messages[1], "finish_reason": "tool_calls"}]}
    assert reply(answer) == Reply(text, finish_reason="tool_calls")


def test_invalid_arguments_keep_the_thought() -> None:
    function = {"name": "act", "arguments": '{"action": "st'}
    message = {"content": "Enough.", "tool_calls": [{"function": function}]}
    text = reply({"choices": [{"message": message}]}).text
    assert json.loads(text) == {"thought": "Enough.", "function_name": "act", "arguments": '{"action": "st'}


@settings(max_examples=50)
@given(st.lists(st.text(), max_size=6))
def test_replies_without_a_call_stay_text(texts: list[str]) -> None:
    conversation = tuple(Message("assistant" if i % 2 else "user", f"said: {text}") for i, text in enumerate(texts))
    assert native(conversation, write=json.dumps) == [
        {"role": message.role, "content": message.content} for message in conversation
    ]


@given(JSON, st.sampled_from(["content", "refusal", "tool_calls", "parts", "function"]))
def test_any_response_gives_a_reply_or_a_protocol_error(value: Any, field: str) -> None:
    message: dict[str, Any] = {"content": "said", field: value}
    if field == "parts":
        message = {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": value}]}
    if field == "function":
        message = {"tool_calls": [{"function": {"name": "act", "arguments": value}}]}
    try:
        text = reply({"choices": [{"message": message}]}).text
    except (LookupError, TypeError, ValueError, AttributeError):
        return
    text.encode()
