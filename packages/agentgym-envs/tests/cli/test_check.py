"""Tests of the command `agentgym check`."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import pytest
from agentgym_envs import Feedback, Task
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


class Polite(Door):
    """Only the oracle's actions are available, so random play succeeds."""

    def _available_actions(self) -> list[str]:
        return [self.oracle()]


class BreaksLate(Door):
    """Breaks in a task that only the difficulty curve plays."""

    def _choose(self, options: dict[str, Any]) -> Task:
        if options.get("task") == "door/train/5":
            raise RuntimeError("no more doors")
        return super()._choose(options)


class Raises(Door):
    def _state(self) -> str:
        raise RuntimeError("no state, token=abcdef123")


def test_all_rules_of_a_valid_environment_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(Door):
        assert main(["check", DOOR, "--tasks", "2", "--no-processes"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{DOOR}, the first 2 tasks of each split:\n  ok      Gymnasium's check_env passes")
    assert "All 8 rules are kept." in out


def test_every_broken_rule_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(TwoFaults):
        assert main(["check", DOOR, "--tasks", "2", "--no-processes"]) == 1
    out = capsys.readouterr().out
    assert re.search(
        r"broken  the oracle solves its tasks:\n +door/train/0: the oracle did not succeed within 500", out
    )
    assert re.search(r"broken  any text is an action:\n +door/train/0: '' counts as a valid action\.", out)
    assert "  ok      a task repeats byte for byte" in out
    assert "2 of 8 rules are broken." in out


def test_exceptions_of_the_environment_break_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(Raises):
        assert main(["check", DOOR, "--tasks", "1", "--no-processes"]) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: no state, token=***" in out


def test_speed_and_difficulty_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(Polite, max_episode_steps=5):
        assert main(["check", DOOR, "--tasks", "2", "--no-processes", "--curve-samples", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nSpeed: [\d,]+ resets/s, [\d,]+ steps/s in one environment; the longest of 3 steps took ", out)
    assert "Success by difficulty, on 6 training tasks with 12 random episodes and at most 5 turns:" in out
    assert re.search(r"\n  0 to 1 +2 +100% +100% +1\.5\n  2 +1 +100% +100% +3\.0\n", out)
    assert re.search(r"\n  5 +1 +0% +0% +-\n  all +6 +83% +83% +3\.0\n", out)
    assert "  warning  Random actions succeed in 83% of the episodes (more than 50%)" in out
    assert "  warning  The oracle failed 1 of 6 tasks within the limit of turns: door/train/5." in out


def test_results_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", DOOR, "--tasks", "2", "--no-processes", "--json"]
    with registered_env(Door):
        assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["environment"] == DOOR
    assert [rule["kept"] for rule in found["rules"]] == [True] * 8
    assert found["speed"]["steps"] == 3
    assert found["difficulty"]["total"] == {
        "difficulty": [0, 5],
        "tasks": 6,
        "random_episodes": 0,
        "random_success": None,
        "oracle_episodes": 6,
        "oracle_success": 1.0,
        "oracle_actions": 3.5,
    }
    assert found["warnings"] == []
    with registered_env(TwoFaults):
        assert main(arguments) == 1
    found = json.loads(capsys.readouterr().out)
    assert "speed" not in found
    assert [rule["reason"] for rule in found["rules"] if not rule["kept"]] == [
        "door/train/0: the oracle did not succeed within 500 actions.",
        "door/train/0: '' counts as a valid action.",
    ]


def test_an_environment_that_breaks_during_the_measurement_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(BreaksLate):
        assert main(["check", DOOR, "--tasks", "2", "--no-processes"]) == 0
    assert "  warning  The measurement ended early: RuntimeError: no more doors" in capsys.readouterr().out


def test_no_curve_is_measured_without_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    with registered_env(BreaksLate):
        assert main(["check", DOOR, "--tasks", "2", "--no-processes", "--curve-tasks", "0"]) == 0
    out = capsys.readouterr().out
    assert "Speed: " in out
    assert "Success by difficulty" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["textcarft"], "There is no environment 'textcarft'."),
        (
            ["nowhere:mine/World-v0"],
            "The module of the environment nowhere:mine/World-v0 can't be imported: No module named 'nowhere'. Install "
            "its package, or run the command in the folder that contains it.",
        ),
        (["door_world:door/Dor-v0"], "The module door_world registers no environment 'door/Dor-v0'."),
        (["CartPole-v1"], "CartPole-v1 isn't a text environment (TextEnv): write gymnasium:CartPole-v1, or see docs"),
        (["textcraft", "--options", "deep=3"], "has no option 'deep'"),
        (["textcraft", "--options", "deep"], "is not of the form KEY=VALUE"),
        (["textcraft", "--tasks", "0"], "--tasks must be at least 1, not 0."),
        (["textcraft", "--curve-samples", "-1"], "--curve-samples must be at least 0, not -1."),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err
