"""Entries of `agentgym list`, and how their descriptions are read from docstrings.

Each package contributes sections: entry points `SECTION = MODULE:FUNCTION` of the group `agentgym.listings`, whose
function returns the section's entries.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

_ARGUMENT = re.compile(r"    (\w+): (.*)")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with its default."""

    name: str
    default: Any
    """A plain value; `...` if there is no default."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """Something that commands take by name."""

    name: str
    about: str
    """A sentence."""
    note: str = ""
    """A few words on the most important facts, for the overview."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further facts by name: text, numbers, or mappings of these."""
    settings: tuple[Setting, ...] = ()


def first_sentence(documented: Any) -> str:
    """Return the first sentence of an object's docstring, or of a text, on one line."""
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    ends = (end.start() for end in re.finditer(r"\.(?= [A-Z`(\d]|$)", paragraph))
    # The full stop of an abbreviation such as "et al." is within parentheses in our citations.
    whole = (end for end in ends if paragraph.count("(", 0, end) == paragraph.count(")", 0, end))
    return paragraph[: next(whole, len(paragraph)) + 1]


def argument_docs(documented: Any) -> dict[str, str]:
    """Return the descriptions of the arguments in an object's docstring, from its section `Args:`."""
    _, _, section = (inspect.getdoc(documented) or "").partition("Args:\n")
    found, name = dict[str, str](), ""
    for line in section.splitlines():
        if not line.startswith("    "):
            break
        if entry := _ARGUMENT.match(line):
            name, found[entry[1]] = entry[1], entry[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found


def attribute_docs(documented: ModuleType | type[Any]) -> dict[str, str]:
    """Return the docstrings of a module's constants or of a class's fields: the texts that follow their assignments."""
    module = sys.modules[documented.__module__] if isinstance(documented, type) else documented
    body = _statements(inspect.getsource(module))
    if isinstance(documented, type):
        body = next(
            each.body for each in body if isinstance(each, ast.ClassDef) and each.name == documented.__qualname__
        )
    found = dict[str, str]()
    for assigned, text in pairwise(body):
        target = assigned.targets[0] if isinstance(assigned, ast.Assign) else getattr(assigned, "target", None)
        if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[target.id] = inspect.cleandoc(str(text.value.value))
    return found


@cache
def _statements(source: str) -> list[ast.stmt]:
    return ast.parse(source).body


def settings_of(value: Any) -> tuple[Setting, ...]:
    """Return the settings of a dataclass object with their values, those of nested objects with dotted names."""
    if not is_dataclass(value) or isinstance(value, type):
        return ()
    found, about = list[Setting](), attribute_docs(type(value))
    for each in fields(value):
        held = getattr(value, each.name)
        if is_dataclass(held):
            nested = settings_of(held)
            found += [Setting(f"{each.name}.{one.name}", one.default, one.about) for one in nested]
        else:
            found.append(Setting(each.name, held, about.get(each.name, "")))
    return tuple(found)
