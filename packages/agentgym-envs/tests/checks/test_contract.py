"""`check_text_env` lets a sound world pass and catches each way of breaking the contract."""

from __future__ import annotations

import itertools
from typing import Any

import faulty_doors as doors
import pytest
from agentgym_envs import Feedback, Function, Task, Tasks, TaskSet, TextEnv
from agentgym_envs.checks.contract import ContractError, check_text_env
from door_world import Door, made, tasks_of

pytestmark = pytest.mark.quick


def test_a_sound_world_passes() -> None:
    with made(Door) as env:
        check_text_env(env)


class NothingIsNonsense(Door):
    def _act(self, action: str) -> Feedback:
        return Feedback("Fine.") if action not in ("knock", "open") else super()._act(action)


class Speechless(Door):
    def _act(self, action: str) -> Feedback:
        return Feedback("", valid=False) if action not in ("knock", "open") else super()._act(action)


class LostOracle(Door):
    def oracle(self) -> str:
        return "knock"


class MisunderstoodOracle(Door):
    def oracle(self) -> str:
        return "Knock, please" if self.goal else "open"


class TalkativeOracle(Door):
    def oracle(self) -> str:
        return f"I shall\n{super().oracle()}"


class TalkativeReasons(Door):
    def oracle_thought(self) -> str:
        return "I shall\nknock"


class WaveringOracle(Door):
    asked = itertools.count()

    def oracle_thought(self) -> str:
        return f"This is the {next(self.asked)}th time I am asked."


class UnspeakableScene(Door):
    def scene(self) -> dict[str, Any]:
        return {"kind": "door", "door": object}


class NamelessScene(Door):
    def scene(self) -> dict[str, Any]:
        return {"open": self.is_open}


class WaveringScene(Door):
    drawn = itertools.count()

    def scene(self) -> dict[str, Any]:
        return {"kind": "door", "drawn": next(self.drawn)}


class MeddlingScene(Door):
    def scene(self) -> dict[str, Any]:
        self.knocks = self.goal
        return super().scene()


class SpeechlessFunctions(Door):
    @property
    def functions(self) -> tuple[Function, ...]:
        return (Function("open", "Open the door.", ["open"]),)


class HighScore(Door):
    def _standing(self) -> tuple[float, bool]:
        score, success = super()._standing()
        return 100 * score, success


class VagueSuccess(Door):
    def _standing(self) -> Any:
        score, success = super()._standing()
        return score, int(success)


class RunningTotal(Door):
    def step(self, action: str) -> Any:
        over = self.is_open
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 0.0 if over else info["score"], terminated, truncated, info


class PaysTwice(Door):
    def step(self, action: str) -> Any:
        over = self.is_open
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, 1.0 if over else reward, terminated, truncated, info


class TwoEnds(Door):
    def _act(self, action: str) -> Feedback:
        feedback = super()._act(action)
        return Feedback(feedback.observation, feedback.valid, feedback.terminated, truncated=feedback.terminated)


class Deaf(Door):
    def _choose(self, options: dict[str, Any]) -> Task:
        return self.tasks.train[0]


class Leaky(Door):
    @property
    def tasks(self) -> TaskSet:
        return TaskSet(train=tasks_of("train"), test=tasks_of("train"))


class Repeating(Door):
    @property
    def tasks(self) -> TaskSet:
        return TaskSet(train=Tasks(["door/train/1"] * 2, tasks_of("train").build), test=tasks_of("test"))


class Untested(Door):
    @property
    def tasks(self) -> TaskSet:
        return TaskSet(train=tasks_of("train"), test=tasks_of("test")[:0])


class Mute(Door):
    @property
    def instructions(self) -> str:
        return " "


class Forgetful(Door):
    def _info(self) -> dict[str, Any]:
        return {key: value for key, value in super()._info().items() if key != "state_key"}


class Undocumented(Door):
    package = "door_world.nowhere"
    instructions = TextEnv.instructions


class Fanciful(Door):
    def _available_actions(self) -> list[str]:
        return ["knock", "fly away", "open"]


class Opaque(Door):
    def _raw(self) -> dict[str, Any]:
        return {"door": object}


@pytest.mark.parametrize(
    ("world", "clause"),
    [
        (NothingIsNonsense, "'' counts as a valid action"),
        (Speechless, "the observation after .* is empty"),
        (LostOracle, "did not succeed within 500 actions"),
        (MisunderstoodOracle, "the oracle's own action 'Knock, please' was not understood"),
        (TalkativeOracle, "isn't one line"),
        (TalkativeReasons, "the oracle's thought 'I shall.*isn't one line"),
        (WaveringOracle, "oracle_thought or oracle_plan changed what the oracle returns"),
        (UnspeakableScene, "the scene is not JSON"),
        (NamelessScene, "the scene has no kind"),
        (WaveringScene, "two scenes of the same state differ"),
        (MeddlingScene, "scene changes the oracle's action"),
        (SpeechlessFunctions, "no declared function expresses the oracle's action 'knock'"),
        (HighScore, "`score` must be a finite number in \\[0, 1\\], not 50.0"),
        (VagueSuccess, "`success` must be True or False, not 0"),
        (RunningTotal, "rewards sum to"),
        (PaysTwice, "the reward after the end was 1.0"),
        (TwoEnds, "both terminated and truncated are True"),
        (Deaf, "called with task door/train/1 but started door/train/0"),
        (Leaky, "Train and test share tasks"),
        (Repeating, "The train split has duplicate task ids"),
        (Untested, "The train and test splits need at least one task each"),
        (Mute, "no instructions"),
        (Undocumented, "no instructions.md in the package 'door_world.nowhere'"),
        (Fanciful, "'fly away' is in info\\['available_actions'\\], but the environment doesn't understand it"),
        (Forgetful, "info lacks \\['state_key'\\]"),
        (Opaque, "raw is not JSON"),
    ],
)
def test_a_broken_world_is_caught(world: type[TextEnv], clause: str) -> None:
    with made(world) as env, pytest.raises(ContractError, match=clause):
        check_text_env(env)


@pytest.mark.parametrize(
    ("world", "clause"),
    [
        (doors.BySet, "differs between processes with different hash seeds"),
        (doors.ByFolder, "differs with the order in which the system lists a directory"),
        (doors.Printing, "The environment writes to stdout: 'debug"),
        (doors.Complaining, "The environment writes to stderr: 'a line of the simulator"),
        (doors.OnlyHere, "can't be played in a process of its own: RuntimeError: no licence for another process"),
        (doors.OnlyTwice, "can't be played in a process of its own: RuntimeError: no licence for a third process"),
    ],
)
def test_what_shows_in_other_processes_only_is_caught(world: type[TextEnv], clause: str) -> None:
    with made(world) as env:
        check_text_env(env, processes=False)
        with pytest.raises(ContractError, match=clause):
            check_text_env(env, tasks=1)


def test_a_world_that_no_other_process_can_make_is_checked_here_and_said_so() -> None:
    class Local(Door):
        """Known to this function alone."""

    with made(Local) as env, pytest.warns(UserWarning, match="Local can't be made in another process"):
        check_text_env(env)


class Impatient(Door):
    def _act(self, action: str) -> Feedback:
        if action not in ("knock", "open"):
            raise ValueError(action)
        return super()._act(action)


def test_an_exception_of_the_world_comes_through() -> None:
    with made(Impatient) as env, pytest.raises(ValueError):
        check_text_env(env)


class Restless(Door):
    """The text of a task depends on how often worlds were begun."""

    begun = itertools.count()

    def _start(self, task: Task) -> str:
        return f"{super()._start(task)} It is day {next(self.begun)}."


def test_a_world_that_does_not_repeat_itself_is_caught() -> None:
    with made(Restless) as env, pytest.raises(AssertionError):
        check_text_env(env)
