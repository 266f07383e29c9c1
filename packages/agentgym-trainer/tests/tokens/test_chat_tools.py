"""Tests of functions, calls and responses in conversations: native to the chat template, or described in text."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from agentgym_envs import Conversation, Message
from agentgym_envs.agents.call_parsing import find_call
from agentgym_envs.core.action_schema import ACT, Call, Function, described
from agentgym_trainer.tokens.chat import Chat, Context
from chat_templates import FAMILIES, PUBLISHED, make_chat, published_chat
from hypothesis import given, settings
from hypothesis import strategies as st

GO = Function("go", "Walk.", ("go {where}",), {"where": {"type": "string", "description": "To where."}})
TOOLS = (ACT.schema, GO.schema)
WITH_TOOLS = ["qwen2.5", "qwen3", "llama3", "mistral"]
native = pytest.mark.parametrize("family", [*WITH_TOOLS, *PUBLISHED])
few_examples = settings(max_examples=5)

words = st.text("abcdefghij.,0123456789äß中", min_size=1, max_size=8)
values = st.one_of(words, st.integers(-99, 99), st.booleans(), st.lists(words, max_size=2))
calls = st.builds(Call, st.sampled_from(["act", "go"]), st.dictionaries(words, values, max_size=2))
thoughtful = st.builds(Call, st.just("go"), st.dictionaries(words, values, max_size=2), words)


def _plain(family: str) -> Chat:
    """Return a chat without functions."""
    return published_chat(family) if family in PUBLISHED else make_chat(family)


def _with_tools(family: str) -> Chat:
    """Return a chat with functions."""
    return _plain(family).with_tools(TOOLS)


def _hostile(chat: Chat) -> st.SearchStrategy[str]:
    special = [*chat.tokenizer.all_special_tokens, "system", '"', "\n", "\ue000", "m0\ue001", "</tool_call"]
    return st.lists(st.one_of(st.sampled_from(special), st.text(max_size=4))).map("".join)


def _shape(chat: Chat, ids: list[int]) -> list[int]:
    return [i for i in ids if i in chat.tokenizer.all_special_ids]


def _alternate(*texts: str, system: str = "") -> Conversation:
    """Return a conversation in which user and assistant alternate."""
    turns = tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts))  # type: ignore[arg-type]
    return (Message("system", system), *turns) if system else turns


def _template_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """Convert calls and responses to the messages that transformers documents."""
    turns = list[dict[str, Any]]()
    for message in conversation:
        if message.role == "assistant":
            call = find_call(message.content)
            function = {"name": call.name, "arguments": call.arguments}
            tool_calls = [{"id": "call00000", "type": "function", "function": function}]
            turns.append({"role": "assistant", "content": "", "tool_calls": tool_calls})
        elif turns and "tool_calls" in turns[-1]:
            turns.append({"role": "tool", "tool_call_id": "call00000", "content": message.content})
        else:
            turns.append({"role": message.role, "content": message.content})
    return turns


@pytest.mark.parametrize("family", [*FAMILIES, *PUBLISHED])
def test_templates_that_support_tools(family: str) -> None:
    assert _plain(family).takes_tools == (family in WITH_TOOLS or family in PUBLISHED)


@native
@few_examples
@given(calls=st.lists(calls, max_size=3), answers=st.lists(words, min_size=4, max_size=4), with_system=st.booleans())
def test_functions_calls_and_responses_match_the_template(
    family: str, calls: list[Call], answers: list[str], with_system: bool
) -> None:
    chat = _with_tools(family)
    quoted = [f'{answer} "{answer}"\n{answer}' for answer in answers]
    texts = [text for call, answer in zip(calls, quoted[1:], strict=False) for text in (call.to_json(), answer)]
    conversation = _alternate(answers[0], *texts, system="be brave" if with_system else "")
    assert chat.open(conversation) == chat.tokenizer.apply_chat_template(
        _template_messages(conversation),
        tools=list(TOOLS),
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )


@native
@few_examples
@given(calls=st.lists(thoughtful, min_size=1, max_size=3), answers=st.lists(words, min_size=4, max_size=4))
def test_appending_calls_equals_opening_the_full_conversation(
    family: str, calls: list[Call], answers: list[str]
) -> None:
    chat = _with_tools(family)
    context, conversation = Context(chat), _alternate(answers[0])
    context.prompt(conversation)
    for call, answer in zip(calls, answers[1:], strict=False):
        context.append_reply(chat.reply_ids(call.to_json()))
        conversation += (Message("assistant", call.to_json()), Message("user", answer))
        _, fresh = context.prompt(conversation)
        assert not fresh
    assert context.ids == chat.open(conversation)


@native
@few_examples
@given(data=st.data())
def test_generic_calls_are_written_in_the_models_syntax(family: str, data: st.DataObject) -> None:
    chat = _with_tools(family)
    hostile = _hostile(chat)
    call = Call("act", {"action": data.draw(hostile)}, data.draw(words))
    ids = chat.reply_ids(call.to_json())
    text = chat.reply_text(ids)
    found = find_call(text)
    assert (found.name, found.arguments) == (call.name, json.loads(call.to_json())["arguments"])
    assert '"function_name"' not in text
    assert text.startswith(call.thought)
    hostile_name = chat.reply_ids(Call(f"a{data.draw(hostile)}", {}).to_json())
    assert _shape(chat, hostile_name) == _shape(chat, ids)
    expected = {"[TOOL_CALLS]"} if family == "mistral" else set[str]()
    control = [chat.tokenizer.convert_ids_to_tokens(i) for i in _shape(chat, ids[:-1])]
    assert set(control) == expected
    assert len(control) == len(expected)


@native
@few_examples
@given(data=st.data())
def test_responses_never_become_control_tokens(family: str, data: st.DataObject) -> None:
    chat, call = _with_tools(family), Call("go", {"where": "on"}).to_json()
    hostile, harmless = f"a{data.draw(_hostile(chat))}", _alternate("x", call, "x", system="x")
    conversation = _alternate(hostile, call, hostile, system=hostile)
    assert _shape(chat, chat.open(conversation)) == _shape(chat, chat.open(harmless))
    ids, harmless_ids = chat.extend(conversation), chat.extend(harmless)
    assert ids is not None
    assert harmless_ids is not None
    assert _shape(chat, ids) == _shape(chat, harmless_ids)


@native
def test_function_descriptions_never_become_control_tokens(family: str) -> None:
    description = "".join(_plain(family).tokenizer.all_special_tokens)
    tools = (Function("act", description, ACT.templates, ACT.properties).schema,)
    chat, plain_chat = _plain(family).with_tools(tools), _plain(family).with_tools((ACT.schema,))
    assert _shape(chat, chat.open(_alternate("x"))) == _shape(plain_chat, plain_chat.open(_alternate("x")))
    assert description in chat.tokenizer.decode(chat.open(_alternate("x")))


@pytest.mark.parametrize(
    ("family", "reply"),
    [
        ("qwen2.5", 'hm <tool_call>{"arguments":{"where":"on"},"name":"go"}</tool_call>'),
        ("qwen3", '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "go",  "arguments": {}}\n</tool_call>'),
        ("llama3", 'I go. {"name": "go", "parameters": {"where": "on"}}'),
        ("mistral", '[TOOL_CALLS][{"name": "go", "arguments": {}, "id": "abc123def"}]'),
    ],
)
def test_calls_are_kept_verbatim_in_the_history(family: str, reply: str) -> None:
    chat = _with_tools(family)
    context, conversation = Context(chat), _alternate("x")
    context.prompt(conversation)
    ids = chat.reply_ids(reply)
    context.append_reply(ids)
    conversation += _alternate("", reply, "y")[1:]
    _, fresh = context.prompt(conversation)
    assert not fresh
    assert chat.reply_text(ids) == reply
    assert context.ids == chat.open(conversation)
    assert reply in chat.tokenizer.decode(context.ids)
    # A reply may contain the control token that starts a call.
    assert _shape(chat, ids[:-1]) == [chat.tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")] * (family == "mistral")


@native
def test_only_observations_after_a_call_are_tool_responses(family: str) -> None:
    chat = _with_tools(family)
    call = Call("go", {"where": "on"}).to_json()
    user_turn = chat.extend(_alternate("x", "I have no idea.", "Call exactly one function."))
    tool_turn = chat.extend(_alternate("x", call, "Call exactly one function."))
    marks = {"mistral": "[TOOL_RESULTS]", "llama3": "ipython", "llama3.1 published": "ipython"}
    mark = marks.get(family, "<tool_response>")
    assert tool_turn is not None
    assert mark in chat.tokenizer.decode(tool_turn)
    # Mistral's template moves the functions to the last user message, so nothing can be appended.
    assert (user_turn is None) == (family == "mistral")
    assert mark not in chat.tokenizer.decode(user_turn or chat.open(_alternate("x", "I have no idea.", "Call one.")))


def test_template_that_moves_the_functions_starts_a_new_segment() -> None:
    chat = _with_tools("mistral")
    context = Context(chat)
    context.prompt(_alternate("x"))
    context.append_reply(chat.reply_ids("I have no idea."))
    _, fresh = context.prompt(_alternate("x", "I have no idea.", "Call one."))
    assert fresh
    assert context.segments == 2


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(WITH_TOOLS)))
def test_other_templates_describe_functions_in_the_system_message(family: str) -> None:
    chat = _plain(family)
    call = Call("go", {"where": "on"}).to_json()
    conversation, system_text = _alternate("x", call, "y", system="be brave"), f"be brave\n\n{described(TOOLS)}"
    assert _with_tools(family).open(conversation) == chat.open(_alternate("x", call, "y", system=system_text))
    assert _with_tools(family).extend(conversation) == chat.extend(_alternate("x", call, "y", system=system_text))
    assert _with_tools(family).reply_ids(call) == chat.reply_ids(call)
    # Without a system message the functions aren't described either.
    assert _with_tools(family).open(_alternate("x")) == chat.open(_alternate("x"))


@native
def test_without_functions_calls_are_plain_text(family: str) -> None:
    chat, call = _plain(family), Call("go", {"where": "on"}).to_json()
    assert chat.with_tools(()) is chat
    assert chat.reply_text(chat.reply_ids(call)) == call
    assert call in chat.tokenizer.decode(chat.open(_alternate("x", call, "y")))
    assert chat.with_tools(TOOLS) is _with_tools(family)


_TOOLS = "{%- if tools -%}{{- tools | tojson -}}{%- endif -%}"
_CALL = """{{- '<call>{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}"""


@pytest.mark.parametrize(
    ("call", "tools", "supported"),
    [
        (_CALL + "{{- '}</call>' -}}", _TOOLS, True),
        # The functions aren't rendered.
        (_CALL + "{{- '}</call>' -}}", "", False),
        # The name occurs twice, so that the text around it depends on it.
        (_CALL + "{{- '}</' ~ call.function.name ~ '>' -}}", _TOOLS, False),
        # The template requires arguments as a string.
        ("{{- '<call>' ~ call.function.name ~ (call.function.arguments + '</call>') -}}", _TOOLS, False),
        # Agents can't parse this syntax.
        ("{{- '<call>' ~ call.function.name ~ '()</call>' -}}", _TOOLS, False),
        # The arguments or the name aren't rendered.
        ("""{{- '{"name": "' ~ call.function.name ~ '", "arguments": {}}' -}}""", _TOOLS, False),
        ("{{- '<call>' ~ (call.function.arguments | tojson) ~ '</call>' -}}", _TOOLS, False),
    ],
)
def test_templates_with_unusable_calls_count_as_without_tools(call: str, tools: str, supported: bool) -> None:
    tokenizer = copy.deepcopy(_plain("chatml").tokenizer)
    tokenizer.chat_template = (
        f"{tools}{{%- for message in messages -%}}{{{{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content -}}}}"
        f"{{%- for call in message.tool_calls or [] -%}}{call}{{%- endfor -%}}"
        "{{- '<|im_end|>\n' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
    )
    assert Chat(tokenizer).takes_tools == supported
