"""Environments that misbehave on command. Importing this module registers them, also in another process."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from agentgym_envs import EnvFault, Feedback
from door_world import Door
from gymnasium.error import DependencyNotInstalled

TOY = "faulty_worlds:toys/Toy-v0"
SHY = "faulty_worlds:toys/Shy-v0"


class BrokenUnpickleError(ValueError):
    """Can be pickled but not unpickled."""

    def __init__(self, number: int, adjective: str) -> None:
        super().__init__(f"{number} is {adjective}")


class UnpicklableFault(EnvFault):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__("the tower fell")
        self.frame = sys._getframe()


class Toy(Door):
    """A door with further actions, each a word and an argument."""

    closed: ClassVar[int] = 0

    def __init__(self, *, greeting: str = "Hello.", lacking: bool = False, judge: Any = None, **options: Any) -> None:
        super().__init__(**options)
        if lacking:
            raise DependencyNotInstalled("A toy needs a child. Get one: pip install child")
        self._greeting = greeting
        self.judge = judge

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def generator(self) -> Any:
        return (number for number in range(3))

    def _start(self, task: Any) -> str:
        return f"{self._greeting} {super()._start(task)}"

    def _act(self, action: str) -> Feedback:
        word, _, argument = action.partition(" ")
        match word:
            case "await":
                Path(argument + ".begun").touch()
                while not Path(argument).exists():
                    time.sleep(0.002)
                return Feedback(f"{Path(argument).name} is there.")
            case "echo":
                return Feedback("o" * int(argument))
            case "print":
                sys.stdout.write(argument + "\n")
            case "leave":
                sys.exit(int(argument))
            case "exit":
                os._exit(int(argument))
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise {
                    "fault": EnvFault("the tower fell"),
                    "local": UnpicklableFault(),
                    "odd": BrokenUnpickleError(7, "odd"),
                    "key": KeyError("no such key"),
                    "value": ValueError("no such value"),
                }[argument]
            case _:
                return super()._act(action)
        return Feedback("done")

    def close(self) -> None:
        type(self).closed += 1
        super().close()


class Shy(Door):
    """A door whose instructions depend on the task, with a random number in its first observation.

    It never starts with `open_today=False`.
    """

    def __init__(self, *, open_today: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._open_today = open_today

    @property
    def instructions(self) -> str:
        return f"Today's number is {self.task.payload['knocks']}."

    def _start(self, task: Any) -> str:
        if not self._open_today:
            raise EnvFault("no door today")
        return f"{super()._start(task)} Its number is {self.np_random.integers(1_000_000)}."


def build(**options: Any) -> Toy:
    """Create an environment whose class its registration doesn't tell."""
    return Toy(**options)


gymnasium.register("toys/Toy-v0", Toy, max_episode_steps=20, disable_env_checker=True)
gymnasium.register("toys/Shy-v0", Shy, max_episode_steps=20, disable_env_checker=True)
gymnasium.register("toys/Built-v0", build, disable_env_checker=True)
