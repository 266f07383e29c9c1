"""Doors whose breaches of the contract show only in other processes, which import them from this module."""

from __future__ import annotations

import os
from inspect import isbuiltin
from pathlib import Path
from typing import Any

from agentgym_envs import Feedback, Task
from door_world import Door

_COLOURS = {"red", "green", "blue", "yellow", "purple", "grey", "white", "black"}


class SetOrder(Door):
    def _start(self, task: Task) -> str:
        return f"{super()._start(task)} The door is {' '.join(_COLOURS)}."


class DirectoryOrder(Door):
    def _start(self, task: Task) -> str:
        names = [path.name for path in Path(__file__).parent.iterdir() if path.suffix == ".py"]
        return f"{super()._start(task)} On it is written {' '.join(names)}."


class WritesToStdout(Door):
    def _act(self, action: str) -> Feedback:
        print("debug", action)  # noqa: T201 - the breach
        return super()._act(action)


class WritesToStderr(Door):
    """Its simulator writes to the file descriptor of stderr."""

    def _start(self, task: Task) -> str:
        os.write(2, b"a line of the simulator\n")
        return super()._start(task)


class FailsInOtherProcess(Door):
    def __init__(self, **options: Any) -> None:
        if os.environ.get("PYTHONHASHSEED") == "1":
            raise RuntimeError("no licence for another process")
        super().__init__(**options)


class FailsInThirdProcess(DirectoryOrder):
    """Differs in the first two processes and can't be created in the third, whose error must be reported."""

    def __init__(self, **options: Any) -> None:
        if os.environ.get("PYTHONHASHSEED") == "2" and isbuiltin(os.listdir):
            raise RuntimeError("no licence for a third process")
        super().__init__(**options)
