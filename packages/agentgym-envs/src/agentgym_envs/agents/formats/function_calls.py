"""Forms of replies that call functions: `FunctionCall`, `CodeAct`. What functions there are, the world says."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

from agentgym_envs.agents.call_parsing import find_call, find_code_call, write_code_call
from agentgym_envs.agents.formats.base import ReplyWrapper
from agentgym_envs.core.action_schema import Call, CallError, Function, action_of, call_for
from agentgym_envs.core.text_env import Malformed, writable

_TYPES = {"integer": "int", "boolean": "bool", "string": "str", "array": "list[str]"}


class CallingWrapper(ReplyWrapper):
    """A world whose actions are calls of its functions."""

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Those of the world."""
        return self.env.get_wrapper_attr("functions")

    @abstractmethod
    def find(self, reply: str) -> Call:
        """The call in `reply`. Raises CallError when there is none."""

    def parse(self, reply: str) -> str | Malformed:
        """The action that the call in `reply` stands for."""
        try:
            return writable(action_of(self.functions, self.find(reply)))
        except CallError as error:
            return Malformed(reply, str(error))


class FunctionCall(CallingWrapper):
    """One call of a function as JSON; see `find_call` for the forms that are understood.

    The functions are in `tools`. Experts write `{"thought": …, "function_name": …, "arguments": {…}}`, which is the
    same for all models.
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
        """The one call in JSON."""
        return find_call(reply)

    def format(self, action: str, thought: str = "") -> str:
        """The call of the function that is `action`."""
        return call_for(self.functions, action, " ".join(thought.split())).to_json()


class CodeAct(CallingWrapper):
    """One call of a function as a line of Python, fenced, after a thought (Wang et al. 2024, arXiv 2402.01030).

    Nothing is ever run: a call with literal arguments is all that is understood; see `find_code_call`.
    """

    reply_format = "code-act"
    format_instructions = (
        "Answer in this form, with exactly one call of a function, whose arguments are plain values:\n"
        "what you think\n```python\nfunction(parameter='value')\n```"
    )

    def told(self, instructions: str) -> str:
        """See `ReplyWrapper.told`: the functions are told as well."""
        signatures = "\n".join(map(_signature, self.functions))
        return super().told(f"{instructions}\n\nYour functions, which stand for the actions above:\n{signatures}")

    def find(self, reply: str) -> Call:
        """The one call in Python."""
        return find_code_call(reply, self.functions)

    def format(self, action: str, thought: str = "") -> str:
        """Thought, and the call in a fence."""
        said = " ".join(thought.replace("`", "'").replace("</", "< /").split())
        code = f"```python\n{write_code_call(call_for(self.functions, action))}\n```"
        return f"{said}\n{code}" if said else code


def _signature(function: Function) -> str:
    """The function as Python declares it, and what it does."""
    parameters = ", ".join(
        f"{name}: {_TYPES[schema['type']]}{' = None' if name in function.optional else ''}"
        for name, schema in function.properties.items()
    )
    said = [f"{name}: {schema['description']}" for name, schema in function.properties.items()]
    return "\n".join([f"{function.name}({parameters})", *(f"    {line}" for line in (function.description, *said))])
