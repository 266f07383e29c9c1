"""How a call is found in what a model says: JSON, in the forms that chat templates teach, or one line of Python.

Nothing is ever evaluated. Which functions there are is for others to know.
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
"""What stands before an object that has arguments alone, in Mistral's later form, Llama's, DeepSeek's and gpt-oss's."""
_NEAR = 200  # characters before an object in which that is looked for
_XML = re.compile(r"<function=(\w+)>\s*((?:<parameter=(?:(?!<function=).)*?)?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(\w+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)  # line breaks in strings are no reason not to understand
_OPENING = re.compile(r"\{(?=\s*[\"}])")  # of an object
_MOST_OBJECTS = 500  # looked at in a reply: of those within each other each is read as far as all that it holds


def spoken(reply: str) -> str:
    """What `reply` says behind the thought that models which think first end with `</think>`; all of it without one."""
    return reply.rpartition("</think>")[2].strip()


def find_call(reply: str) -> Call:
    """The one call of a function in `reply`, with or without text around it.

    Understood are an object with `function_name` or `name`, and `arguments` or `parameters` (OpenAI's, Llama's), alone,
    fenced, in `<tool_call>` (Hermes, Qwen) or after `[TOOL_CALLS]` (Mistral); a name before an object of arguments
    (Mistral from version 11 on, DeepSeek, gpt-oss); and `<function=…><parameter=…>` (Qwen 3 Coder). What stands before
    `</think>` is thought, and not searched.

    Raises:
        CallError: when there is none, or there are several.
    """
    said = spoken(reply)
    calls = [Call(name, dict(map(_parameter, _PARAMETER.finditer(body)))) for name, body in _XML.findall(said)]
    calls = calls or list(_calls(said))
    if not calls:
        raise CallError("There was no function call in your answer, or it was damaged. Call exactly one function.")
    if len(calls) > 1:
        raise CallError(f"There were {len(calls)} function calls in your answer. Call exactly one function.")
    return calls[0]


def _parameter(found: re.Match[str]) -> tuple[str, Any]:
    """Name and value; a list is JSON."""
    name, text = found.groups()
    try:
        return name, json.loads(text) if text.startswith("[") else text
    except (ValueError, RecursionError):
        return name, text


def _calls(text: str) -> Iterator[Call]:
    """The calls in `text` that are JSON. An object that is none may have some within it."""
    read = 0
    for opening in islice(_OPENING.finditer(text), _MOST_OBJECTS):
        at = opening.start()
        if at < read:
            continue
        try:
            record, end = _DECODER.raw_decode(text, at)
        except RecursionError:
            return
        except ValueError:
            continue
        named = _NAMED.search(text[max(0, at - _NEAR) : at])
        call = Call(named[1], record) if named else _call(record)
        if call is not None:
            yield call
            read = end


def _call(record: dict[str, Any]) -> Call | None:
    """The call that an object stands for, if it does."""
    if not record.keys() & {"function_name", "arguments", "parameters"}:
        return None
    name = record.get("function_name", record.get("name"))
    arguments = record.get("arguments", record.get("parameters")) or {}  # some say null or "" where there are none
    if isinstance(arguments, str):  # as OpenAI has it
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    thought = record.get("thought")
    return Call(name, arguments, thought if isinstance(thought, str) else "")


# Python, of which one call with literal arguments is understood, and nothing else.

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
_MOST = 10**18
_parsing = threading.Lock()


def find_code_call(reply: str, functions: Sequence[Function]) -> Call:
    """The call that the one fenced part of `reply`, or where there is none all of it, consists of.

    The grammar is `NAME(LITERAL, ..., NAME=LITERAL, ...)`, of which a literal is text, a number, `True`, `False`,
    `None`, or a list of such. Arguments without a name are taken in the order of the parameters. It is
    read, never evaluated.

    Raises:
        CallError: when it is anything else, or no function has that name.
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
    """`call` as Python, from which `find_code_call` reads it. It has neither fences nor closing tags in it."""
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
        with _parsing, warnings.catch_warnings():  # of escapes that Python doesn't know
            warnings.simplefilter("ignore")
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
        case ast.Constant(value=int() as value) if value < _MOST:
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value=int() | float() as value)) if value < _MOST:
            return -value
        case ast.List(elements) | ast.Tuple(elements):
            return [_literal(element) for element in elements]
        case _:
            what = _REFUSED.get(type(node), "such expressions")
            raise CallError(
                f"In an argument, {what} aren't understood. Write text in quotes, numbers or lists of them."
            )
