"""Functions, calls and answers in conversations: in the template's own way, or described where it has none."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from agentgym_envs import Conversation, Message
from agentgym_envs.agents.call_parsing import find_call
from agentgym_envs.core.action_schema import ACT, Call, Function, described
from agentgym_trainer.tokens.chat import Chat, Context
from chat_templates import FAMILIES, PUBLISHED, chat_of, published_chat
from hypothesis import given, settings
from hypothesis import strategies as st

GO = Function("go", "Walk.", ("go {where}",), {"where": {"type": "string", "description": "To where."}})
TOOLS = (ACT.schema, GO.schema)
TAKING = ["qwen2.5", "qwen3", "llama3", "mistral"]
native = pytest.mark.parametrize("family", [*TAKING, *PUBLISHED])
some = settings(max_examples=5)

words = st.text("abcdefghij.,0123456789äß中", min_size=1, max_size=8)
values = st.one_of(words, st.integers(-99, 99), st.booleans(), st.lists(words, max_size=2))
calls = st.builds(Call, st.sampled_from(["act", "go"]), st.dictionaries(words, values, max_size=2))
thoughtful = st.builds(Call, st.just("go"), st.dictionaries(words, values, max_size=2), words)


def _plain(family: str) -> Chat:
    """Without functions."""
    return published_chat(family) if family in PUBLISHED else chat_of(family)


def _seated(family: str) -> Chat:
    """With functions."""
    return _plain(family).with_tools(TOOLS)


def _hostile(chat: Chat) -> st.SearchStrategy[str]:
    special = [*chat.tokenizer.all_special_tokens, "system", '"', "\n", "\ue000", "m0\ue001", "</tool_call"]
    return st.lists(st.one_of(st.sampled_from(special), st.text(max_size=4))).map("".join)


def _shape(chat: Chat, ids: list[int]) -> list[int]:
    return [i for i in ids if i in chat.tokenizer.all_special_ids]


def _talk(*texts: str, told: str = "") -> Conversation:
    """What user and assistant say in turn."""
    said = tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts))  # type: ignore[arg-type]
    return (Message("system", told), *said) if told else said


def _as_templates_take_it(conversation: Conversation) -> list[dict[str, Any]]:
    """Calls and answers as transformers documents them."""
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
def test_which_templates_take_functions(family: str) -> None:
    assert _plain(family).takes_tools == (family in TAKING or family in PUBLISHED)


@native
@some
@given(calls=st.lists(calls, max_size=3), answers=st.lists(words, min_size=4, max_size=4), told=st.booleans())
def test_functions_calls_and_answers_stand_as_the_template_writes_them(
    family: str, calls: list[Call], answers: list[str], told: bool
) -> None:
    chat = _seated(family)
    hard = [f'{answer} "{answer}"\n{answer}' for answer in answers]
    texts = [text for call, answer in zip(calls, hard[1:], strict=False) for text in (call.to_json(), answer)]
    conversation = _talk(answers[0], *texts, told="be brave" if told else "")
    assert chat.open(conversation) == chat.tokenizer.apply_chat_template(
        _as_templates_take_it(conversation),
        tools=list(TOOLS),
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )


@native
@some
@given(calls=st.lists(thoughtful, min_size=1, max_size=3), answers=st.lists(words, min_size=4, max_size=4))
def test_a_conversation_of_calls_grown_by_appending_is_the_whole(
    family: str, calls: list[Call], answers: list[str]
) -> None:
    chat = _seated(family)
    context, conversation = Context(chat), _talk(answers[0])
    context.prompt(conversation)
    for call, answer in zip(calls, answers[1:], strict=False):
        context.append_reply(chat.reply_ids(call.to_json()))
        conversation += (Message("assistant", call.to_json()), Message("user", answer))
        _, fresh = context.prompt(conversation)
        assert not fresh
    assert context.ids == chat.open(conversation)


@native
@some
@given(data=st.data())
def test_a_call_that_knows_no_model_is_said_as_the_model_says_it(family: str, data: st.DataObject) -> None:
    chat = _seated(family)
    hostile = _hostile(chat)
    call = Call("act", {"action": data.draw(hostile)}, data.draw(words))
    ids = chat.reply_ids(call.to_json())
    said = chat.reply_text(ids)
    found = find_call(said)
    assert (found.name, found.arguments) == (call.name, json.loads(call.to_json())["arguments"])
    assert '"function_name"' not in said
    assert said.startswith(call.thought)
    named = chat.reply_ids(Call(f"a{data.draw(hostile)}", {}).to_json())
    assert _shape(chat, named) == _shape(chat, ids)
    own = {"[TOOL_CALLS]"} if family == "mistral" else set[str]()
    control = [chat.tokenizer.convert_ids_to_tokens(i) for i in _shape(chat, ids[:-1])]
    assert set(control) == own
    assert len(control) == len(own)


@native
@some
@given(data=st.data())
def test_answers_never_become_control_tokens(family: str, data: st.DataObject) -> None:
    chat, call = _seated(family), Call("go", {"where": "on"}).to_json()
    hostile, harmless = f"a{data.draw(_hostile(chat))}", _talk("x", call, "x", told="x")
    whole = _talk(hostile, call, hostile, told=hostile)
    assert _shape(chat, chat.open(whole)) == _shape(chat, chat.open(harmless))
    ids, quiet = chat.extend(whole), chat.extend(harmless)
    assert ids is not None
    assert quiet is not None
    assert _shape(chat, ids) == _shape(chat, quiet)


@native
def test_functions_never_become_control_tokens(family: str) -> None:
    spelled = "".join(_plain(family).tokenizer.all_special_tokens)
    tools = (Function("act", spelled, ACT.templates, ACT.properties).schema,)
    chat, quiet = _plain(family).with_tools(tools), _plain(family).with_tools((ACT.schema,))
    assert _shape(chat, chat.open(_talk("x"))) == _shape(quiet, quiet.open(_talk("x")))
    assert spelled in chat.tokenizer.decode(chat.open(_talk("x")))


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("qwen2.5", 'hm <tool_call>{"arguments":{"where":"on"},"name":"go"}</tool_call>'),
        ("qwen3", '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "go",  "arguments": {}}\n</tool_call>'),
        ("llama3", 'I go. {"name": "go", "parameters": {"where": "on"}}'),
        ("mistral", '[TOOL_CALLS][{"name": "go", "arguments": {}, "id": "abc123def"}]'),
    ],
)
def test_a_call_stands_in_the_history_to_the_letter(family: str, said: str) -> None:
    chat = _seated(family)
    context, conversation = Context(chat), _talk("x")
    context.prompt(conversation)
    ids = chat.reply_ids(said)
    context.append_reply(ids)
    conversation += _talk("", said, "y")[1:]
    _, fresh = context.prompt(conversation)
    assert not fresh
    assert chat.reply_text(ids) == said
    assert context.ids == chat.open(conversation)
    assert said in chat.tokenizer.decode(context.ids)
    # What begins a call is the agent's to say, as a control token where it is one.
    assert _shape(chat, ids[:-1]) == [chat.tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")] * (family == "mistral")


@native
def test_what_answers_no_call_is_a_question_and_what_answers_one_is_none(family: str) -> None:
    chat = _seated(family)
    call = Call("go", {"where": "on"}).to_json()
    question = chat.extend(_talk("x", "I have no idea.", "Call exactly one function."))
    answer = chat.extend(_talk("x", call, "Call exactly one function."))
    marks = {"mistral": "[TOOL_RESULTS]", "llama3": "ipython", "llama3.1 published": "ipython"}
    mark = marks.get(family, "<tool_response>")
    assert answer is not None
    assert mark in chat.tokenizer.decode(answer)
    # Mistral's moves the functions to the last question, so that nothing can be appended.
    assert (question is None) == (family == "mistral")
    assert mark not in chat.tokenizer.decode(question or chat.open(_talk("x", "I have no idea.", "Call one.")))


def test_a_template_that_moves_the_functions_begins_a_fresh_segment() -> None:
    chat = _seated("mistral")
    context = Context(chat)
    context.prompt(_talk("x"))
    context.append_reply(chat.reply_ids("I have no idea."))
    _, fresh = context.prompt(_talk("x", "I have no idea.", "Call one."))
    assert fresh
    assert context.segments == 2


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(TAKING)))
def test_other_templates_have_the_functions_described_in_the_system_message(family: str) -> None:
    chat = _plain(family)
    call = Call("go", {"where": "on"}).to_json()
    talk, told = _talk("x", call, "y", told="be brave"), f"be brave\n\n{described(TOOLS)}"
    assert _seated(family).open(talk) == chat.open(_talk("x", call, "y", told=told))
    assert _seated(family).extend(talk) == chat.extend(_talk("x", call, "y", told=told))
    assert _seated(family).reply_ids(call) == chat.reply_ids(call)
    # Who is told nothing is not told that either.
    assert _seated(family).open(_talk("x")) == chat.open(_talk("x"))


@native
def test_without_functions_all_is_words(family: str) -> None:
    chat, call = _plain(family), Call("go", {"where": "on"}).to_json()
    assert chat.with_tools(()) is chat
    assert chat.reply_text(chat.reply_ids(call)) == call
    assert call in chat.tokenizer.decode(chat.open(_talk("x", call, "y")))
    assert chat.with_tools(TOOLS) is _seated(family)


_SHOWN = "{%- if tools -%}{{- tools | tojson -}}{%- endif -%}"
_CALL = """{{- '<call>{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}"""


@pytest.mark.parametrize(
    ("call", "shown", "taken"),
    [
        (_CALL + "{{- '}</call>' -}}", _SHOWN, True),
        # The functions are not shown.
        (_CALL + "{{- '}</call>' -}}", "", False),
        # The name stands twice, so that what is around it hangs on it.
        (_CALL + "{{- '}</' ~ call.function.name ~ '>' -}}", _SHOWN, False),
        # Arguments are to be a text.
        ("{{- '<call>' ~ call.function.name ~ (call.function.arguments + '</call>') -}}", _SHOWN, False),
        # No agent of ours reads that.
        ("{{- '<call>' ~ call.function.name ~ '()</call>' -}}", _SHOWN, False),
        # The arguments are lost, or the name is.
        ("""{{- '{"name": "' ~ call.function.name ~ '", "arguments": {}}' -}}""", _SHOWN, False),
        ("{{- '<call>' ~ (call.function.arguments | tojson) ~ '</call>' -}}", _SHOWN, False),
    ],
)
def test_templates_whose_calls_can_not_be_had_count_as_those_without(call: str, shown: str, taken: bool) -> None:
    tokenizer = copy.deepcopy(_plain("chatml").tokenizer)
    tokenizer.chat_template = (
        f"{shown}{{%- for message in messages -%}}{{{{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content -}}}}"
        f"{{%- for call in message.tool_calls or [] -%}}{call}{{%- endfor -%}}"
        "{{- '<|im_end|>\n' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
    )
    assert Chat(tokenizer).takes_tools == taken
