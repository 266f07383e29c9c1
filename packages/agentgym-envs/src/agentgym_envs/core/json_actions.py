"""Actions that are JSON: values, and calls of tools, `{"name": "get_weather", "arguments": {"city": "Oslo"}}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_envs.core.action_schema import Function
from agentgym_envs.util.json_text import parse

_DEEPEST = 100  # levels of JSON; pydantic reads about 200


@dataclass(frozen=True)
class ToolFunction(Function):
    """A tool with its own JSON schema, whose actions are calls as JSON. `ToolFunction.of` creates one."""

    input_schema: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, name: str, description: str, input_schema: Mapping[str, Any]) -> ToolFunction:
        """Return the function of a tool. Its parameters are those of `input_schema`."""
        properties: Mapping[str, Any] = input_schema.get("properties") or {}
        parameters = {name: schema if isinstance(schema, Mapping) else {} for name, schema in properties.items()}
        required = input_schema.get("required")
        optional = [name for name in parameters if not isinstance(required, list) or name not in required]
        return cls(name, description, (), parameters, optional, input_schema)

    def __post_init__(self) -> None:
        """Accept every name and schema."""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as it was declared."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.input_schema)}
        return {"type": "function", "function": function}

    def action(self, arguments: Mapping[str, Any]) -> str:
        """Return the call, whatever its arguments: the environment checks them."""
        return json.dumps({"name": self.name, "arguments": dict(arguments)}, ensure_ascii=False)

    def arguments(self, action: str) -> dict[str, Any] | None:
        """Return the arguments of a call of this tool, or None."""
        call = read_call(action)
        return call[1] if call is not None and call[0] == self.name else None


def function_of(record: Mapping[str, Any]) -> Function:
    """Return the function whose fields are in `record`."""
    return ToolFunction(**record) if "input_schema" in record else Function(**record)


def read_json(action: str) -> Any:
    """Return the value of an action as JSON. Its text is UTF-8, and it isn't so deep that a library or a server would
    fail on it: then the fault would be the environment's, and the episode wouldn't count.

    Raises:
        ValueError: if the action is not JSON, or nested too deep.
    """
    value = parse(action)
    level = [value]
    for _ in range(_DEEPEST):
        level = [item for item in level if isinstance(item, list | dict)]
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    if level:
        raise ValueError("it is nested too deep")
    return value


def read_call(action: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the arguments of a tool call as JSON; None for any other text."""
    try:
        record = read_json(action)
    except ValueError:
        return None
    name = record.get("name") if isinstance(record, dict) else None
    arguments = record.get("arguments", {}) if isinstance(record, dict) else None
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None
