"""The table of eval types: the validation of each one's fields in `eval`, and its number of checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentgym_envs.worlds.webarena.evaluation import database, program_html, string_match, url_match
from agentgym_envs.worlds.webarena.evaluation.fields import check_known, string_list


@dataclass(frozen=True, slots=True)
class Part:
    """An eval type."""

    check: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Validates and normalizes its fields of `eval`; raises a ValueError that names an invalid field."""
    count: Callable[[Mapping[str, Any]], int]
    """Returns its number of checks."""


PARTS: Final[Mapping[str, Part]] = {
    "string_match": Part(string_match.check, string_match.count),
    "url_match": Part(url_match.check, url_match.count),
    "program_html": Part(program_html.check, program_html.count),
    "database": Part(database.check, database.count),
}


def check_eval(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and normalize `eval_types` and their fields in a task's `eval`.

    Raises:
        ValueError: for an unknown eval type, or an invalid or missing field; the message names the field.
    """
    types = string_list(evaluation.get("eval_types", []), "eval.eval_types")
    check_known(types, PARTS, "eval.eval_types")
    checked: dict[str, Any] = {"eval_types": types}
    for name in types:
        checked |= PARTS[name].check(evaluation)
    return checked
