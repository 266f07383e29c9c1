"""Tests of `check_text_env`: it passes a valid environment and reports each violation of the contract."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

import faulty_doors as doors
import pytest
from agentgym_envs import Feedback, Function, Task, Tasks, TaskSet, TextEnv
from agentgym_envs.checks.contract import ContractError, check_text_env
from agentgym_envs.core.action_schema import ACT
from agentgym_envs.core.descriptions import task_counts
from agentgym_envs.core.registry import text_env
from door_world import ENV_ID, Door, registered_env, tasks_of

pytestmark = pytest.mark.quick


def test_valid_environment_passes() -> None:
    with registered_env(Door) as env:
        check_text_env(env)


class AcceptsAnyAction(Door):
    def _act(self, action: str) -> Feedback:
        return Feedback("Fine.") if action not in ("knock", "open") else super()._act(action)


class EmptyObservation(Door):
    def _act(self, action: str) -> Feedback:
        return Feedback("", valid=False) if action not in ("knock", "open") else super()._act(action)


class FailingOracle(Door):
    def oracle(self) -> str:
        return "knock"


class InvalidOracle(Door):
    def oracle(self) -> str:
        return "Knock, please" if self.goal else "open"


class MultilineOracle(Door):
    def oracle(self) -> str:
        return f"I shall\n{super().oracle()}"


class MultilineThought(Door):
    def oracle_thought(self) -> str:
        return "I shall\nknock"


class OracleWithSideEffect(Door):
    calls = itertools.count()

    def oracle_thought(self) -> str:
        return f"This is the {next(self.calls)}th time I am asked."


class SceneWithoutJson(Door):
    def scene(self) -> dict[str, Any]:
        return {"kind": "door", "door": object}


class SceneWithoutKind(Door):
    def scene(self) -> dict[str, Any]:
        return {"open": self.is_open}


class ChangingScene(Door):
    calls = itertools.count()

    def scene(self) -> dict[str, Any]:
        return {"kind": "door", "drawn": next(self.calls)}


class SceneWithSideEffect(Door):
    def scene(self) -> dict[str, Any]:
        self.knocks = self.goal
        return super().scene()


class IncompleteFunctions(Door):
    @property
    def functions(self) -> tuple[Function, ...]:
        return (Function("open", "Open the door.", ["open"]),)


class UnmentionedFunction(Door):
    @property
    def functions(self) -> tuple[Function, ...]:
        return (ACT, Function("ring_bell", "Ring the bell.", ["ring"]))


class FunctionWithoutDescription(Door):
    @property
    def functions(self) -> tuple[Function, ...]:
        return (ACT, Function("open", "", ["open"]))


class AvailableActionWithoutFunction(Door):
    @property
    def functions(self) -> tuple[Function, ...]:
        return (Function("knock", "Knock.", ["knock"]), Function("open", "Open the door.", ["open"]))

    def _act(self, action: str) -> Feedback:
        return Feedback("You wait.") if action == "wait" else super()._act(action)

    def _available_actions(self) -> list[str]:
        return ["knock", "open", "wait"]


class ScoreOutOfRange(Door):
    def _standing(self) -> tuple[float, bool]:
        score, success = super()._standing()
        return 100 * score, success


class IntegerSuccess(Door):
    def _standing(self) -> Any:
        score, success = super()._standing()
        return score, int(success)


class CumulativeRewards(Door):
    def step(self, action: str) -> Any:
        over = self.is_open
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 0.0 if over else info["score"], terminated, truncated, info


class RewardAfterEnd(Door):
    def step(self, action: str) -> Any:
        over = self.is_open
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, 1.0 if over else reward, terminated, truncated, info


class TerminatedAndTruncated(Door):
    def _act(self, action: str) -> Feedback:
        feedback = super()._act(action)
        return Feedback(feedback.observation, feedback.valid, feedback.terminated, truncated=feedback.terminated)


class IgnoresTaskOption(Door):
    def _choose(self, options: dict[str, Any]) -> Task:
        return self.tasks.train[0]


class OverlappingSplits(Door):
    @property
    def tasks(self) -> TaskSet:
        return TaskSet(train=tasks_of("train"), test=tasks_of("train"))


class DuplicateTaskIds(Door):
    @property
    def tasks(self) -> TaskSet:
        return TaskSet(train=Tasks(["door/train/1"] * 2, tasks_of("train").build), test=tasks_of("test"))


class EmptyTestSplit(Door):
    @property
    def tasks(self) -> TaskSet:
        return TaskSet(train=tasks_of("train"), test=tasks_of("test")[:0])


class EmptyInstructions(Door):
    @property
    def instructions(self) -> str:
        return " "


class MissingInfoKey(Door):
    def _info(self) -> dict[str, Any]:
        return {key: value for key, value in super()._info().items() if key != "state_key"}


class MissingInstructionsFile(Door):
    package = "door_world.nowhere"
    instructions = TextEnv.instructions


class InvalidAvailableAction(Door):
    def _available_actions(self) -> list[str]:
        return ["knock", "fly away", "open"]


class UnannouncedActions(Door):
    @property
    def lists_actions(self) -> bool:
        return False

    def _available_actions(self) -> list[str]:
        return ["knock", "open"]


class RawWithoutJson(Door):
    def _raw(self) -> dict[str, Any]:
        return {"door": object}


@pytest.mark.parametrize(
    ("world", "clause"),
    [
        (AcceptsAnyAction, "'' counts as a valid action"),
        (EmptyObservation, "the observation after .* is empty"),
        (FailingOracle, "did not succeed within 500 actions"),
        (InvalidOracle, "the oracle's own action 'Knock, please' was not understood"),
        (MultilineOracle, "isn't one line"),
        (MultilineThought, "the oracle's thought 'I shall.*isn't one line"),
        (OracleWithSideEffect, "oracle_thought or oracle_plan changed what the oracle returns"),
        (SceneWithoutJson, "the scene is not JSON"),
        (SceneWithoutKind, "the scene has no kind"),
        (ChangingScene, "two scenes of the same state differ"),
        (SceneWithSideEffect, "scene changes the oracle's action"),
        (IncompleteFunctions, "the oracle's action: no declared function expresses 'knock'"),
        (UnmentionedFunction, "instructions don't mention the function 'ring_bell'.*\\('ring'\\)"),
        (FunctionWithoutDescription, "The function 'open' has no description"),
        (
            AvailableActionWithoutFunction,
            "door/train/0, info\\['available_actions'\\]: no declared function expresses 'wait'",
        ),
        (ScoreOutOfRange, "`score` must be a finite number in \\[0, 1\\], not 50.0"),
        (IntegerSuccess, "`success` must be True or False, not 0"),
        (CumulativeRewards, "rewards sum to"),
        (RewardAfterEnd, "the reward after the end was 1.0"),
        (TerminatedAndTruncated, "both terminated and truncated are True"),
        (IgnoresTaskOption, "called with task door/train/1 but started door/train/0"),
        (OverlappingSplits, "Train and test share tasks"),
        (DuplicateTaskIds, "The train split has duplicate task ids"),
        (EmptyTestSplit, "The train and test splits need at least one task each"),
        (EmptyInstructions, "no instructions"),
        (MissingInstructionsFile, "no instructions.md in the package 'door_world.nowhere'"),
        (
            InvalidAvailableAction,
            "'fly away' is in info\\['available_actions'\\], but the environment doesn't understand it",
        ),
        (MissingInfoKey, "info lacks \\['state_key'\\]"),
        (UnannouncedActions, "info\\['available_actions'\\] is a list, but lists_actions is False"),
        (RawWithoutJson, "raw is not JSON"),
    ],
)
def test_contract_violation_is_reported(world: type[TextEnv], clause: str) -> None:
    with registered_env(world) as env, pytest.raises(ContractError, match=clause):
        check_text_env(env)


@pytest.mark.parametrize(
    ("world", "clause"),
    [
        (doors.SetOrder, "differs between processes with different hash seeds"),
        (doors.DirectoryOrder, "differs with the order in which the system lists a directory"),
        (doors.WritesToStdout, "The environment writes to stdout: 'debug"),
        (doors.WritesToStderr, "The environment writes to stderr: 'a line of the simulator"),
        (
            doors.FailsInOtherProcess,
            "can't be played in a process of its own: RuntimeError: no licence for another process",
        ),
        (
            doors.FailsInThirdProcess,
            "can't be played in a process of its own: RuntimeError: no licence for a third process",
        ),
    ],
)
def test_violation_that_needs_other_processes_is_reported(world: type[TextEnv], clause: str) -> None:
    with registered_env(world) as env:
        check_text_env(env, processes=False)
        with pytest.raises(ContractError, match=clause):
            check_text_env(env, tasks=1)


def test_local_environment_is_checked_in_this_process_with_a_warning() -> None:
    class Local(Door):
        """Can't be imported by another process."""

    with registered_env(Local) as env, pytest.warns(UserWarning, match="Local can't be made in another process"):
        check_text_env(env)


@pytest.mark.parametrize("package", ["", "__main__"])
def test_environment_of_a_notebook_needs_no_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)  # without a spec, unlike that of a script
    world = type("Typed", (Door,), {"__module__": "__main__", "package": package})
    vars(notebook)["Typed"] = world
    with registered_env(world) as env:
        with pytest.warns(UserWarning, match="Typed can't be made in another process"):
            check_text_env(env)
        assert [function.name for function in text_env(env).functions] == ["act"]
        assert task_counts(ENV_ID) == {"train": 6, "dev": 0, "test": 3}


@pytest.mark.parametrize("package", ["", "__main__", "json.decoder"])
def test_environment_without_instructions_is_told_what_to_write(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    world = type("Typed", (Door,), {"package": package, "instructions": TextEnv.instructions})
    with registered_env(world) as env, pytest.raises(ContractError, match=r"override `instructions`"):
        check_text_env(env, processes=False)


class RaisesOnInvalidActions(Door):
    def _act(self, action: str) -> Feedback:
        if action not in ("knock", "open"):
            raise ValueError(action)
        return super()._act(action)


def test_exceptions_of_the_environment_propagate() -> None:
    with registered_env(RaisesOnInvalidActions) as env, pytest.raises(ValueError):
        check_text_env(env)


class Nondeterministic(Door):
    """The text of a task depends on how many episodes were started."""

    starts = itertools.count()

    def _start(self, task: Task) -> str:
        return f"{super()._start(task)} It is day {next(self.starts)}."


def test_nondeterministic_environment_is_reported() -> None:
    with registered_env(Nondeterministic) as env, pytest.raises(AssertionError):
        check_text_env(env)
