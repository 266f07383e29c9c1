"""Tests of the command `agentgym check`."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest
from agentgym_envs import Feedback
from agentgym_envs.cli.agentgym import main
from door_world import Door, registered_env

DOOR = "door_world:door/Door-v0"


class TwoFaults(Door):
    """Pays nothing at the end, and accepts any action."""

    package: ClassVar[str] = "door_world"

    def _act(self, action: str) -> Feedback:
        return Feedback("Fine.") if action not in ("knock", "open") else super()._act(action)

    def oracle(self) -> str:
        return "knock"


class Raises(Door):
    def _state(self) -> str:
        raise RuntimeError("no state, token=abcdef123")


def test_all_rules_of_a_valid_environment_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(Door):
        assert main(["check", DOOR, "--tasks", "2", "--no-processes"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{DOOR}, the first 2 tasks of each split:\n  ok      Gymnasium's check_env passes")
    assert "All 6 rules are kept." in out


def test_every_broken_rule_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(TwoFaults):
        assert main(["check", DOOR, "--tasks", "2", "--no-processes"]) == 1
    out = capsys.readouterr().out
    assert re.search(
        r"broken  the oracle solves its tasks:\n +door/train/0: the oracle did not succeed within 500", out
    )
    assert re.search(r"broken  any text is an action:\n +door/train/0: '' counts as a valid action\.", out)
    assert "  ok      a task repeats byte for byte" in out
    assert "2 of 6 rules are broken." in out


def test_exceptions_of_the_environment_break_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(Raises):
        assert main(["check", DOOR, "--tasks", "1", "--no-processes"]) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: no state, token=***" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["textcarft"], "There is no environment 'textcarft'."),
        (["nowhere:mine/World-v0"], "The module of the environment nowhere:mine/World-v0 can't be imported"),
        (["textcraft", "--options", "deep=3"], "has no option 'deep'"),
        (["textcraft", "--options", "deep"], "is not of the form KEY=VALUE"),
        (["textcraft", "--tasks", "0"], "--tasks must be at least 1, not 0."),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err
