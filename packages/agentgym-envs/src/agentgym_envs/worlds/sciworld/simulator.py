"""One game of ScienceWorld: load, step and current state. Wraps the Java side; independent of `TextEnv`."""

from __future__ import annotations

import importlib.util
import weakref
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.installation import install
from agentgym_envs.worlds.sciworld import jvm_pool
from agentgym_envs.worlds.sciworld.jvm import Jvm, JvmSpec

GOLD_PATIENCE = 600.0
"""Timeout in seconds for generating a gold path; the slowest took 10 on an idle machine."""
UNKNOWN = "No known action matches that input."
"""The start of the answer to an action that ScienceWorld doesn't understand."""
UNRESOLVED = "Unknown action."
"""The start of the answer if the action isn't the number asked for; the question is then cancelled."""
ALREADY_OPEN = "The door is already open."
"""The answer to an action that opens an open door."""
WAITED = 10
"""Time units that `wait` takes; other actions take one."""


def find_jar() -> Path:
    """Return the jar that the package `scienceworld` ships, without importing the package.

    Raises:
        DependencyNotInstalled: if the package is missing.
    """
    found = importlib.util.find_spec("scienceworld")
    if found is None or not found.submodule_search_locations:
        raise DependencyNotInstalled(
            f"agentgym/SciWorld-v0 needs the package scienceworld: {install('agentgym-envs[sciworld]')}"
        )
    return Path(found.submodule_search_locations[0]) / "scienceworld.jar"


def jar_version() -> str:
    """Return the version of the package that ships the jar."""
    return metadata.version("scienceworld")


@dataclass(frozen=True, slots=True)
class Setup:
    """Identifies a game."""

    task: str
    """ScienceWorld's name of the task, such as `boil`."""
    variation: int
    simplifications: str
    """Names joined by commas, or empty."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a game. Reading it takes no time in the game."""

    score: float
    """Up to 1; negative after a focus on the wrong object."""
    completed: bool
    moves: int
    look: str
    """The text of `look around`."""
    inventory: str
    progress: str
    """The table of the task's subgoals and which of them are reached."""
    asking: bool
    """Whether the game waits for the number of the action that was meant."""


class Simulator:
    """A game in a JVM. It leaves the JVM when closed or garbage collected.

    Args:
        jvm: From `jvm_pool.enter` or `jvm_pool.join`.
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._held: list[Any] = []
        self.close = weakref.finalize(self, _leave, jvm, self._held)

    @classmethod
    def open(cls, jvms: int, patience: float, *, shared: bool = True) -> Simulator:
        """Create a game in one of this process's JVMs.

        Args:
            jvms: The maximum number of JVMs of this process for games of the same patience.
            patience: Timeout of each call in seconds, after which it raises `EnvFault`.
            shared: Whether other games may share the JVM; JVMs that aren't shared don't count towards `jvms`.
        """
        return cls(jvm_pool.enter(JvmSpec(find_jar(), patience, shared), jvms))

    def create_sibling(self) -> Simulator:
        """Create another game in the same JVM, or in a JVM of its own if this game's JVM isn't shared."""
        return Simulator(jvm_pool.join(self._jvm) if self.shared else jvm_pool.enter(self._jvm.spec, 1))

    @property
    def shared(self) -> bool:
        """Whether other games may share its JVM."""
        return self._jvm.spec.shared

    def healthy(self) -> bool:
        """Whether another game can be loaded; if not, create another simulator."""
        return self._jvm.healthy()

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return self._jvm.pid

    def load(self, setup: Setup) -> str:
        """Start a game and return the task description.

        Raises:
            EnvFault: if ScienceWorld reports an error or the JVM failed, as in all other methods.
        """
        with self._jvm.calls():
            self._fresh()
            refused = self._game.load(setup.task, setup.variation, setup.simplifications, False)
            if refused:
                raise EnvFault(f"ScienceWorld can't load {setup}: {refused}")
            holder = self._game.agentInterface()
            self._agent = holder.get()
            self._parser = self._agent.inputParser()
            self._held += [holder, self._agent, self._parser]
            return self._game.getTaskDescription()

    def step(self, text: str) -> str:
        """Execute an action and return the game's answer."""
        with self._jvm.calls():
            answer: str = self._game.step(text)
            if self._agent.isInErrorState():
                raise EnvFault(f"ScienceWorld failed at {text[:100]!r}: {self._agent.getErrorStateMessage()}")
            return answer

    def standing(self) -> Standing:
        """Return the current state of the game."""
        with self._jvm.calls():
            game = self._game
            return Standing(
                score=game.getScore(),
                completed=game.getCompleted(),
                moves=game.getNumMoves(),
                look=game.freeActionLook(),
                inventory=game.freeActionInventory(),
                progress=game.getGoalProgressStr(),
                asking=self._parser.isInAmbiguousState(),
            )

    def actions(self) -> list[str]:
        """Return all actions that the game accepts now, sometimes thousands; takes 20 to 150 ms."""
        with self._jvm.calls():
            listed: str = self._jvm.java.java.lang.String.join("\n", self._game.getValidActionObjectCombinations())
            return listed.split("\n") if listed else []

    def gold_path(self, setup: Setup) -> list[str]:
        """Return ScienceWorld's own solution of a game, found by playing it in 0.2 to 12 s. Ends the current game.

        A Java game that has generated a solution does so again at each load, so `load` creates a new one.
        """
        with self._jvm.calls(GOLD_PATIENCE):
            self._fresh()
            self._game.load(setup.task, setup.variation, setup.simplifications, True)
            path: str = self._jvm.java.java.lang.String.join("\n", self._game.getGoldActionSequence())
            return path.split("\n") if path else []

    def _fresh(self) -> None:
        _let_go(self._jvm, self._held)
        self._game = self._jvm.java.scienceworld.runtime.pythonapi.PythonInterface()
        self._held.append(self._game)


def _let_go(jvm: Jvm, held: list[Any]) -> None:
    """Release the Java objects now: a game takes 11 MB, and Python's garbage collection may come late."""
    while held:
        jvm.let_go(held.pop())


def _leave(jvm: Jvm, held: list[Any]) -> None:
    _let_go(jvm, held)
    jvm_pool.leave(jvm)
