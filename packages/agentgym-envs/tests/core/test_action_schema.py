"""Tests of action schemas: function calls convert to actions and back, in every registered environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any

import gymnasium
import jsonschema
import pytest
from agentgym_envs import WORLDS, Function, RegisteredWorld, text_env
from agentgym_envs.core.action_schema import ACT, Call, CallError, action_of, call_for, described, read_functions
from door_world import Door
from hypothesis import given
from hypothesis import strategies as st

TYPE = Function(
    "type",
    "Fill a field.",
    ["type [{id}] [{text}] [{enter}]", "type [{id}] [{text}]"],
    {"id": {"type": "integer"}, "text": {"type": "string"}, "enter": {"type": "boolean"}},
    ["enter"],
)
SCROLL = Function("scroll", "Scroll.", ["scroll {way}"], {"way": {"type": "string", "enum": ["up", "down"]}})
MIX = Function("mix", "Mix.", ["mix {parts}"], {"parts": {"type": "array", "items": {"type": "string"}}})
STOP = Function("stop", "Stop.", ["stop"])
FUNCTIONS = (TYPE, SCROLL, MIX, STOP)
LINES = st.text().filter(lambda text: text.strip() == text and len(text.splitlines()) == 1)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (Call("type", {"id": 4, "text": "a] [b", "enter": False}), "type [4] [a] [b] [0]"),
        (Call("type", {"id": 4, "text": ""}), "type [4] []"),
        (Call("scroll", {"way": "up"}), "scroll up"),
        (Call("mix", {"parts": ["2 red", "1 blue"]}), "mix 2 red, 1 blue"),
        (Call("stop", {}), "stop"),
        (Call("act", {"action": "dance"}), "dance"),
        (Call("act", {"action": "type [04] [x]"}), "type [04] [x]"),
        (Call("act", {"action": "scroll left"}), "scroll left"),
    ],
)
def test_calls_convert_to_actions_and_back(call: Call, action: str) -> None:
    assert action_of(FUNCTIONS, call) == action
    assert call_for(FUNCTIONS, action) == call


@given(action=LINES | st.from_regex(r"(type \[\d+\] \[.{0,5}\]( \[[01]\])?|scroll \w+|mix .{1,9})", fullmatch=True))
def test_every_action_has_a_call(action: str) -> None:
    call = call_for(FUNCTIONS, action)
    if action == action.strip() and len(action.splitlines()) == 1:
        assert action_of(FUNCTIONS, call) == action


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"id": "4", "text": 7, "enter": "True"}, "type [4] [7] [1]"),
        ({"id": 4.0, "text": "a\nb", "enter": 0}, "type [4] [a b] [0]"),
        ({"id": 4, "text": "a", "enter": None}, "type [4] [a]"),
    ],
)
def test_equivalent_argument_values_are_accepted(arguments: dict[str, Any], action: str) -> None:
    assert TYPE.action(arguments) == action
    assert MIX.action({"parts": "2 red, 1 blue"}) == "mix 2 red, 1 blue"


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (Call("tpye", {}), "There is no function 'tpye'. Did you mean type? The functions: type, scroll, mix, stop."),
        (Call("type", {"id": 4}), "type needs the argument 'text'. Its arguments: id, text, enter (optional)."),
        (Call("type", {"id": 4, "text": "a", "to": 1}), "type has no argument 'to'."),
        (Call("type", {"id": "four", "text": "a"}), "'id' of type is a whole number, not 'four'."),
        (Call("type", {"id": True, "text": "a"}), "'id' of type is a whole number, not True."),
        (Call("type", {"id": float("nan"), "text": "a"}), "'id' of type is a whole number, not nan."),
        (Call("type", {"id": 4, "text": ["a"]}), "'text' of type is text, not ['a']."),
        (Call("type", {"id": 4, "text": "a", "enter": 2}), "'enter' of type is true or false, not 2."),
        (Call("scroll", {"way": "left"}), "'way' of scroll is 'up' or 'down', not 'left'."),
        (Call("mix", {"parts": [1]}), "'parts' of mix is a list of texts, not [1]."),
        (Call("stop", {"now": 1}), "stop has no argument 'now'. It takes no arguments."),
        (Call("act", {"action": " \n"}), "With these arguments alone act does nothing."),
    ],
)
def test_invalid_call_raises_an_error_with_a_hint(call: Call, hint: str) -> None:
    with pytest.raises(CallError) as error:
        action_of(FUNCTIONS, call)
    assert str(error.value).startswith(hint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "go to"}, "'go to' is not a valid name"),
        ({"name": "from"}, "'from' is not a valid name"),
        ({"templates": ["go {place}"]}, "its templates use \\['place'\\]"),
        ({"optional": ["pace"]}, "\\['pace'\\] of them optional"),
        ({"templates": ["{a}"], "properties": {"a": {"type": "number"}}}, "\\['number'\\]. Supported types: integer"),
    ],
)
def test_inconsistent_function_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Function(**{"name": "go", "description": "Go.", "templates": ["go"]} | changes)


def test_duplicate_function_names_are_rejected(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "twice_declared"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "actions.json").write_text(json.dumps([asdict(STOP), asdict(STOP)]))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="Two functions of twice_declared have the same name"):
        read_functions("twice_declared")


def test_environment_without_functions_has_act() -> None:
    assert Door().functions == (ACT,)
    assert ACT.action({"action": " knock "}) == "knock"


def test_json_of_a_call_contains_no_closing_tags() -> None:
    written = Call("act", {"action": "</tool_call>"}, "x </think>").to_json()
    assert "</" not in written
    assert json.loads(written) == {
        "thought": "x </think>",
        "function_name": "act",
        "arguments": {"action": "</tool_call>"},
    }


def test_functions_are_described_for_templates_without_tools() -> None:
    description = described([SCROLL.schema, STOP.schema])
    assert [json.loads(line) for line in description.splitlines() if line.startswith('{"name"')] == [
        SCROLL.schema["function"],
        STOP.schema["function"],
    ]
    assert '"function_name"' in description


# Every environment; expensive ones are in the long suite. (The everyday contract test plays their experts.)

every_world = pytest.mark.parametrize("world", WORLDS, ids=[world.id for world in WORLDS])


@every_world
def test_function_schemas_are_valid(world: RegisteredWorld) -> None:
    functions = text_env(gymnasium.make(f"agentgym_envs:{world.id}")).functions
    assert ACT not in functions
    for function in functions:
        parameters = function.schema["function"]["parameters"]
        jsonschema.Draft202012Validator.check_schema(parameters)
        assert all(schema["description"].endswith(".") for schema in function.properties.values())
        assert function.description.endswith(".")
        assert Function(**json.loads(json.dumps(asdict(function)))) == function


def expert_turns(env: gymnasium.Env[str, str], tasks: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield `info` and the expert's next action in the first turns of each task."""
    for task in tasks:
        _, info = env.reset(seed=1, options={"task": task})
        for _ in range(8):
            action = text_env(env).oracle()
            yield info, action
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                break


def _is_expensive(world: RegisteredWorld) -> bool:
    return resolve_name(world.entry_point).step_seconds > 5e-3


@pytest.mark.usefixtures("playable")
@pytest.mark.parametrize(
    "world", [pytest.param(w, id=w.id, marks=[pytest.mark.long] if _is_expensive(w) else []) for w in WORLDS]
)
def test_actions_convert_to_calls_and_back(world: RegisteredWorld) -> None:
    """Expert actions and available actions are unchanged, and the arguments fit the schema."""
    options = {"valid_actions": True} if world.id == "agentgym/SciWorld-v0" else {}
    with closing(gymnasium.make(f"agentgym_envs:{world.id}", **options)) as env:
        functions, ids = text_env(env).functions, text_env(env).tasks.train.ids
        schemas = {function.name: function.schema["function"]["parameters"] for function in functions}
        validators = {name: jsonschema.Draft202012Validator(schema) for name, schema in schemas.items()}
        actions = set[str]()
        for info, expert in expert_turns(env, ids[:2] if _is_expensive(world) else ids[:: len(ids) // 12]):
            actions |= {expert, *(info["available_actions"] or ())}
        calls = {action: call_for(functions, action) for action in actions}
        for action, call in calls.items():
            validators[call.name].validate(call.arguments)
            assert action_of(functions, call) == action
        assert len({call.name for call in calls.values()}) >= 2
