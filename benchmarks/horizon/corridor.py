"""A corridor of rooms: the text environment of the study of horizon schedules.

Each room has a sign, and the sign determines which of four doors leads to the next room. A wrong door leads back to the
previous room with the probability `setback`, otherwise nowhere. The goal is the last room, so the expert takes exactly
as many turns as there are rooms to pass. With `depth_specific`, the same sign means different doors in the rooms 0 to
5, 6 to 11 and from 12 on: what is learned near the start says nothing about rooms that are never reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from agentgym_envs import Feedback, Task, Tasks, TaskSet, TextEnv
from agentgym_envs.core.tasks import SPLITS, Split

ENV_ID = "study/Corridor-v0"
DOORS = ("north", "east", "south", "west")
SIGNS = ("owl", "bee", "fox", "elk", "cat", "hen", "ram", "yak")
STRATA = {"up to 6": range(2, 7), "7 to 12": range(7, 13), "13 to 24": range(13, 25)}
"""The lengths of tasks, in turns of the expert."""
LONGEST = 24
TASKS: dict[Split, int] = {"train": 200, "dev": 32, "test": 64}
"""Number of tasks per stratum."""
RULES = np.random.default_rng(0).integers(len(DOORS), size=(len(STRATA), len(SIGNS)))
"""Index of the right door, by stratum of the room and by sign."""


def stratum(difficulty: int, strata: Mapping[str, range] = STRATA) -> str:
    """Return the stratum of a task with this difficulty, here the length of the corridor."""
    return next(name for name, difficulties in strata.items() if difficulty < difficulties.stop)


@cache
def task_set() -> TaskSet:
    """The lengths of a stratum take turns; tasks of different strata alternate."""
    made = {split: _tasks(split, count) for split, count in TASKS.items()}
    return TaskSet(train=made["train"], dev=made["dev"], test=made["test"])


def _tasks(split: Split, count: int) -> Tasks:
    lengths = [lengths[number % len(lengths)] for number in range(count) for lengths in STRATA.values()]
    return Tasks([f"corridor/{split}/{number}-{length}" for number, length in enumerate(lengths)], _task)


def _task(task_id: str) -> Task:
    name, number, length = task_id.removeprefix("corridor/").replace("-", "/").split("/")
    split, rooms = cast("Split", name), int(length)
    signs = np.random.default_rng([SPLITS.index(split), int(number)]).integers(len(SIGNS), size=rooms)
    return Task(task_id, ENV_ID, split, stratum(rooms), rooms, {"signs": signs.tolist()})


class Corridor(TextEnv):
    """A corridor. The score is 1 in the last room; the difficulty is the expert's number of turns.

    Args:
        setback: Probability that a wrong door leads to the previous room.
        depth_specific: Whether signs mean different doors further along the corridor.
    """

    package: ClassVar[str] = "horizon"
    step_seconds: ClassVar[float] = 1e-5

    def __init__(self, *, setback: float = 0.5, depth_specific: bool = True, render_mode: str | None = None) -> None:
        if not 0 <= setback <= 1:
            raise ValueError(f"setback is a probability, from 0 to 1, not {setback}.")
        super().__init__(render_mode=render_mode)
        self.setback, self.depth_specific = setback, depth_specific

    @property
    def tasks(self) -> TaskSet:
        """All corridors."""
        return task_set()

    def _start(self, task: Task) -> str:
        self._signs: list[int] = task.payload["signs"]
        self._room = 0
        return self._look()

    def _act(self, action: str) -> Feedback:
        if action not in DOORS:
            return Feedback(f"Say {', '.join(DOORS[:-1])} or {DOORS[-1]}.", valid=False)
        if action == self.oracle():
            self._room += 1
        elif self.np_random.random() < self.setback:
            self._room = max(0, self._room - 1)
        return Feedback(self._look(), terminated=self._standing()[1])

    def _standing(self) -> tuple[float, bool]:
        done = self._room == len(self._signs)
        return float(done), done

    def _state(self) -> str:
        return f"{self._room} {self._signs} {self.depth_specific} {self.setback}"

    def _available_actions(self) -> list[str]:
        return list(DOORS)

    def _raw(self) -> dict[str, Any]:
        return {"room": self._room, "rooms": len(self._signs)}

    def oracle(self) -> str:
        """Take the door that the sign means here."""
        if self._room == len(self._signs):
            return DOORS[0]
        depth = list(STRATA).index(stratum(self._room + 1)) if self.depth_specific else 0
        return DOORS[RULES[depth, self._signs[self._room]]]

    def _look(self) -> str:
        sign = "goal" if self._room == len(self._signs) else SIGNS[self._signs[self._room]]
        return f"room {self._room} {sign}"


gymnasium.register(ENV_ID, "horizon.corridor:Corridor", max_episode_steps=100, disable_env_checker=True)
