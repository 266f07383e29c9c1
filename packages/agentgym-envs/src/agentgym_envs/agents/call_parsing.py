"""Parsing of function calls in model output: JSON in the formats of common chat templates, or one line of Python.

Nothing is ever evaluated. `find_call` doesn't check whether the function exists.
"""

from __future__ import annotations

import ast
import json
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from agentgym_envs.core.action_schema import Call, CallError, Function, find

_NAMED = re.compile(
    r"(?:\[TOOL_CALLS\]|<function=|<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?|to=functions\.)\s*(\w+)"
    r"(?:\[CALL_ID\]\w+)?(?:\[ARGS\]|>|<｜tool▁sep｜>|<\|constrain\|>|<\|message\|>|```|json|\s)*\Z"
)
"""The name that precedes a JSON object of arguments alone, in the formats of Mistral (later versions), Llama, DeepSeek
and gpt-oss."""
_NAME_LOOKBACK = 200  # characters before an object that are searched for its name
_XML = re.compile(r"<function=(\w+)>\s*((?:<parameter=(?:(?!<function=).)*?)?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(\w+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.DOTALL)
_MARKUP = re.compile(
    r"\s*(?:<tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]\s*\[?|```\w*|<｜tool▁calls▁begin｜>|<\|channel\|>\w*|"
    r'\{\s*"type"\s*:\s*"function"\s*,\s*"function"\s*:)\s*\Z'
)
"""What the formats write before a call."""
_DECODER = json.JSONDecoder(strict=False)  # allows line breaks in strings
_OPENING = re.compile(r"\{(?=\s*[\"}])")  # of an object
_MAX_OBJECTS = 500  # per reply: parsing nested objects from every opening takes quadratic time


def spoken(reply: str) -> str:
    """Return the part of `reply` after the reasoning, which ends with `</think>`, or all of it without reasoning."""
    return reply.rpartition("</think>")[2].strip()


def find_call(reply: str) -> Call:
    """Return the only function call in `reply`, which may contain other text.

    Supported formats: an object with `function_name` or `name`, and `arguments` or `parameters` (OpenAI, Llama), bare,
    fenced, in `<tool_call>` (Hermes, Qwen) or after `[TOOL_CALLS]` (Mistral); a name before an object of arguments
    (Mistral from version 11 on, DeepSeek, gpt-oss); and `<function=…><parameter=…>` (Qwen 3 Coder), whose arguments
    are all text, since it doesn't mark types. Text before `</think>` is reasoning and is not searched.

    Raises:
        CallError: if there is no call or more than one.
    """
    calls = [call for _, call in _found(spoken(reply))]
    if not calls:
        raise CallError("There was no function call in your answer, or it was damaged. Call exactly one function.")
    if len(calls) > 1:
        raise CallError(f"There were {len(calls)} function calls in your answer. Call exactly one function.")
    return calls[0]


def split_calls(reply: str) -> tuple[str, list[Call]]:
    """Return the text before the first function call in `reply`, and all calls, in the formats of `find_call`.

    The text has neither the markup of the call nor white space at its ends; without a call it is the whole reply.
    """
    thinking, end, answer = reply.rpartition("</think>")
    found = _found(answer)
    before = thinking + end + (_MARKUP.sub("", answer[: found[0][0]]) if found else answer)
    return before.strip(), [call for _, call in found]


def _found(answer: str) -> list[tuple[int, Call]]:
    """Return the calls in `answer` and where they start, after their markup."""
    written = [(match.start(), Call(match[1], dict(_PARAMETER.findall(match[2])))) for match in _XML.finditer(answer)]
    return written or list(_calls(answer))


def _calls(text: str) -> Iterator[tuple[int, Call]]:
    """Yield the JSON calls in `text` and where they start. An object that isn't a call may contain calls."""
    consumed = 0
    for opening in islice(_OPENING.finditer(text), _MAX_OBJECTS):
        start = opening.start()
        if start < consumed:
            continue
        try:
            record, end = _DECODER.raw_decode(text, start)
        except RecursionError:
            return
        except ValueError:
            continue
        named = _NAMED.search(text[max(0, start - _NAME_LOOKBACK) : start])
        call = Call(named[1], record) if named else _call(record)
        if call is not None:
            yield named.start() + max(0, start - _NAME_LOOKBACK) if named else start, call
            consumed = end


def _call(record: dict[str, Any]) -> Call | None:
    """Return the call that an object describes, or None if it isn't a call."""
    if not record.keys() & {"function_name", "arguments", "parameters"}:
        return None
    name = record.get("function_name", record.get("name"))
    arguments = record.get("arguments", record.get("parameters")) or {}  # some models write null or "" for no arguments
    if isinstance(arguments, str):  # OpenAI's format encodes arguments as a string
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    thought = record.get("thought")
    return Call(name, arguments, thought if isinstance(thought, str) else "")


# Python: only one call with literal arguments is supported.

_REFUSED: dict[type[ast.AST], str] = {
    ast.Attribute: "names with dots",
    ast.BinOp: "arithmetic",
    ast.Call: "calls within calls",
    ast.Dict: "dictionaries",
    ast.JoinedStr: "f-strings",
    ast.ListComp: "comprehensions",
    ast.DictComp: "comprehensions",
    ast.SetComp: "comprehensions",
    ast.GeneratorExp: "comprehensions",
    ast.Name: "variables",
    ast.Starred: "stars",
}
_MAX_INTEGER = 10**18
_parse_lock = threading.Lock()  # `catch_warnings` is not thread-safe


def find_code_call(reply: str, functions: Sequence[Function]) -> Call:
    """Return the call in the only fenced block of `reply`, or in all of `reply` if there is no fence.

    The grammar is `NAME(LITERAL, ..., NAME=LITERAL, ...)`, where a literal is text, a number, `True`, `False`, `None`,
    or a list of literals. Positional arguments follow the order of the parameters. The code is parsed, never evaluated.

    Raises:
        CallError: if the code is anything else, or no function has that name.
    """
    match _body(_code(reply)):
        case [ast.Expr(ast.Call(func=ast.Name(name), args=args, keywords=keywords))]:
            pass
        case [ast.Expr(ast.Call(func=ast.Attribute()))]:
            raise CallError("Names with dots aren't understood. Call one of your functions by its name.")
        case [] | [_]:
            raise CallError("There was no function call in your code. Write one call of a function and nothing else.")
        case several:
            raise CallError(f"There were {len(several)} statements in your code. Write one call and nothing else.")
    parameters = list(find(functions, name).properties)
    if len(args) > len(parameters):
        raise CallError(f"{name} takes {len(parameters)} arguments ({', '.join(parameters)}), not {len(args)}.")
    given = [*zip(parameters, args, strict=False), *((keyword.arg, keyword.value) for keyword in keywords)]
    arguments = {_named(parameter): _literal(node) for parameter, node in given}
    if len(arguments) < len(given):
        raise CallError(f"An argument of {name} was given twice.")
    return Call(name, arguments)


def write_code_call(call: Call) -> str:
    """Return `call` as Python that `find_code_call` can parse, without fences and closing tags."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})".replace("`", "\\x60").replace("</", "\\x3c/")


def _code(reply: str) -> str:
    parts = spoken(reply).split("```")
    if len(parts) > 3:
        raise CallError("There were several pieces of code in your answer. Write one, with one call.")
    code = parts[0] if len(parts) == 1 else parts[1]
    return re.sub(r"\A\w*[ \t]*\r?\n", "", code).strip()


def _body(code: str) -> list[ast.stmt]:
    try:
        with _parse_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escape sequences
            return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CallError("Your code could not be read. Write one call, such as function(parameter='value').") from error


def _named(parameter: str | None) -> str:
    if parameter is None:
        raise CallError("In a call, stars aren't understood. Write each argument with its name.")
    return parameter


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | float() | None as value):
            return value
        case ast.Constant(value=int() as value) if value < _MAX_INTEGER:
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value=int() | float() as value)) if value < _MAX_INTEGER:
            return -value
        case ast.List(elements) | ast.Tuple(elements):
            return [_literal(element) for element in elements]
        case _:
            what = _REFUSED.get(type(node), "such expressions")
            raise CallError(
                f"In an argument, {what} aren't understood. Write text in quotes, numbers or lists of them."
            )
