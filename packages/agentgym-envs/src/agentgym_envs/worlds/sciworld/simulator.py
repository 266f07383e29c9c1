"""One game of ScienceWorld: load, step, where it stands. Knows Java's side and nothing of the contract for worlds."""

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
"""Seconds that the making of a gold path may take; the slowest took 10 on an idle machine."""
UNKNOWN = "No known action matches that input."
"""How the answer to what ScienceWorld doesn't understand begins."""
UNRESOLVED = "Unknown action."
"""How the answer to what isn't the number asked for begins; the question is then off the table."""
WAITED = 10
"""How many units of time `wait` takes; other actions take one."""


def find_jar() -> Path:
    """The jar that the package `scienceworld` ships; the package itself isn't imported.

    Raises:
        DependencyNotInstalled: when it is missing.
    """
    found = importlib.util.find_spec("scienceworld")
    if found is None or not found.submodule_search_locations:
        raise DependencyNotInstalled(
            f"agentgym/SciWorld-v0 needs the package scienceworld: {install('agentgym-envs[sciworld]')}"
        )
    return Path(found.submodule_search_locations[0]) / "scienceworld.jar"


def jar_version() -> str:
    """The version of the package that the jar is from."""
    return metadata.version("scienceworld")


@dataclass(frozen=True, slots=True)
class Setup:
    """Which game."""

    task: str
    """ScienceWorld's name of the task, such as `boil`."""
    variation: int
    simplifications: str
    """Names joined by commas, or nothing."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a game stands. Asking for it takes no time in the game."""

    score: float
    """Up to 1; below 0 after a focus on the wrong thing."""
    completed: bool
    moves: int
    look: str
    """What `look around` would say."""
    inventory: str
    progress: str
    """The table of the task's subgoals and which of them are reached."""
    asking: bool
    """Whether the game waits for the number of the action that was meant."""


class Simulator:
    """A game in a JVM. It gives its place there back when closed or forgotten.

    Args:
        jvm: From `jvm_pool.enter` or `jvm_pool.join`.
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._held: list[Any] = []
        self.close = weakref.finalize(self, _leave, jvm, self._held)

    @classmethod
    def open(cls, jvms: int, patience: float, *, shared: bool = True) -> Simulator:
        """A game in one of this process's JVMs.

        Args:
            jvms: The most JVMs that this process may run for games of the same patience.
            patience: Seconds after which a call that isn't answered is an `EnvFault`.
            shared: Whether other games may be in the JVM; one that isn't shared doesn't count among `jvms`.
        """
        return cls(jvm_pool.enter(JvmSpec(find_jar(), patience, shared), jvms))

    def beside(self) -> Simulator:
        """Another game in the same JVM, or in a JVM of its own where this one has that."""
        return Simulator(jvm_pool.join(self._jvm) if self.shared else jvm_pool.enter(self._jvm.spec, 1))

    @property
    def shared(self) -> bool:
        """Whether other games may be in its JVM."""
        return self._jvm.spec.shared

    def healthy(self) -> bool:
        """Whether another game can be loaded; when not, another simulator is needed."""
        return self._jvm.healthy()

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return self._jvm.pid

    def load(self, setup: Setup) -> str:
        """Begin a game; returns the task in a sentence or more.

        Raises:
            EnvFault: when ScienceWorld refuses, as well as when the JVM broke. So do all other methods.
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
        """Say something to the game, and what it answers."""
        with self._jvm.calls():
            answer: str = self._game.step(text)
            if self._agent.isInErrorState():
                raise EnvFault(f"ScienceWorld failed at {text[:100]!r}: {self._agent.getErrorStateMessage()}")
            return answer

    def standing(self) -> Standing:
        """Where the game stands."""
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
        """Every action that the game would understand now, some thousands at times; takes 20 to 150 ms."""
        with self._jvm.calls():
            listed: str = self._jvm.java.java.lang.String.join("\n", self._game.getValidActionObjectCombinations())
            return listed.split("\n") if listed else []

    def gold_path(self, setup: Setup) -> list[str]:
        """ScienceWorld's own solution of a game, which it plays to know it; 0.2 to 12 s. Ends the present game.

        A game in which ScienceWorld made a solution makes it again at each load: `load` begins with a fresh one.
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
    """Leave the Java objects to Java's garbage collector now: a game is 11 MB, and Python's may come late."""
    while held:
        jvm.let_go(held.pop())


def _leave(jvm: Jvm, held: list[Any]) -> None:
    _let_go(jvm, held)
    jvm_pool.leave(jvm)
