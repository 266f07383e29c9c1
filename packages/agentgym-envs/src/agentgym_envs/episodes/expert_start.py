"""Episodes that begin near the end of their task: the environment's expert plays the turns before.

Reverse curricula begin episodes in states from which the goal is near, and then further away: Florensa et al. 2017
(arXiv 1707.05300), Salimans and Chen 2018 (arXiv 1812.03381), R3 (arXiv 2402.05808).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentgym_envs.core.feedback import EnvFault
from agentgym_envs.episodes.episode import Reply

if TYPE_CHECKING:
    from agentgym_envs.episodes.recorder import EpisodeSpec
    from agentgym_envs.episodes.slots import EnvSlot

_MOST = 1_000
"""Maximum number of actions of an expert, in environments without a limit of their own."""


@dataclass(frozen=True, slots=True)
class ExpertPrefix:
    """The turns that the expert plays before the policy."""

    replies: tuple[Reply, ...] = ()
    """Its actions in the agent's reply format, marked as `Reply.expert`."""
    state_key: str = ""
    """Of the state in which the policy begins."""


class ExpertStart:
    """Begins episodes where the environment's expert has a number of turns left; earlier if it needs fewer turns.

    To find that state, the expert plays each task and seed once to its end, in the slot of the first episode that
    begins. All episodes of the same task and seed have the same prefix. An instance belongs to one event loop.
    """

    def __init__(self, remaining: int) -> None:
        """Play nothing yet.

        Args:
            remaining: Number of turns that the expert has left where the policy begins.

        Raises:
            ValueError: if that is less than one turn.
        """
        if remaining < 1:
            raise ValueError(f"An episode begins at least 1 turn before its end, not {remaining}.")
        self.remaining = remaining
        self._prefixes: dict[tuple[str, str, int], ExpertPrefix] = {}
        self._locks: dict[tuple[str, str, int], asyncio.Lock] = {}

    async def prefix(self, slot: EnvSlot, spec: EpisodeSpec) -> ExpertPrefix:
        """The expert's turns before the policy's first one; none if the whole task takes at most `remaining` turns.

        Raises:
            EnvFault: if the expert doesn't reach the goal, or the environment raised anything.
            ValueError: if the spec doesn't name both task and seed, which determine the prefix.
        """
        seed = spec.reset_seed
        if spec.task_id is None or seed is None:
            raise ValueError("An episode that begins with an expert's turns must have a task id and a seed.")
        key = slot.name, spec.task_id, seed
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._prefixes:
                self._prefixes[key] = await self._demonstrated(slot, spec)
            return self._prefixes[key]

    async def _demonstrated(self, slot: EnvSlot, spec: EpisodeSpec) -> ExpertPrefix:
        start = await slot.reset(spec, spec.task_id)
        states, replies, success, over = [start.info["state_key"]], list[Reply](), False, False
        while not over and len(replies) < _MOST:
            replies.append(replace(await slot.expert(), expert=True))
            step = await slot.step(replies[-1].text)
            states.append(step.info["state_key"])
            success, over = step.info["success"], step.terminated or step.truncated
        if not success:
            raise EnvFault(
                f"The expert of {slot.name} did not reach the goal of {spec.task_id} in {len(replies)} turns, so it "
                "can't be said where it has some left."
            )
        led = max(0, len(replies) - self.remaining)
        return ExpertPrefix(tuple(replies[:led]), states[led])
