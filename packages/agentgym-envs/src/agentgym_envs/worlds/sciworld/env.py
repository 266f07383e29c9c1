"""The environment `agentgym/SciWorld-v0`: ScienceWorld as a `TextEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.core.text_env import MAX_OBSERVATION_CHARS, EnvFault, Feedback, TextEnv
from agentgym_envs.util.java import find_java
from agentgym_envs.worlds.sciworld.expert import gold_path
from agentgym_envs.worlds.sciworld.jvm import OLDEST_JAVA
from agentgym_envs.worlds.sciworld.reasons import Situation
from agentgym_envs.worlds.sciworld.scene import draw
from agentgym_envs.worlds.sciworld.simulator import UNKNOWN, UNRESOLVED, Setup, Simulator, Standing, find_jar
from agentgym_envs.worlds.sciworld.tasks import choose, kinds, simplify, task_set

_HELP = (
    "Actions: look around, inventory, task, look at OBJ, look in OBJ, examine OBJ, read OBJ, focus on OBJ, "
    "pick up OBJ, put down OBJ, move OBJ to OBJ, open OBJ, close OBJ, go to LOCATION, activate OBJ, deactivate OBJ, "
    "use OBJ on OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, connect OBJ to OBJ, disconnect OBJ, eat OBJ, "
    "flush OBJ, wait, wait1. OBJ is something you can see or carry, by the name you read."
)
_CUT = "\n[The rest of this list is left out. Give an action that says which thing is meant, and where it is.]"
_CANCELLED = "That is not one of the numbers asked for, so the request is cancelled. Give a whole action again."


class SciWorld(TextEnv):
    """Science experiments and searches in ten locations such as a kitchen, a workshop and a greenhouse.

    Args:
        tasks: One or several tasks by name or number, such as `"boil"` or `"1-1"`; `"agentgym"` selects AgentGym's 23.
            All 30 by default.
        variations: The maximum number of variations of each task and split; all by default.
        simplifications: ScienceWorld's, one or several: `teleportAction`, `selfWateringFlowerPots`, `openContainers`,
            `openDoors`, `noElectricalAction`, `easy`. `noElectricalAction` excludes the tasks 3-1 to 3-4.
        valid_actions: List all actions that the simulator accepts in `info["available_actions"]`. This takes 20 to
            150 ms per step, ten times as long as a step without it.
        jvms: The maximum number of JVMs of this process for such environments. They start on demand and are shared,
            except by games of the tasks 5-2, 10-1 and 10-2, which have a JVM each.
        patience: Timeout in seconds after which a JVM that doesn't answer counts as failed.
        render_mode: `ansi` for the text.

    The score is ScienceWorld's, from 0 to 1; it grows as subgoals are reached. A focus on the wrong object ends the
    episode and sets the score to 0. An action that ScienceWorld doesn't understand is invalid; one that it understands
    and refuses, with the reason, is not. `info["raw"]` has ScienceWorld's `score` (0 to 100, or -100) and the `moves`
    made; `wait` counts as ten. A task's difficulty is the median length of its gold paths.
    """

    package: ClassVar[str] = __package__ or ""
    actions_option: ClassVar[str] = "valid_actions=True"
    client_options = frozenset({"tasks", "variations", "simplifications", "valid_actions"})
    step_seconds = 0.01
    step_waits = True
    oracle_replans = False

    def __init__(
        self,
        *,
        tasks: str | Sequence[str] | None = None,
        variations: int | None = None,
        simplifications: str | Sequence[str] = (),
        valid_actions: bool = False,
        jvms: int = 1,
        patience: float = 60.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if not isinstance(jvms, int) or isinstance(jvms, bool) or jvms < 1:
            raise ValueError(f"jvms must be a positive integer, not {jvms!r}.")
        if not isinstance(patience, int | float) or not patience > 0:
            raise ValueError(f"patience must be a positive number of seconds, not {patience!r}.")
        if variations is not None and (
            not isinstance(variations, int) or isinstance(variations, bool) or variations < 1
        ):
            raise ValueError(f"variations must be a positive integer, or None for all, not {variations!r}.")
        if not isinstance(valid_actions, bool):
            raise ValueError(f"valid_actions must be true or false, not {valid_actions!r}.")
        self._simplifications = simplify(simplifications)
        self._names = choose(tasks)
        if "noElectricalAction" in self._simplifications:
            self._names = tuple(name for name in self._names if not kinds()[name].needs_electricity)
            if not self._names:
                raise ValueError(f"The tasks {tasks} can't be solved with noElectricalAction; leave one of them out.")
        self._variations = variations
        self._list_actions = valid_actions
        self._jvm_options = (jvms, patience)
        self._simulator: Simulator | None = None
        find_jar()  # reports a missing package now rather than at the first reset

    @property
    def tasks(self) -> TaskSet:
        """The tasks that the environment's options select."""
        return task_set(self._names, self._variations)

    @property
    def lists_actions(self) -> bool:
        """Whether the option `valid_actions` is set."""
        return self._list_actions

    def check_dependencies(self) -> None:
        """Check that Java is installed."""
        find_java(OLDEST_JAVA)

    @property
    def jvm_pid(self) -> int | None:
        """The process id of the JVM that this environment uses; None while it uses none."""
        return self._simulator.pid if self._simulator is not None else None

    def _start(self, task: Task) -> str:
        shared = kinds()[task.payload["task"]].shares_jvm
        if self._simulator is not None and (self._simulator.shared != shared or not self._simulator.healthy()):
            self.close()
        if self._simulator is None:
            self._simulator = Simulator.open(*self._jvm_options, shared=shared)
        simplifications = ",".join(self._simplifications)
        self._setup = Setup(task.payload["task"], task.payload["variation"], simplifications)
        goal = self._simulator.load(self._setup)
        self._actions: list[str] = []
        self._gold: tuple[str, ...] | None = None
        self._rooms: dict[str, str] = {}
        self._observe()
        self._shown = [f"{goal}\n{self._now.look.strip()}"]
        return self._shown[0]

    def _act(self, action: str) -> Feedback:
        was_asking, simulator = self._now.asking, self._running()
        answer = _fitting(simulator.step(action).strip())
        self._shown.append(answer)
        self._observe()
        over = self._now.completed or self._now.score < 0
        if was_asking and answer.startswith(UNRESOLVED):
            return Feedback(_CANCELLED, valid=False, terminated=over)
        self._actions.append(action)
        if answer.startswith(UNKNOWN):
            return Feedback(f"{answer} {_HELP}", valid=False, terminated=over)
        return Feedback(answer, terminated=over)

    def _observe(self) -> None:
        self._now: Standing = self._running().standing()
        self._rooms[self._now.look.partition("\n")[0]] = self._now.look

    def _running(self) -> Simulator:
        if self._simulator is None:
            raise EnvFault("This environment is closed; reset() opens it again.")
        return self._simulator

    def _standing(self) -> tuple[float, bool]:
        score = max(0, self._raw()["score"]) / 100
        return score, score == 1.0

    def _state(self) -> str:
        """Return the task, each room as last seen, the inventory, the subgoals, and whether a number is asked for.

        State that the agent can't see from its location (a temperature, the contents of closed containers, the age of
        a plant) is not included.
        """
        now = self._now
        rooms = (self._rooms[name] for name in sorted(self._rooms))
        return "\n".join((str(self._setup), *rooms, now.look, now.inventory, now.progress, str(now.asking)))

    def _available_actions(self) -> list[str] | None:
        return self._running().actions() if self._list_actions else None

    def _raw(self) -> dict[str, Any]:
        return {"score": round(100 * self._now.score), "moves": self._now.moves}

    def oracle(self) -> str:
        """Return the next action of ScienceWorld's gold path that wasn't tried yet.

        Other actions in between don't matter as long as they don't change anything relevant. After a change that the
        gold path doesn't expect, the oracle continues it and may fail. At its end, or without one, the oracle waits.
        """
        remaining = self._remaining()
        return remaining[0] if remaining else "wait"

    def oracle_thought(self) -> str:
        """Return the next goal, the last observation, and the purpose of the gold path's next action."""
        return self._situation().thought()

    def oracle_plan(self) -> str:
        """Return the remaining goals, and what is done about the first."""
        return self._situation().outline()

    def scene(self) -> dict[str, Any]:
        """Return the room, the inventory, and which subgoals are reached; see `sciworld.scene.draw`."""
        return draw(self._now.look, self._now.inventory, self._now.progress)

    def _remaining(self) -> list[str]:
        """Return the actions of the gold path that weren't tried yet."""
        if self._gold is None:
            self._gold = gold_path(self._running(), self._setup)
        remaining = list(self._gold)
        for action in self._actions:
            if remaining and remaining[0] == action:
                remaining.pop(0)
        return remaining

    def _situation(self) -> Situation:
        return Situation(self._remaining(), self._now.progress, self._shown, self._now.asking)

    def close(self) -> None:
        """Release the JVM; it ends once the last environment that uses it is closed."""
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None


def _fitting(answer: str) -> str:
    """Return the first lines of an answer that is too long: ScienceWorld lists all that an ambiguous action may mean,
    hundreds in a kitchen.
    """
    if len(answer) <= MAX_OBSERVATION_CHARS:
        return answer
    return answer[: MAX_OBSERVATION_CHARS - len(_CUT)].rpartition("\n")[0] + _CUT
