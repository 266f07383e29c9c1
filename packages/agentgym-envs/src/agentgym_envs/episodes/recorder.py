"""The record of an episode while it is played, and the `Episode` made of it.

It depends neither on how an environment is reached nor on how a policy finds its replies: see `play.OpenEpisode`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from agentgym_envs.agents.scaffold import Scaffold
from agentgym_envs.core.feedback import FeedbackChecker, InvalidFeedback
from agentgym_envs.core.tasks import Split, Task
from agentgym_envs.core.text_env import truncated_result
from agentgym_envs.episodes.conversation import LEAST_SUMMARIZED, ConversationBuilder
from agentgym_envs.episodes.episode import Episode, Reply, StopReason, Turn
from agentgym_envs.episodes.policy import TurnContext
from agentgym_envs.util.redaction import redacted
from agentgym_envs.util.screenshots import Picture, ScreenshotStore


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """An episode to be played."""

    task_id: str | None = None
    """None draws a task from `split` with the environment's own generator."""
    sample: int = 0
    """Index of the episode among those of its task."""
    seed: int | None = None
    """Seeds the environment's generator and, with task and sample, that of the policy."""
    split: Split = "train"
    """Of the task that is drawn where none is named."""
    env_seed: int | None = None
    """Seeds the environment's generator instead of `seed`, so that what an environment draws differs between episodes
    of a task."""

    @property
    def reset_seed(self) -> int | None:
        """The seed of the environment's `reset`."""
        return self.seed if self.env_seed is None else self.env_seed


_keys = itertools.count()


class EpisodeRecorder:
    """One attempt at an episode, from the first observation to the `Episode`, in one or several trials.

    After the environment was reset, call `begin`. Record each action that was taken with `record_step`, and each other
    reply with `record_other`; where that returns True, reset the environment once more and call `begin_trial`.
    """

    def __init__(
        self,
        spec: EpisodeSpec,
        horizon: int | None,
        agent: str,
        *,
        env: str,
        turns: int | None = None,
        pictures: ScreenshotStore | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            spec: What is played.
            horizon: Maximum number of actions of a trial; None leaves it to the environment's own limit.
            agent: Name of the agent, as `Agent.parse` takes it.
            env: Name of the environment, for messages.
            turns: Maximum number of actions of a trial by either limit, where observations are to say how many are
                left.
            pictures: Where the screenshots are stored that an agent with the habit `pictures` gets; None: nowhere.

        Raises:
            ValueError: for a horizon below 1.
        """
        if horizon is not None and horizon < 1:
            raise ValueError(f"A horizon is at least 1 turn, not {horizon}.")
        self.key = next(_keys)
        self._spec = spec
        self.limit(horizon, turns)
        self._agent, self._env = agent, env
        self._store, self._sees = pictures, Scaffold.parse(agent).pictures > 0
        self._picture: Picture | None = None
        self._tools: tuple[dict[str, Any], ...] = ()
        self._instructions = ""
        self._conversation = ConversationBuilder(Scaffold(), "")
        self._observation = ""
        self._info: dict[str, Any] = {}
        self._turns: list[Turn] = []
        self._seconds = {"world": 0.0, "policy": 0.0}

    def limit(self, horizon: int | None, turns: int | None) -> None:
        """Set the limits on actions, which include those of an expert; see the constructor."""
        self._horizon, self._allowed = horizon, turns

    @contextmanager
    def clock(self, part: Literal["world", "policy"]) -> Generator[None]:
        """Add the time spent in this context to the episode's seconds of environment or policy."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - began

    def begin(
        self, observation: str, info: dict[str, Any], instructions: str, tools: tuple[dict[str, Any], ...]
    ) -> None:
        """Record the first observation, after a reset. For `tools` see `TurnContext`."""
        spec = self._spec
        self._instructions, self._tools = instructions, tools
        self._conversation = ConversationBuilder(Scaffold.parse(self._agent), instructions)
        self._rng = np.random.default_rng([spec.seed or 0, spec.sample, *info["task_id"].encode()])
        self.begin_trial(observation, info)

    def begin_trial(self, observation: str, info: dict[str, Any]) -> None:
        """Record the first observation of a trial, after a reset.

        Raises:
            InvalidFeedback: if the score isn't in [0, 1], or an agent with the habit `pictures` gets no
                screenshot.
            OSError: if the screenshot can't be stored.
        """
        self._take(self._counted(observation), info)
        self._conversation.add_observation(self._observation, self._picture)

    @property
    def begun(self) -> bool:
        """Whether there was a first observation, so that the task is known."""
        return bool(self._info)

    @property
    def task_id(self) -> str:
        """Id of the task that is played."""
        return self._info["task_id"]

    @property
    def context(self) -> TurnContext:
        """The context of the next reply."""
        builder = self._conversation
        seen = builder.conversation, self._info, self._rng, builder.kind, builder.acts
        return TurnContext(self.key, *seen, self._tools, self._spec.sample, steps=self._steps())

    def _steps(self) -> tuple[tuple[str, str], ...]:
        """The valid actions of this trial, each with the observation that followed it."""
        after = [*(turn.observation for turn in self._turns[1:]), self._observation]
        return tuple(
            (turn.action, observation)
            for turn, observation in zip(self._turns, after, strict=False)
            if turn.trial == self._conversation.trial and turn.kind == "act" and turn.action is not None and turn.valid
        )

    def limit_context(self, count_tokens: Callable[[TurnContext], int]) -> None:
        """Ask for a summary before the next action, if its context has more tokens than the agent's scaffold allows,
        and a summary takes out enough of them.
        """
        limit, context = self._conversation.token_limit, self.context
        if not limit or (tokens := count_tokens(context)) <= limit:
            return
        stay = count_tokens(replace(context, conversation=self._conversation.stays))
        if tokens - stay >= LEAST_SUMMARIZED * tokens:
            self._conversation.shorten()

    def record_cut_reply(self, reply: Reply) -> StopReason:
        """Record a reply that was cut off by the token budget; its action isn't taken."""
        self._record(reply, None, valid=self._conversation.kind != "act", reward=0.0)
        return "length"

    def record_other(self, reply: Reply) -> bool:
        """Record a reply that isn't an action. Returns whether the environment is to be reset now for another trial."""
        new_trial = self._conversation.trial > (self._turns[-1].trial if self._turns else 0)
        self._record(reply, None, valid=True, reward=0.0 - self._info["score"] if new_trial else 0.0)
        self._conversation.add_reply(reply.text)
        return self._conversation.needs_observation

    def record_step(
        self, reply: Reply, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StopReason | None:
        """Record an action and its result; `info` has the `action`. Returns why the episode ends here, or None.

        Raises:
            InvalidFeedback: if the reward isn't a finite number, the score isn't in [0, 1], or an agent with the habit
                `pictures` gets no screenshot.
            OSError: if the screenshot can't be stored.
        """
        if not math.isfinite(reward):
            raise FeedbackChecker(self._env, self.task_id).invalid("reward", "must be a finite number", reward)
        over = terminated or truncated or self._conversation.acts + 1 == self._horizon
        if over and not terminated:
            reward, info = truncated_result(reward, info)
        self._record(reply, info["action"], valid=info["valid"], reward=reward)
        self._conversation.add_reply(reply.text)
        self._take(observation if terminated else self._counted(observation), info)
        if not over:
            self._conversation.add_observation(self._observation, self._picture)
        elif info["success"] or not self._conversation.end_trial(self._observation, self._picture):
            return "terminated" if terminated else "truncated"
        return None

    def _counted(self, observation: str) -> str:
        """The observation, with the number of actions left where the agent is to see it."""
        if self._allowed is None:
            return observation
        return f"{observation}\n\nTurns left: {max(0, self._allowed - self._conversation.acts)}."

    def _take(self, observation: str, info: dict[str, Any]) -> None:
        """Take the environment's feedback. A `TextEnv` checks it; wrappers and servers of other packages may not."""
        score = FeedbackChecker(self._env, info["task_id"]).score(info["score"])
        self._observation, self._info = observation, {**info, "score": score}
        if self._sees:
            self._picture = Picture.of(info)
            if self._picture is None:
                raise InvalidFeedback(
                    f"The agent {self._agent} gets screenshots, but task {info['task_id']} has none in "
                    'info["screenshot"]. Make the environment with screenshot=True, or leave the habit pictures out.'
                )
            if self._store is not None:
                self._store.add(self._picture)

    @property
    def _digest(self) -> str | None:
        return None if self._picture is None else self._picture.digest

    def _record(self, reply: Reply, action: str | None, *, valid: bool, reward: float) -> None:
        kind, state, trial = self._conversation.kind, self._info["state_key"], self._conversation.trial
        key = state if kind == "act" else f"{state} {kind}"
        more: dict[str, Any] = {"kind": kind, "trial": trial, "loss": not reply.expert, "picture": self._digest}
        self._turns.append(Turn(self._observation, reply, action, valid, reward, key, **more))

    def episode(self, task: Task, policy: str, stop: StopReason, error: str | None = None) -> Episode:
        """The finished `Episode` of `task`, played by `policy`."""
        failed = stop == "failed"
        return Episode(
            env=task.env,
            task_id=task.id,
            split=task.split,
            category=task.category,
            difficulty=task.difficulty,
            policy=policy,
            sample=self._spec.sample,
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
            final_picture=self._digest,
        )
