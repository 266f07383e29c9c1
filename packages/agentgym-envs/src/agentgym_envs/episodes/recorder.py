"""What an episode is, whoever drives it: the seat of an attempt, what it records, and the `Episode` it leaves.

`play` drives attempts with synchronous policies, `play_pool` with coroutines; neither knows more of an episode than
they find here. This knows neither how a world is reached nor how a player finds its words.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.core.feedback import InvalidFeedback
from agentgym_envs.core.tasks import Split, Task
from agentgym_envs.episodes.conversation import Conversation, ConversationBuilder
from agentgym_envs.episodes.episode import Episode, Kind, Reply, StopReason, Turn
from agentgym_envs.util.redaction import redacted


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A place at a world where it is the agent's turn."""

    key: int
    """The same over all turns of one attempt, and of no other."""
    conversation: Conversation
    info: dict[str, Any]
    """Of the last `reset` or `step`."""
    rng: np.random.Generator
    """Seeded from the job; the same over all turns of the attempt."""
    kind: Kind
    """What the reply is for."""
    acts: int
    """How many actions were played in this trial. 0 where the agent looks back at one that has ended."""
    tools: tuple[dict[str, Any], ...]
    """JSON schemas of the functions it can call, for agents that call functions. The conversation doesn't have them:
    chat templates and endpoints have places of their own for them."""
    sample: int
    """Number of the attempt at the task, as in the job and in the episode."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """An episode to be played."""

    task_id: str | None = None
    """None draws a task from `split` with the env's own generator."""
    sample: int = 0
    """Number of the attempt at this task."""
    seed: int | None = None
    """Seeds the env's generator and, with task and sample, the seat's."""
    split: Split = "train"


_keys = itertools.count()


class EpisodeRecorder:
    """One attempt at a job, from the first observation to the episode: in as many trials as the agent takes.

    Whoever drives it resets the world and calls `begin`. Actions are played in the world and recorded with `played`,
    other replies are `noted`; when that says so the world is reset once more, for `begin_again`.
    """

    def __init__(self, job: EpisodeSpec, horizon: int | None, agent: str, *, turns: int | None = None) -> None:
        """Begin with nothing seen.

        Args:
            job: What is played.
            horizon: The most actions of a trial; None leaves it to the world's own limit.
            agent: Who plays, as `Agent.parse` takes it.
            turns: The most actions of a trial, by whichever limit, which the agent is told with each observation; None
                tells it nothing.

        Raises:
            ValueError: for a horizon below 1.
        """
        if horizon is not None and horizon < 1:
            raise ValueError(f"A horizon is at least 1 turn, not {horizon}.")
        self.key = next(_keys)
        self._job = job
        self._horizon = horizon
        self._agent = agent
        self._allowed = turns
        self._tools: tuple[dict[str, Any], ...] = ()
        self._instructions = ""
        self._dialogue = ConversationBuilder(Scaffold(), "")
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

    def begin(
        self, observation: str, info: dict[str, Any], instructions: str, tools: tuple[dict[str, Any], ...]
    ) -> None:
        """The world was reset. For the `tools` see `Seat`."""
        job = self._job
        self._instructions, self._tools = instructions, tools
        self._dialogue = ConversationBuilder(Scaffold.parse(self._agent), instructions)
        self._rng = np.random.default_rng([job.seed or 0, job.sample, *info["task_id"].encode()])
        self.begin_again(observation, info)

    def begin_again(self, observation: str, info: dict[str, Any]) -> None:
        """The world was reset for another trial.

        Raises:
            InvalidFeedback: when the score isn't a finite number.
        """
        self._take(self._counted(observation), info)
        self._dialogue.saw(self._observation)

    @property
    def task_id(self) -> str:
        """The task that is played."""
        return self._info["task_id"]

    @property
    def seat(self) -> TurnContext:
        """Where the agent sits now."""
        dialogue = self._dialogue
        told = dialogue.conversation, self._info, self._rng, dialogue.kind, dialogue.acts
        return TurnContext(self.key, *told, self._tools, self._job.sample)

    def cut(self, reply: Reply) -> StopReason:
        """Record a reply that the token budget cut. It isn't played."""
        self._record(reply, None, valid=self._dialogue.kind != "act", reward=0.0)
        return "length"

    def noted(self, reply: Reply) -> bool:
        """Record a reply that is no action. Whether the world is to be reset now, for another trial."""
        new_trial = self._dialogue.trial > (self._turns[-1].trial if self._turns else 0)
        self._record(reply, None, valid=True, reward=0.0 - self._info["score"] if new_trial else 0.0)
        self._dialogue.said(reply.text)
        return self._dialogue.listens

    def played(
        self, reply: Reply, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StopReason | None:
        """Record an action and what came of it; why the attempt ends here, if it does. `info` has the `action`.

        Raises:
            InvalidFeedback: when reward or score isn't a finite number.
        """
        if not math.isfinite(reward):
            raise InvalidFeedback(f"The reward of a step in task {self.task_id} must be a finite number, not {reward}.")
        self._record(reply, info["action"], valid=info["valid"], reward=reward)
        self._dialogue.said(reply.text)
        self._take(observation if terminated else self._counted(observation), info)
        over = terminated or truncated or self._dialogue.acts == self._horizon
        if not over:
            self._dialogue.saw(self._observation)
        elif info["success"] or not self._dialogue.over(self._observation):
            return "terminated" if terminated else "truncated"
        return None

    def _counted(self, observation: str) -> str:
        """The observation with the number of actions that are left, for an agent that is told."""
        if self._allowed is None:
            return observation
        return f"{observation}\n\nTurns left: {max(0, self._allowed - self._dialogue.acts)}."

    def _take(self, observation: str, info: dict[str, Any]) -> None:
        """What the world shows now. A `TextEnv` checks what it returns; wrappers and servers of others may not."""
        if not math.isfinite(info["score"]):
            raise InvalidFeedback(f"The score in task {info['task_id']} must be a finite number, not {info['score']}.")
        self._observation, self._info = observation, info

    def _record(self, reply: Reply, action: str | None, *, valid: bool, reward: float) -> None:
        kind, state = self._dialogue.kind, self._info["state_key"]
        key = state if kind == "act" else f"{state} {kind}"
        self._turns.append(
            Turn(self._observation, reply, action, valid, reward, key, kind=kind, trial=self._dialogue.trial)
        )

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
            error=error and redacted(error),
            seconds={name: round(spent, 6) for name, spent in self._seconds.items()},
            agent=self._agent,
            tools=self._tools,
            cluster=task.cluster,
        )
