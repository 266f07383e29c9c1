"""A small environment: knock as often as the task asks, then open the door.

Half of the score is for the right number of knocks (from the start on if it is 0), so that several rewards add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
from agentgym_envs import Feedback, Task, Tasks, TaskSet, TextEnv

ENV_ID = "door/Door-v0"
SIZES = {"train": 6, "test": 3}


def tasks_of(split: Any) -> Tasks:
    def build(task_id: str) -> Task:
        knocks = int(task_id.rpartition("/")[2])
        return Task(task_id, ENV_ID, split, f"knocks-{knocks}", knocks, {"knocks": knocks})

    return Tasks([f"door/{split}/{knocks}" for knocks in range(SIZES[split])], build)


class Door(TextEnv):
    package: ClassVar[str] = "door_world"

    def __init__(self, *, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.goal = self.knocks = 0
        self.is_open = False

    @property
    def instructions(self) -> str:
        return "Knock as often as you are told to, then open."

    @property
    def tasks(self) -> TaskSet:
        return TaskSet(train=tasks_of("train"), test=tasks_of("test"))

    def _start(self, task: Task) -> str:
        self.goal, self.knocks, self.is_open = task.payload["knocks"], 0, False
        return f"Knock {self.goal} times."

    def _act(self, action: str) -> Feedback:
        if action == "open":
            self.is_open = True
            return Feedback("The door opens.", terminated=True)
        if action == "knock":
            self.knocks += 1
            return Feedback(f"You knocked {self.knocks} times.")
        return Feedback("Say knock or open.", valid=False)

    def _standing(self) -> tuple[float, bool]:
        polite = self.knocks == self.goal
        return 0.5 * polite + 0.5 * (polite and self.is_open), polite and self.is_open

    def _state(self) -> str:
        return f"{self.goal} {self.knocks} {self.is_open}"

    def oracle(self) -> str:
        return "knock" if self.knocks < self.goal else "open"

    def oracle_thought(self) -> str:
        return f"I have knocked {self.knocks} of {self.goal} times."

    def oracle_plan(self) -> str:
        return f"Knock until I have knocked {self.goal} times, then open."

    def scene(self) -> dict[str, Any]:
        return {"kind": "door", "open": self.is_open}

    def _raw(self) -> dict[str, Any]:
        return {"knocks": self.knocks}


@contextmanager
def registered_env(world: type[TextEnv], *, max_episode_steps: int | None = None) -> Iterator[gymnasium.Env[str, str]]:
    """Register the environment, yield what `gymnasium.make` creates, and unregister it afterwards."""
    gymnasium.register(ENV_ID, world, max_episode_steps=max_episode_steps, disable_env_checker=True)
    try:
        env = gymnasium.make(ENV_ID)
        yield env
        env.close()
    finally:
        del gymnasium.registry[ENV_ID]
