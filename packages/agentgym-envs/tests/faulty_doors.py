"""Doors that break the contract in a way that shows in another process; in a module, so that it can import them."""

from __future__ import annotations

import os
from inspect import isbuiltin
from pathlib import Path
from typing import Any

from agentgym_envs import Feedback, Task
from door_world import Door

_COLOURS = {"red", "green", "blue", "yellow", "purple", "grey", "white", "black"}
_HERE = os.getpid()


class BySet(Door):
    def _start(self, task: Task) -> str:
        return f"{super()._start(task)} The door is {' '.join(_COLOURS)}."


class ByFolder(Door):
    def _start(self, task: Task) -> str:
        beside = [path.name for path in Path(__file__).parent.iterdir() if path.suffix == ".py"]
        return f"{super()._start(task)} On it is written {' '.join(beside)}."


class Printing(Door):
    def _act(self, action: str) -> Feedback:
        print("debug", action)  # noqa: T201 - that is what is wrong with it
        return super()._act(action)


class Complaining(Door):
    """Its simulator writes past Python."""

    def _start(self, task: Task) -> str:
        os.write(2, b"a line of the simulator\n")
        return super()._start(task)


class OnlyHere(Door):
    def __init__(self, **options: Any) -> None:
        if os.environ.get("PYTHONHASHSEED") == "1":
            raise RuntimeError("no licence for another process")
        super().__init__(**options)


class OnlyTwice(ByFolder):
    """Differs in the first two processes, and can't be made in the third, which is to tell why."""

    def __init__(self, **options: Any) -> None:
        if os.environ.get("PYTHONHASHSEED") == "2" and isbuiltin(os.listdir):
            raise RuntimeError("no licence for a third process")
        super().__init__(**options)
