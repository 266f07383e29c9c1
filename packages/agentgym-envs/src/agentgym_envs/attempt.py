"""What an episode is, whoever drives it: the seat of an attempt, what it records, and the `Episode` it leaves.

`play` drives attempts with synchronous policies, `play_pool` with coroutines; neither knows more of an episode than
they find here. This knows neither how a world is reached nor how a player finds its words.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from agentgym_envs.episode import Episode, Reply, StopReason, Turn
from agentgym_envs.tasks import Split, Task


@dataclass(frozen=True, slots=True)
class Message:
    """One thing said."""

    role: Literal["system", "user", "assistant"]
    content: str


Conversation = tuple[Message, ...]
"""Instructions (where there are any) as `system`, observations as `user`, replies as `assistant`, in order; the last is
an observation."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A place at a world where it is the agent's turn."""

    key: int
    """The same over all turns of one attempt, and of no other."""
    conversation: Conversation
    info: dict[str, Any]
    """Of the last `reset` or `step`."""
    rng: np.random.Generator
    """Seeded from the job; the same over all turns of the attempt."""


@dataclass(frozen=True, slots=True)
class Job:
    """An episode to be played."""

    task_id: str | None = None
    """None draws a task from `split` with the env's own generator."""
    sample: int = 0
    """Number of the attempt at this task."""
    seed: int | None = None
    """Seeds the env's generator and, with task and sample, the seat's."""
    split: Split = "train"


_keys = itertools.count()


class Attempt:
    """One attempt at a job, from the first observation to the episode."""

    def __init__(self, job: Job, horizon: int | None) -> None:
        """Begin with nothing seen.

        Args:
            job: What is played.
            horizon: The most turns; None leaves it to the world's own limit.

        Raises:
            ValueError: for a horizon below 1.
        """
        if horizon is not None and horizon < 1:
            raise ValueError(f"A horizon is at least 1 turn, not {horizon}.")
        self.key = next(_keys)
        self._job = job
        self._horizon = horizon
        self._instructions = ""
        self._conversation: Conversation = ()
        self._observation = ""
        self._info: dict[str, Any] = {}
        self._turns: list[Turn] = []
        self._seconds = {"world": 0.0, "policy": 0.0}

    @contextmanager
    def clock(self, whom: Literal["world", "policy"]) -> Generator[None]:
        """Count the time in here as waiting for `whom`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[whom] += time.perf_counter() - began

    def begin(self, observation: str, info: dict[str, Any], instructions: str) -> None:
        """The world was reset."""
        job = self._job
        self._observation, self._info, self._instructions = observation, info, instructions
        self._conversation = (Message("system", instructions),) if instructions else ()
        self._conversation += (Message("user", observation),)
        self._rng = np.random.default_rng([job.seed or 0, job.sample, *info["task_id"].encode()])

    @property
    def seat(self) -> Seat:
        """Where the agent sits now."""
        return Seat(self.key, self._conversation, self._info, self._rng)

    def cut(self, reply: Reply) -> StopReason:
        """Record a reply that the token budget cut. It isn't played."""
        state = self._info["state_key"]
        self._turns.append(Turn(self._observation, reply, None, valid=False, reward=0.0, state_key=state))
        return "length"

    def played(
        self, reply: Reply, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StopReason | None:
        """Record a reply and what came of it; why the attempt ends here, if it does. `info` has the `action`."""
        state = self._info["state_key"]
        turn = Turn(self._observation, reply, info["action"], valid=info["valid"], reward=reward, state_key=state)
        self._turns.append(turn)
        self._observation, self._info = observation, info
        self._conversation += (Message("assistant", reply.text), Message("user", observation))
        if terminated:
            return "terminated"
        return "truncated" if truncated or len(self._turns) == self._horizon else None

    def episode(self, task: Task, policy: str, stop: StopReason, error: str | None = None) -> Episode:
        """What is left, for `task` played by `policy`."""
        failed = stop == "failed"
        return Episode(
            env=task.env,
            task_id=task.id,
            split=task.split,
            category=task.category,
            difficulty=task.difficulty,
            policy=policy,
            sample=self._job.sample,
            instructions=self._instructions,
            turns=tuple(self._turns),
            final_observation=self._observation,
            stop=stop,
            score=None if failed else float(self._info["score"]),
            success=None if failed else bool(self._info["success"]),
            error=error,
            seconds={name: round(spent, 6) for name, spent in self._seconds.items()},
        )
