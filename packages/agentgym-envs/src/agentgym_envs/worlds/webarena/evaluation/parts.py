"""The eval types that there are: what each must find in a task's `eval`, and how many things it checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentgym_envs.worlds.webarena.evaluation import database, program_html, string_match, url_match
from agentgym_envs.worlds.webarena.evaluation.fields import known, texts


@dataclass(frozen=True, slots=True)
class Part:
    """One eval type."""

    check: Callable[[Mapping[str, Any]], dict[str, Any]]
    """What it needs of `eval`, put in order; raises ValueError with the name of a field that is wrong."""
    count: Callable[[Mapping[str, Any]], int]
    """How many things it checks."""


PARTS: Final[Mapping[str, Part]] = {
    "string_match": Part(string_match.check, string_match.count),
    "url_match": Part(url_match.check, url_match.count),
    "program_html": Part(program_html.check, program_html.count),
    "database": Part(database.check, database.count),
}


def check_eval(judged: Mapping[str, Any]) -> dict[str, Any]:
    """`eval_types` and what they need of a task's `eval`, put in order.

    Raises:
        ValueError: for an unknown eval type, or one that doesn't find what it needs; names the field.
    """
    types = texts(judged.get("eval_types", []), "eval.eval_types")
    known(types, PARTS, "eval.eval_types")
    checked: dict[str, Any] = {"eval_types": types}
    for name in types:
        checked |= PARTS[name].check(judged)
    return checked
