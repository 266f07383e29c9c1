"""Tests of the checks of functions against the instructions, as schemas, and as notation of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from agentgym_envs import Function
from agentgym_envs.agents.formats import FunctionCall
from agentgym_envs.checks.functions import call_problem, function_problems
from agentgym_envs.core.action_schema import ACT
from door_world import Door

pytestmark = pytest.mark.quick
LAMP = {"type": "integer", "minimum": 1, "description": "Number of the lamp."}


def press(properties: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> Function:
    values = {"name": "press", "description": "Change a lamp.", "templates": ["press {lamp}"], **changes}
    return Function(**values, properties={"lamp": LAMP} if properties is None else properties)


class Lamps(Door):
    """A door whose functions are given."""

    def __init__(self, *functions: Function) -> None:
        super().__init__()
        self.given = functions

    @property
    def functions(self) -> tuple[Function, ...]:
        return self.given


@pytest.mark.parametrize(
    ("function", "instructions"),
    [
        (press(), "- press N: change lamp N."),
        (press(name="change_lamp"), "Press a lamp."),
        (press(name="change_lamp"), "You can change lamp by lamp."),
        (press(name="change_lamp"), "Call change_lamp(lamp)."),
        (press(templates=["<press>{lamp}</press>"]), "Say <press>N</press>."),
        (press(name="answer", templates=["{lamp}"]), "When asked, answer with the number alone."),
        (ACT, "Do something."),
        (press({"lamp": LAMP | {"maximum": 7}}), "press"),
        (press({"lamp": {"type": "string", "enum": ["a"], "description": "Which."}}), "press"),
        (press({"lamp": {"type": "array", "items": {"type": "string"}, "description": "Which."}}), "press"),
    ],
)
def test_valid_functions_have_no_problems(function: Function, instructions: str) -> None:
    assert list(function_problems([function], instructions)) == []


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            press(name="change"),
            "don't mention the function 'change', neither by name nor by its action ('press {lamp}')",
        ),
        (press(name="prüfe"), "'prüfe' can't be a tool's name"),
        (press(name="p" * 65), "at most 64 ASCII letters"),
        (press(description=" "), "The function 'press' has no description."),
        (press({"lamp": {"type": "integer"}}), "parameter 'lamp' of 'press' has no description."),
        (press({"lamp": LAMP | {"enum": [1, 2]}}), "has an enum that isn't a list of texts for the type string."),
        (press({"lamp": {"type": "string", "enum": [], "description": "Which."}}), "has an enum that isn't"),
        (press({"lamp": LAMP | {"minimum": "one"}}), "has a minimum that isn't a number."),
        (press({"lamp": LAMP | {"maximum": 0}}), "has a minimum above its maximum."),
        (press({"lamp": {"type": "array", "description": "Which."}}), 'needs "items": {"type": "string"}'),
        (press({"lamp": LAMP | {"default": {1}}}), "The schema of 'press' is not JSON"),
    ],
)
def test_problem_is_named(function: Function, problem: str) -> None:
    problems = list(function_problems([function], "Press them." if function.name != "change" else "Pressing helps."))
    assert any(problem in sentence for sentence in problems), problems


def test_two_functions_of_the_same_name_are_a_problem() -> None:
    assert list(function_problems([press(), press()], "press")) == ["2 functions have the name 'press'."]


def test_a_call_keeps_to_its_schema() -> None:
    world = Lamps(press({"lamp": LAMP | {"maximum": 3}}), press(name="say", templates=["say {lamp}"]))
    assert call_problem(world, "press 3") == ""
    assert call_problem(world, "say 30") == ""
    assert call_problem(world, "press 4").endswith("but the schema of 'lamp' has the maximum 3")
    assert call_problem(world, "press 0").endswith("but the schema of 'lamp' has the minimum 1")
    assert call_problem(world, "press it") == "no declared function expresses 'press it'"


def test_an_action_comes_back_as_agents_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_problem(Lamps(ACT), "anything at all") == ""
    assert call_problem(Lamps(ACT), " padded ") == "no declared function expresses ' padded '"
    monkeypatch.setattr(FunctionCall, "format", lambda *_: '{"function_name": "act", "arguments": {"action": "other"}}')
    assert "which means 'other'" in call_problem(Lamps(ACT), "this")
