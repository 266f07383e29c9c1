"""A concurrent policy for `counting_world`, with a configurable delay before each reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentgym_envs import Policy, Reply, TurnContext


async def no_delay(context: TurnContext) -> None:
    """Return immediately."""


async def block_on_longest_task(context: TurnContext) -> None:
    """Block forever in the longest task."""
    if context.info["task_id"] == "count/test/9":
        await asyncio.Event().wait()


class CountingPolicy(Policy):
    """A policy that stops early with probability 0.1; `before_reply` is awaited before each reply."""

    name = "counter"

    def __init__(self, before_reply: Callable[[TurnContext], Awaitable[None]] = no_delay) -> None:
        self._before_reply = before_reply
        self.active = set[int]()
        self.max_active = self.close_count = 0

    async def reply(self, context: TurnContext) -> Reply:
        self.active.add(context.key)
        self.max_active = max(self.max_active, len(self.active))
        await self._before_reply(context)
        count = len(context.conversation) // 2 - 1
        done = count >= int(context.info["task_id"].rpartition("/")[2]) or context.rng.random() < 0.1
        return Reply(f"Action: {'stop' if done else 'add'}")

    def forget(self, key: int) -> None:
        self.active.discard(key)

    async def close(self) -> None:
        self.close_count += 1


class FakeEntryPoint:
    """An installed entry point whose factory returns the given policy."""

    name = "counter"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def load(self) -> Any:
        return lambda argument, **settings: self._policy
