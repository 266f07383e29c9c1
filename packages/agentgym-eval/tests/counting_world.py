"""A minimal environment: reply `add` as often as the goal requires, then `stop`.

If the environment variable COUNTING_HOLD=NUMBER:FILE is set, at most NUMBER episodes start before FILE exists.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from agentgym_envs import EnvFault, Feedback, Task, Tasks, TaskSet, TextEnv

ENV = "counting_world:counting/Count-v0"
_episode_numbers = itertools.count(1)
_SIZES = {"train": 12, "test": 10}


def _tasks(split: Any) -> Tasks:
    def build(task_id: str) -> Task:
        goal = int(task_id.rpartition("/")[2])
        category = "few" if goal < 3 else "many"
        return Task(task_id, "counting/Count-v0", split, category, goal, {"goal": goal})

    return Tasks([f"count/{split}/{goal}" for goal in range(_SIZES[split])], build)


def _hold() -> None:
    number, _, file = os.environ.get("COUNTING_HOLD", "").partition(":")
    if number and next(_episode_numbers) > int(number):
        while not Path(file).exists():
            time.sleep(0.01)


class Count(TextEnv):
    package: ClassVar[str] = "counting_world"
    step_waits: ClassVar[bool] = True

    def __init__(
        self, *, pause: float = 0.0, broken: tuple[int, ...] = (), listed: bool = True, note: str = ""
    ) -> None:
        """`note` is a file whose text is shown at a count of 3. A missing file is created, and that step fails."""
        super().__init__()
        self._note = Path(note) if note else None
        self._pause, self._broken, self._listed = pause, broken, listed
        self._tasks = TaskSet(train=_tasks("train"), test=_tasks("test"))
        self._goal = self._count = 0
        self._stopped = False

    @property
    def instructions(self) -> str:
        return "Count up to the goal with `add`, then `stop`."

    @property
    def tasks(self) -> TaskSet:
        return self._tasks

    def _start(self, task: Task) -> str:
        _hold()
        self._goal, self._count, self._stopped = task.payload["goal"], 0, False
        if self._goal in self._broken:
            raise EnvFault(f"the counter [{self._goal}] jammed")
        return f"Goal: {self._goal}."

    def _act(self, action: str) -> Feedback:
        time.sleep(self._pause)
        if action == "stop":
            self._stopped = True
            return Feedback("Stopped.", terminated=True)
        if action != "add":
            return Feedback("Say `add` or `stop`.", valid=False)
        self._count += 1
        return Feedback(f"Count: {self._count}.{self._note_text()}")

    def _note_text(self) -> str:
        if self._note is None or self._count != 3:
            return ""
        if not self._note.exists():
            self._note.touch()
            raise EnvFault("the counter jammed once")
        return self._note.read_text()

    def _standing(self) -> tuple[float, bool]:
        success = self._stopped and self._count == self._goal
        return float(success), success

    def _state(self) -> str:
        return f"{self._goal} {self._count} {self._stopped}"

    def oracle(self) -> str:
        return "add" if self._count < self._goal else "stop"

    def _available_actions(self) -> list[str] | None:
        return ["add", "stop"] if self._listed else None


gymnasium.register("counting/Count-v0", "counting_world:Count", max_episode_steps=20, disable_env_checker=True)
