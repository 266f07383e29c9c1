"""Reply formats that call functions of the environment: `FunctionCall`, `CodeAct`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from agentgym_envs.agents.call_parsing import find_call, find_code_call, write_code_call
from agentgym_envs.agents.formats.base import ReplyWrapper
from agentgym_envs.core.action_schema import Call, CallError, Function, action_of, call_for
from agentgym_envs.core.text_env import Malformed, writable

_TYPES = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "string": "str",
    "array": "list",
    "object": "dict",
}


class CallingWrapper(ReplyWrapper):
    """An environment whose actions are calls of its functions."""

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The environment's functions."""
        return self.env.get_wrapper_attr("functions")

    @abstractmethod
    def find(self, reply: str) -> Call:
        """Return the call in `reply`. Raises CallError if there is none."""

    def parse(self, reply: str) -> str | Malformed:
        """Return the action that the call in `reply` means."""
        try:
            return writable(action_of(self.functions, self.find(reply)))
        except CallError as error:
            return Malformed(reply, str(error))


class FunctionCall(CallingWrapper):
    """One function call as JSON; see `find_call` for the supported formats.

    `tools` describes the functions. Experts write `{"thought": …, "function_name": …, "arguments": {…}}` for all
    models.
    """

    reply_format = "function-call"
    format_instructions = (
        "Act by calling exactly one of your functions in each answer. They stand for the actions above."
    )

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """See `ReplyWrapper.tools`."""
        return tuple(function.schema for function in self.functions)

    def find(self, reply: str) -> Call:
        """Return the only JSON call."""
        return find_call(reply)

    def format(self, action: str, thought: str = "") -> str:
        """Return the function call that means `action`."""
        return call_for(self.functions, action, " ".join(thought.split())).to_json()


class CodeAct(CallingWrapper):
    """One function call as a fenced line of Python, after a thought (Wang et al. 2024, arXiv 2402.01030).

    The code is never executed. Only a call with literal arguments is supported; see `find_code_call`.
    """

    reply_format = "code-act"
    format_instructions = (
        "Answer in this form, with exactly one call of a function, whose arguments are plain values:\n"
        "what you think\n```python\nfunction(parameter='value')\n```"
    )

    @property
    def full_format_instructions(self) -> str:
        """The description of the reply format, after the signatures of the functions."""
        signatures = "\n".join(map(_signature, self.functions))
        return f"Your functions, which stand for the actions above:\n{signatures}\n\n{self.format_instructions}"

    def find(self, reply: str) -> Call:
        """Return the only Python call."""
        return find_code_call(reply, self.functions)

    def format(self, action: str, thought: str = "") -> str:
        """Return the thought followed by the fenced call."""
        prose = " ".join(thought.replace("`", "'").replace("</", "< /").split())
        code = f"```python\n{write_code_call(call_for(self.functions, action))}\n```"
        return f"{prose}\n{code}" if prose else code


def _signature(function: Function) -> str:
    """Return the function's Python signature with its documentation."""
    parameters = ", ".join(
        f"{name}: {_type(schema)}{' = None' if name in function.optional else ''}"
        for name, schema in function.properties.items()
    )
    described = [f"{name}: {schema.get('description') or name}" for name, schema in function.properties.items()]
    documentation = [f"    {line}" for line in (function.description, *described)]
    return "\n".join([f"{function.name}({parameters})", *documentation])


def _type(schema: Mapping[str, Any]) -> str:
    """Return the Python type of a parameter. A tool's own schema may be any."""
    kind = schema.get("type")
    if kind == "array" and schema.get("items") == {"type": "string"}:
        return "list[str]"
    return _TYPES.get(kind, "object") if isinstance(kind, str) else "object"
