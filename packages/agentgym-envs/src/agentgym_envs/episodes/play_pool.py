"""Playing episodes in the slots of an `EnvPool`.

A local instance of the environment parses replies and has the tasks; only actions are sent to the slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from agentgym_envs.agents.formats import ReplyWrapper
from agentgym_envs.core.feedback import Malformed, faulting
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.tasks import Task
from agentgym_envs.episodes.episode import Episode
from agentgym_envs.episodes.expert_start import ExpertStart
from agentgym_envs.episodes.play import play_slots
from agentgym_envs.episodes.policy import Policy
from agentgym_envs.episodes.recorder import EpisodeSpec
from agentgym_envs.episodes.slots import EnvSlot, Start, Transition
from agentgym_envs.pool import Ask, EnvPool, Reset, Result, Step
from agentgym_envs.pool.calls import Call
from agentgym_envs.util.screenshots import ScreenshotStore


class PoolSlot(EnvSlot):
    """A slot of an `EnvPool`. It is free again after an episode, also after an error or a cancellation."""

    def __init__(self, pool: EnvPool, slot: int, env: ReplyWrapper, deadline: float | None = None) -> None:
        """Take one slot.

        Args:
            pool: Holds environments without a `ReplyWrapper`.
            slot: Its number.
            env: A local instance of the environment, with the same options, in its wrapper. It isn't played.
            deadline: Seconds for each call of the environment, after which the slot gets a new one; None takes the
                pool's.
        """
        self.env = self._wrapper = env
        self.name = pool.specs[slot].id
        self._pool, self._slot, self._deadline = pool, slot, deadline

    async def reset(self, spec: EpisodeSpec, task_id: str | None) -> Start:
        """Reset the slot's environment."""
        begun = await self._call(Reset(task_id, spec.split, spec.reset_seed))
        instructions = await self._call(Ask("instructions"))
        return Start(begun.observation, begun.info, self._wrapper.system_message(instructions.value))

    async def step(self, reply: str) -> Transition:
        """Parse the reply here and step the slot's environment."""
        action = self._wrapper.action_in(reply)
        step = await self._call(Step(action))
        step.info["action"] = None if isinstance(action, Malformed) else action
        return Transition(step.observation, step.reward, step.terminated, step.truncated, step.info)

    async def ask(self, method: str) -> Any:
        """The return value of a method of the slot's environment."""
        return (await self._call(Ask(method))).value

    def task(self, spec: EpisodeSpec) -> Task:
        """The task that the spec names: which task a slot would draw depends on timing."""
        if spec.task_id is None:
            raise ValueError("An episode played in a pool names its task; choose one of the environment's tasks.")
        return text_env(self.env).tasks[spec.task_id]

    async def _call(self, call: Call) -> Result:
        """The result of a call. A cancelled call frees the slot.

        Raises:
            EnvFault: for whatever the environment raised.
            SlotBusy, IndexError, RuntimeError: see `EnvPool.step`.
        """
        try:
            result = await self._pool.call(self._slot, call, deadline=self._deadline)
        except asyncio.CancelledError:
            self._pool.replace(self._slot)
            raise
        if result.error is not None:
            with faulting(self.name):
                raise result.error
        return result


def play_pool(
    pool: EnvPool,
    policy: Policy,
    specs: Iterable[EpisodeSpec],
    *,
    env: ReplyWrapper,
    slots: Iterable[int] | None = None,
    horizon: int | None = None,
    retries: int = 1,
    deadline: float | None = None,
    expert_start: ExpertStart | None = None,
    pictures: ScreenshotStore | None = None,
) -> AsyncGenerator[Episode]:
    """Play `specs` in slots of a pool and yield episodes as they end. See `play_slots`.

    Args:
        pool: Holds environments without a `ReplyWrapper`.
        policy: Replies in all episodes.
        specs: Each names its task.
        env: A local instance; see `PoolSlot`.
        slots: Which slots to use; all of the pool by default.
        horizon: Maximum number of actions of a trial.
        retries: How often a task is begun again after a fault.
        deadline: Seconds for each call of the environment.
        expert_start: Lets the environment's expert play the first turns; see `play_episode`.
        pictures: Where the screenshots are stored that an agent with the habit `pictures` gets; None: nowhere.

    Raises:
        Exception: as `play_episode`, from any slot.
    """
    taken = [PoolSlot(pool, slot, env, deadline) for slot in (range(len(pool)) if slots is None else slots)]
    settings: dict[str, Any] = {"horizon": horizon, "retries": retries, "expert_start": expert_start}
    return play_slots(taken, policy, specs, **settings, pictures=pictures)
