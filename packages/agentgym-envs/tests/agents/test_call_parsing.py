"""Tests of parsing function calls from replies: JSON in the formats of many models, and Python, which is never run."""

from __future__ import annotations

import json
import warnings

import pytest
from agentgym_envs import CodeAct, FunctionCall, Malformed
from agentgym_envs.agents.call_parsing import find_call, find_code_call, split_calls, write_code_call
from agentgym_envs.agents.formats import MAX_REPLY_CHARS
from agentgym_envs.agents.formats.function_calls import _signature
from agentgym_envs.core.action_schema import ACT, Call, CallError, Function
from door_world import Door
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

GO = Function(
    "go",
    "Go.",
    ["go {place} {steps}", "go {place}"],
    {"place": {"type": "string"}, "steps": {"type": "integer"}},
    ["steps"],
)
GO_HOME = Call("go", {"place": "home"})


@pytest.mark.parametrize(
    "reply",
    [
        '{"function_name": "go", "arguments": {"place": "home"}}',
        '{"name": "go", "arguments": {"place": "home"}}',
        '{"name": "go", "parameters": {"place": "home"}}',
        '{"type": "function", "function": {"name": "go", "arguments": "{\\"place\\": \\"home\\"}"}}',
        'I am tired {and} "hungry".\n```json\n{"name": "go", "arguments": {"place": "home"}}\n```\nBye.',
        '<tool_call>\n{"name": "go", "arguments": {"place": "home"}}\n</tool_call>',
        'Well.<|python_tag|>{"name": "go", "parameters": {"place": "home"}}',
        '[TOOL_CALLS] [{"name": "go", "arguments": {"place": "home"}, "id": "abcdefghi"}]',
        '[TOOL_CALLS]go{"place": "home"}',
        '[TOOL_CALLS]go[CALL_ID]abc123[ARGS]{"place": "home"}',
        '<function=go>{"place": "home"}</function>',
        "<tool_call>\n<function=go>\n<parameter=place>\nhome\n</parameter>\n</function>\n</tool_call>",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>go\n```json\n{"place": "home"}\n```<｜tool▁call▁end｜>',
        '<｜tool▁call▁begin｜>go<｜tool▁sep｜>{"place": "home"}<｜tool▁call▁end｜>',
        '<|channel|>commentary to=functions.go <|constrain|>json<|message|>{"place": "home"}',
        '<think>{"name": "stay", "arguments": {}} or go?</think>{"name": "go", "arguments": {"place": "home"}}',
    ],
)
def test_calls_in_common_formats_are_found(reply: str) -> None:
    assert find_call(reply) == GO_HOME


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "go", "arguments": {"place": "home"}}',
        '{"type": "function", "function": {"name": "go", "arguments": "{\\"place\\": \\"home\\"}"}}',
        '```json\n{"name": "go", "arguments": {"place": "home"}}\n```',
        '<tool_call>\n{"name": "go", "arguments": {"place": "home"}}\n</tool_call>',
        '<|python_tag|>{"name": "go", "parameters": {"place": "home"}}',
        '[TOOL_CALLS] [{"name": "go", "arguments": {"place": "home"}, "id": "abcdefghi"}]',
        '[TOOL_CALLS]go[CALL_ID]abc123[ARGS]{"place": "home"}',
        '<function=go>{"place": "home"}</function>',
        "<tool_call>\n<function=go>\n<parameter=place>\nhome\n</parameter>\n</function>\n</tool_call>",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>go<｜tool▁sep｜>{"place": "home"}<｜tool▁call▁end｜>',
        '<|channel|>commentary to=functions.go <|constrain|>json<|message|>{"place": "home"}',
    ],
)
def test_the_text_before_calls_has_none_of_their_markup(call: str) -> None:
    assert split_calls(call) == ("", [GO_HOME])
    assert split_calls(f"I am {{tired}}.\n{call}") == ("I am {tired}.", [GO_HOME])
    assert split_calls(f"<think>{call}</think>\n\nWell.\n{call}\n{call}")[1] == [GO_HOME, GO_HOME]
    assert split_calls(f"<think>hm</think>\n{call}") == ("<think>hm</think>", [GO_HOME])


def test_a_reply_without_calls_is_all_text() -> None:
    assert split_calls(' Well {"place": "home"} <tool_call> ') == ('Well {"place": "home"} <tool_call>', [])


def test_arguments_and_thoughts_are_kept_unchanged() -> None:
    reply = (
        '{"thought": "Line\nbreaks.", "function_name": "go", "arguments": {"place": {"name": "x", "arguments": {}}}}'
    )
    assert find_call(reply) == Call("go", {"place": {"name": "x", "arguments": {}}}, "Line\nbreaks.")
    assert find_call('{"function_name": "rest"}') == Call("rest", {})
    for empty in ("{}", "null", '""'):
        assert find_call(f'{{"name": "rest", "arguments": {empty}}}') == Call("rest", {})


MIX = Function(
    "mix",
    "Mix.",
    ["mix {parts} in {pot}", "mix {parts}"],
    {"parts": {"type": "array"}, "pot": {"type": "string"}},
    ["pot"],
)


@pytest.mark.parametrize(
    ("parts", "pot", "action"),
    [
        ('["a", "b"]', '["c"]', 'mix a, b in ["c"]'),
        ('\n ["a"]\n', "[1, 2]", "mix a in [1, 2]"),
        ("a, b", "[c", "mix a, b in [c"),
        ("[a", "[]", "mix [a in []"),
    ],
)
def test_untyped_arguments_are_read_as_their_parameters_type(parts: str, pot: str, action: str) -> None:
    call = find_call(f"<function=mix><parameter=parts>{parts}</parameter><parameter=pot>{pot}</parameter></function>")
    assert call == Call("mix", {"parts": parts.removeprefix("\n").removesuffix("\n"), "pot": pot})
    assert MIX.action(call.arguments) == action


@pytest.mark.parametrize("parts", ["[1]", '["a", ["b"]]'])
def test_json_lists_of_other_values_are_rejected(parts: str) -> None:
    with pytest.raises(CallError, match="'parts' of mix is a list of texts"):
        MIX.action({"parts": parts})


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        ("", "no function call"),
        ("I go home.", "no function call"),
        ('{"name": "go", "arguments": {"place": "home"}', "no function call"),
        ('{"name": "go"}', "no function call"),
        ('{"name": 1, "arguments": {}}', "no function call"),
        ('{"name": "go", "arguments": "home"}', "no function call"),
        ('{"name": "go", "arguments": ["home"]}', "no function call"),
        ('{"name": "a", "arguments": {}}{"name": "a", "arguments": {}}', "2 function calls"),
        ('[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]', "2 function calls"),
        ('{"a":' * 10_000, "no function call"),
        ("[" * 10_000, "no function call"),
        ('{"a":' * 900 + "x", "no function call"),
    ],
)
def test_missing_and_multiple_calls_are_reported(reply: str, hint: str) -> None:
    with pytest.raises(CallError, match=hint):
        find_call(reply)


def test_nested_objects_are_not_decoded_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    positions: list[int] = []

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[object, int]:
            positions.append(idx)
            return super().raw_decode(s, idx)

    monkeypatch.setattr("agentgym_envs.agents.call_parsing._DECODER", Counting())
    for reply in ("{" * MAX_REPLY_CHARS, ('{"a":' * 900 + "1" + "}" * 900) * 12):
        with pytest.raises(CallError, match="no function call"):
            find_call(reply)
    assert len(positions) <= 500


def test_lone_surrogates_in_actions_are_replaced() -> None:
    assert FunctionCall(Door()).parse('{"name": "act", "arguments": {"action": "say \\ud83d"}}') == "say ?"
    assert CodeAct(Door()).parse("act('say \\ud83d')") == "say ?"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
TAGS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<function=act>", "<parameter=action>", "</parameter>"]
PIECES = [*TAGS, "</function>", "act", "{", "}", '"', ":", ",", '"name"', '"arguments"', "```", "(", ")", "'", "\\d"]
REPLIES = st.lists(st.sampled_from(PIECES) | st.text(max_size=5)).map("".join) | st.builds(
    lambda name, arguments: json.dumps({"name": name, "arguments": arguments}), st.sampled_from(["act", "go"]), JSON
)


@given(reply=REPLIES)
def test_parsing_is_total(reply: str) -> None:
    for wrapper in (FunctionCall(Door()), CodeAct(Door())):
        parsed = wrapper.parse(reply)
        assert parsed == (reply if isinstance(parsed, Malformed) else parsed.strip())
        assert isinstance(parsed, Malformed) or len(parsed.splitlines()) == 1


@given(
    name=st.from_regex(r"[a-z_]{1,9}", fullmatch=True), arguments=st.dictionaries(st.text(), JSON), thought=st.text()
)
def test_json_calls_round_trip(name: str, arguments: dict[str, object], thought: str) -> None:
    parsed = find_call(f"So:\n{Call(name, arguments, thought).to_json()}")
    assert (parsed.name, parsed.thought, repr(parsed.arguments)) == (name, thought, repr(arguments))


# Calls in Python.

LITERALS = st.text() | st.integers(-(10**18) + 1, 10**18 - 1) | st.booleans() | st.none() | st.lists(st.text())


@given(place=LITERALS, steps=LITERALS)
def test_python_calls_round_trip(place: object, steps: object) -> None:
    call = Call("go", {"place": place, "steps": steps})
    written = write_code_call(call)
    assert "`" not in written and "</" not in written
    assert find_code_call(f"Home it is.\n```python\n{written}\n```", [GO]) == call


@pytest.mark.parametrize(
    "reply",
    [
        "go('home')",
        "go(place='home')",
        'So.\n```python\n# home\ngo(\n    "home",\n)\n```\nBye.',
        "```py\ngo('ho' 'me')\n```",
        "```\ngo('home')",
        "<think>go('away')</think>\ngo('home')",
    ],
)
def test_python_calls_are_parsed(reply: str) -> None:
    assert find_code_call(reply, [GO]) == GO_HOME


def test_unknown_escapes_are_kept_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_code_call(r"go('\d', -1)", [GO]) == Call("go", {"place": r"\d", "steps": -1})


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("", "no function call"),
        ("import os", "no function call"),
        ("x = go('home')", "no function call"),
        ("lambda: go('home')", "no function call"),
        ("go", "no function call"),
        ("go('a'); go('b')", "2 statements"),
        ("```\ngo('a')\n```\n```\ngo('b')\n```", "several pieces of code"),
        ("__import__('os')", "There is no function '__import__'"),
        ("__import__('os').system('true')", "Names with dots"),
        ("go.__class__()", "Names with dots"),
        ("eval('1')", "There is no function 'eval'"),
        ("go(open('x'))", "calls within calls aren't understood"),
        ("go(__builtins__)", "variables aren't understood"),
        ("go(''.__class__)", "names with dots aren't understood"),
        ("go(f'{1}')", "f-strings aren't understood"),
        ("go([x for x in 'ab'])", "comprehensions aren't understood"),
        ("go(x for x in 'ab')", "comprehensions aren't understood"),
        ("go('a' * 10**9)", "arithmetic"),
        ("go({'a': 1})", "dictionaries aren't understood"),
        ("go(*'ab')", "stars aren't understood"),
        ("go(**{'place': 'x'})", "stars aren't understood"),
        ("go(**'x')", "stars aren't understood"),
        ("go(lambda: 1)", "such expressions aren't understood"),
        ("go(b'x')", "such expressions aren't understood"),
        ("go(1j)", "such expressions aren't understood"),
        ("go(...)", "such expressions aren't understood"),
        ("go(not 1)", "such expressions aren't understood"),
        (f"go(0x{'f' * 5000})", "such expressions aren't understood"),
        ("go('a', 1, 2)", r"go takes 2 arguments \(place, steps\), not 3"),
        ("go('a', place='b')", "An argument of go was given twice"),
        ("go(place='a', place='b')", "An argument of go was given twice"),
        ("go('a'", "could not be read"),
        ("go(\x00)", "could not be read"),
        ("(" * 5000, "could not be read"),
        ("go(" + "-" * 60_000 + "1)", "could not be read|such expressions"),
    ],
)
def test_code_other_than_one_literal_call_is_rejected(code: str, hint: str) -> None:
    with pytest.raises(CallError, match=hint):
        find_code_call(code, [GO])


def test_parameters_without_a_description_are_listed_by_name() -> None:
    press = Function("press", "Change a lamp.", ["press {lamp}"], {"lamp": {"type": "integer"}})
    assert _signature(press) == "press(lamp: int)\n    Change a lamp.\n    lamp: lamp"


def test_code_act_instructions_list_functions_in_python() -> None:
    instructions = CodeAct(Door()).instructions
    assert "act(action: str)\n    Play an action.\n    action: The action, on one line." in instructions
    assert FunctionCall(Door()).tools == (ACT.schema,)
    assert "act(" not in FunctionCall(Door()).instructions
