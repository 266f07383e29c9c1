"""The actions of an environment as functions, for models that call tools.

An environment declares its grammar as data, in `actions.json` next to its `instructions.md`. Both directions, from call
to action and back, follow from that declaration. How a reply writes a call is the business of `agents.call_parsing`.
"""

from __future__ import annotations

import json
import keyword
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any

from agentgym_envs.util.package_files import package_text

_FIELD = re.compile(r"\{(\w+)\}")
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_READ = {"integer": _WHOLE.pattern, "boolean": "[01]", "string": ".*?", "array": ".*?"}
_KINDS = {"integer": "a whole number", "boolean": "true or false", "string": "text", "array": "a list of texts"}

_BOOLEANS = {"true": "1", "false": "0", "1": "1", "0": "0"}


class CallError(ValueError):
    """A call that cannot be carried out. The message tells the agent why, and which calls are possible."""


@dataclass(frozen=True, slots=True)
class Call:
    """An agent's call of a function with arguments."""

    name: str
    arguments: dict[str, Any]
    thought: str = ""

    def to_json(self) -> str:
        """Return the call as experts write it for every model: `{"thought": …, "function_name": …, "arguments": {…}}`.

        The text contains no `</`, so it cannot close a tag that a chat template puts around it.
        """
        thought = {"thought": self.thought} if self.thought else {}
        record = thought | {"function_name": self.name, "arguments": self.arguments}
        return json.dumps(record, ensure_ascii=False).replace("</", "<\\/")


@dataclass(frozen=True)
class Function:
    """A kind of action that takes arguments.

    Raises:
        ValueError: if names, templates and properties are inconsistent.
    """

    name: str
    """A Python identifier."""
    description: str
    templates: Sequence[str]
    """Texts of the action with `{name}` for an argument. An array is written with commas, a boolean as 0 or 1. A call
    uses the template that has exactly its arguments."""
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """The JSON schema of each argument: an integer, a boolean, a string, or an array of strings."""
    optional: Sequence[str] = field(default_factory=list[str])
    """Arguments that may be left out."""

    def __post_init__(self) -> None:
        for name in (self.name, *self.properties):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise ValueError(
                    f"{name!r} is not a valid name of a function or parameter. Use a Python identifier such as go_to."
                )
        in_templates = {name for template in self.templates for name in _FIELD.findall(template)}
        if in_templates != set(self.properties) or not in_templates.issuperset(self.optional):
            raise ValueError(
                f"{self.name} has the parameters {sorted(self.properties)} ({sorted(self.optional)} of them optional), "
                f"but its templates use {sorted(in_templates)}. Both must contain the same names."
            )
        if unknown := {schema["type"] for schema in self.properties.values()} - _KINDS.keys():
            raise ValueError(
                f"{self.name} has parameters of type {sorted(unknown)}. Supported types: {', '.join(_KINDS)}."
            )

    @property
    def schema(self) -> dict[str, Any]:
        """The function as chat templates and endpoints take a tool."""
        parameters = {
            "type": "object",
            "properties": dict(self.properties),
            "required": [name for name in self.properties if name not in self.optional],
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def action(self, arguments: Mapping[str, Any]) -> str:
        """Return the action of a call with `arguments`, one non-empty line.

        Equivalent values of another type are accepted: `"2"` for 2, `"2 planks, 1 stick"` or JSON for a list.

        Raises:
            CallError: if arguments are missing, unknown or of a wrong type. The environment decides whether the action
                is possible.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        for name in given:
            if name not in self.properties:
                raise CallError(f"{self.name} has no argument {_short(name)}. {self._usage}")
        for name in self.properties:
            if name not in given and name not in self.optional:
                raise CallError(f"{self.name} needs the argument {name!r}. {self._usage}")
        texts = {name: self._text(name, value) for name, value in given.items()}
        for template in self.templates:
            if texts.keys() == set(_FIELD.findall(template)):
                action = _FIELD.sub(lambda found: texts[found[1]], template).strip()
                if action:
                    return action
        raise CallError(f"With these arguments alone {self.name} does nothing. {self._usage}")

    def arguments(self, action: str) -> dict[str, Any] | None:
        """Return the arguments for which this function writes exactly `action`, or None if there are none."""
        for pattern in self._patterns:
            found = pattern.fullmatch(action)
            if found is not None:
                arguments = {name: self._value(name, text) for name, text in found.groupdict().items()}
                if self.action(arguments) == action:
                    return arguments
        return None

    @property
    def _usage(self) -> str:
        if not self.properties:
            return "It takes no arguments."
        names = [f"{name} (optional)" if name in self.optional else name for name in self.properties]
        return f"Its arguments: {', '.join(names)}."

    def _text(self, name: str, value: object) -> str:
        """Return `value` as the action contains it."""
        schema = self.properties[name]
        text = _written(schema["type"], value)
        if text is None or text not in schema.get("enum", [text]):
            wanted = " or ".join(map(repr, schema["enum"])) if "enum" in schema else _KINDS[schema["type"]]
            raise CallError(f"{name!r} of {self.name} is {wanted}, not {_short(value)}. {self._usage}")
        return " ".join(text.splitlines())

    def _value(self, name: str, text: str) -> Any:
        """Return the argument that the action contains as `text`."""
        match self.properties[name]["type"]:
            case "integer":
                return int(text)
            case "boolean":
                return text == "1"
            case "array":
                return text.split(", ")
            case _:
                return text

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        patterns: list[re.Pattern[str]] = []
        for template in self.templates:
            parts = _FIELD.split(template)  # alternates between text and names
            parts[::2] = map(re.escape, parts[::2])
            parts[1::2] = [f"(?P<{name}>{_read(self.properties[name])})" for name in parts[1::2]]
            patterns.append(re.compile("".join(parts)))
        return patterns


ACT = Function(
    "act", "Play an action.", ["{action}"], {"action": {"type": "string", "description": "The action, on one line."}}
)
"""The only function of an environment that declares none. In every environment it expresses the actions that no
declared function covers."""


@cache
def read_functions(package: str) -> tuple[Function, ...]:
    """Read the functions that the environment in `package` declares in `actions.json`; only `ACT` without that file.

    Raises:
        ValueError: if a declaration is invalid or two functions have the same name.
    """
    text = package_text(package, "actions.json")
    if text is None:
        return (ACT,)
    functions = tuple(Function(**record) for record in json.loads(text))
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise ValueError(f"Two functions of {package} have the same name. Its functions: {', '.join(names)}.")
    return functions


def call_for(functions: Iterable[Function], action: str, thought: str = "") -> Call:
    """Return the call of one of `functions` that writes `action`, or else a call of `ACT`.

    `action_of` restores every action that is one line without surrounding whitespace.
    """
    for function in functions:
        arguments = function.arguments(action)
        if arguments is not None:
            return Call(function.name, arguments, thought)
    return Call(ACT.name, {"action": action}, thought)


def action_of(functions: Sequence[Function], call: Call) -> str:
    """Return the action that `call` means.

    Raises:
        CallError: see `find` and `Function.action`.
    """
    return find(functions, call.name).action(call.arguments)


def find(functions: Sequence[Function], name: str) -> Function:
    """Return the function called `name`, which may be `ACT`.

    Raises:
        CallError: if there is none; the message lists the functions.
    """
    named = {function.name: function for function in (ACT, *functions)}
    if name in named:
        return named[name]
    names = [function.name for function in functions]
    near = get_close_matches(name[:40], names, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    raise CallError(f"There is no function {_short(name)}.{meant} The functions: {', '.join(names)}.")


def described(tools: Iterable[Mapping[str, Any]]) -> str:
    """Describe `tools` (as in `Seat.tools`) in text, for chat templates and endpoints that don't take tools."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"Your functions, with the JSON schema of their parameters:\n{lines}\n\n"
        "To call one, answer with one JSON object in this form and nothing after it:\n"
        '{"thought": "what you think", "function_name": "name of the function", "arguments": {"parameter": "value"}}'
    )


def _read(schema: Mapping[str, Any]) -> str:
    """Return a pattern that matches the text that `_written` returns."""
    return "|".join(map(re.escape, schema["enum"])) if "enum" in schema else _READ[schema["type"]]


def _written(kind: str, value: object) -> str | None:
    """Return `value` as an action writes an argument of type `kind`, or None if it is not one."""
    match kind, value:
        case "boolean", bool() | int() | str():
            return _BOOLEANS.get(str(value).lower())
        case "integer", bool():
            return None
        case ("integer" | "string", int()) | ("string", float()):
            return str(value)
        case "integer", float() if value.is_integer():
            return str(int(value))
        case "integer", str() if _WHOLE.fullmatch(value.strip()):
            return value.strip()
        case "string", str():
            return value
        case "array", str():
            items = _json_list(value)
            return value if items is None else _written(kind, items)
        case "array", list():
            return ", ".join(value) if all(isinstance(item, str) for item in value) else None
        case _:
            return None


def _json_list(text: str) -> list[Any] | None:
    """Return the list that `text` is in JSON, as formats without types write it; None if it isn't one."""
    if not text.lstrip().startswith("["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _short(value: object) -> str:
    return reprlib.repr(value)
