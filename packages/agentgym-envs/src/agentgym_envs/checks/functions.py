"""Checks of an environment's functions: against its instructions, as JSON schemas, and as notation of its actions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym_envs.agents.formats import FunctionCall
from agentgym_envs.core.action_schema import ACT, Function, action_of, call_for
from agentgym_envs.core.text_env import TextEnv

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What OpenAI's API takes as the name of a function."""
_FIELD = re.compile(r"\{\w+\}")
_LIMITS = {
    "integer": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}
"""The keywords of JSON Schema that limit values of a type."""


def function_problems(functions: Sequence[Function], instructions: str) -> Iterator[str]:
    """Yield a sentence for each function that the instructions don't mention, and for each invalid schema.

    A function is mentioned if the instructions have its name (`go_to` also as `go to`) or the words with which one of
    its templates begins. `ACT`, the function of environments that declare none, needs no mention.
    """
    for name, count in Counter(function.name for function in functions).items():
        if count > 1:
            yield f"{count} functions have the name {name!r}."
    text = f" {_words(instructions)} "
    for function in functions:
        yield from _schema_problems(function)
        known = _mentions(function)
        if function.name != ACT.name and not any(f" {words} " in text for words in known):
            yield (
                f"The instructions don't mention the function {function.name!r}, neither by name nor by its action "
                f"({' or '.join(map(repr, function.templates))}). Describe it there, or remove it from the functions."
            )


def call_problem(world: TextEnv, action: str) -> str:
    """Return why an agent that calls functions can't play `action`; empty if it can.

    The action must be the call of a declared function, with arguments that its schema allows, and the call, as agents
    write it, must mean the same action again.
    """
    functions = world.functions
    call = call_for(functions, action)
    function = next((one for one in functions if one.name == call.name), None)
    if function is None or action_of(functions, call) != action:
        return f"no declared function expresses {action!r}"
    for name, value in call.arguments.items():
        if limit := _exceeded(function.properties.get(name, {}), value):
            return f"{action!r} is the call {call.to_json()}, but the schema of {name!r} has the {limit}"
    wrapper = FunctionCall(world)
    if (again := wrapper.parse(wrapper.format(action))) != action:
        return f"{action!r} is the call {call.to_json()}, which means {again!r}"
    return ""


def _mentions(function: Function) -> Iterator[str]:
    """Yield the words of which the instructions must have some: those of the name, and of each template's begin."""
    yield _words(function.name)
    yield _words(function.name.replace("_", " "))
    for template in function.templates:
        yield from filter(None, [_words(_FIELD.split(template)[0])])


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _schema_problems(function: Function) -> Iterator[str]:
    name = function.name
    if not _NAME.fullmatch(name):
        yield f"{name!r} can't be a tool's name: use at most 64 ASCII letters, digits and underscores."
    if not _is_text(function.description):
        yield f"The function {name!r} has no description."
    try:
        json.dumps(function.schema)
    except (TypeError, ValueError) as error:
        yield f"The schema of {name!r} is not JSON: {error}."
    for parameter, schema in function.properties.items():
        for problem in _property_problems(schema):
            yield f"The schema of the parameter {parameter!r} of {name!r} {problem}."


def _property_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    kind = schema["type"]
    if not _is_text(schema.get("description")):
        yield "has no description"
    if "enum" in schema and not (
        kind == "string" and isinstance(schema["enum"], list) and schema["enum"] and all(map(_is_text, schema["enum"]))
    ):
        yield "has an enum that isn't a list of texts for the type string"
    limits = {key: schema[key] for key in _LIMITS.get(kind, ()) if key in schema}
    wrong = [key for key, limit in limits.items() if not _is_number(limit)]
    yield from (f"has a {key} that isn't a number" for key in wrong)
    if not wrong and list(limits.values()) != sorted(limits.values()):
        yield f"has a {' above its '.join(limits)}"
    if kind == "array" and schema.get("items", {}).get("type") != "string":
        yield 'needs "items": {"type": "string"} for an array'


def _exceeded(schema: Mapping[str, Any], value: Any) -> str:
    """Return the limit of the schema that a value exceeds, as in `minimum 1`."""
    if isinstance(value, bool) or schema.get("type") not in _LIMITS:
        return ""
    size = value if isinstance(value, int) else len(value)
    low, high = _LIMITS[schema["type"]]
    if size < schema.get(low, size):
        return f"{low} {schema[low]}"
    if size > schema.get(high, size):
        return f"{high} {schema[high]}"
    return ""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
