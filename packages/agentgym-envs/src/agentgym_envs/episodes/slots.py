"""Slots: places where one episode at a time is played, with the environment of this process or one elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium

from agentgym_envs.agents.formats import Bare
from agentgym_envs.core.feedback import EnvFault, faulting
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.tasks import Task
from agentgym_envs.episodes.episode import Kind, Reply
from agentgym_envs.episodes.policy import last_steps
from agentgym_envs.episodes.recorder import EpisodeSpec


class Start(NamedTuple):
    """What a slot returns when an episode begins."""

    observation: str
    info: dict[str, Any]
    instructions: str


class Transition(NamedTuple):
    """What a slot returns for a reply. `info` has the `action` that was parsed from it, or None."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class NoExpertReply(EnvFault):
    """An environment's expert was asked in a state in which it has no action."""


class EnvSlot(ABC):
    """A place where one episode at a time is played."""

    env: gymnasium.Env[str, str]
    """The environment in its `ReplyWrapper`: the one that is played, or a local instance with the same tasks."""
    name: str
    """Id of the environment, for error messages."""

    @abstractmethod
    async def reset(self, spec: EpisodeSpec, task_id: str | None) -> Start:
        """Begin `task_id`, or a task drawn from the spec's split. Raises `EnvFault` for any error of it."""

    @abstractmethod
    async def step(self, reply: str) -> Transition:
        """Take the action in `reply`. Raises `EnvFault` for any error of the environment."""

    @abstractmethod
    async def ask(self, method: str) -> Any:
        """The return value of a method of the environment without arguments. Raises `EnvFault` for any error of it."""

    async def expert(self, kind: Kind = "act", steps: Sequence[tuple[str, str]] = ()) -> Reply:
        """The reply of the environment's expert now: an action, with its reasons if the reply format has them, or for
        other kinds its plan or reasons in sentences. A summary also has the last of `steps` (`TurnContext.steps`).

        Raises:
            NoExpertReply: if the expert has no action in this state.
            EnvFault: if the environment raised anything.
        """
        if kind != "act":
            text = await self.ask("oracle_thought" if kind == "reflect" else "oracle_plan")
            done = last_steps(steps) if kind == "summary" else ""
            return Reply(f"{done}\n{text}".strip() or "I take one step after the other until the goal is reached.")
        action: str | None = await self.ask("oracle")
        if action is None:
            raise NoExpertReply(f"The expert of {self.name} has no action in this state.")
        thought = await self.ask("oracle_thought") if self.env.get_wrapper_attr("thinks") else ""
        with faulting(self.name):
            return Reply(self.env.get_wrapper_attr("format")(action, thought))

    @abstractmethod
    def task(self, spec: EpisodeSpec) -> Task | None:
        """The task that the spec names; None where the environment draws one.

        Raises:
            KeyError: if there is no such task.
            ValueError: if this slot needs the spec to name one.
        """


class LocalSlot(EnvSlot):
    """An environment of this process, called directly on the caller's thread."""

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        """Wrap an environment.

        Args:
            env: In a `ReplyWrapper`; without one it is wrapped in `Bare`. It stays open.
        """
        self.env = env if env.has_wrapper_attr("parse") else Bare(env)
        self.name = env.spec.id if env.spec else type(text_env(env)).__name__

    async def reset(self, spec: EpisodeSpec, task_id: str | None) -> Start:
        """Reset the environment."""
        with faulting(self.name):
            observation, info = self.env.reset(seed=spec.reset_seed, options={"task": task_id, "split": spec.split})
            return Start(observation, info, self.env.get_wrapper_attr("instructions"))

    async def step(self, reply: str) -> Transition:
        """Step the environment."""
        with faulting(self.name):
            observation, reward, terminated, truncated, info = self.env.step(reply)
            return Transition(observation, float(reward), terminated, truncated, info)

    async def ask(self, method: str) -> Any:
        """The return value of a method of the environment."""
        with faulting(self.name):
            return self.env.get_wrapper_attr(method)()

    def task(self, spec: EpisodeSpec) -> Task | None:
        """The task that the spec names."""
        return text_env(self.env).tasks[spec.task_id] if spec.task_id is not None else None
