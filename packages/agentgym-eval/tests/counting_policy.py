"""Someone who counts, each trajectory at its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentgym_envs import Policy, Reply, TurnContext


async def at_once(seat: TurnContext) -> None:
    """Takes no time."""


async def never(seat: TurnContext) -> None:
    """Takes for ever in the longest task."""
    if seat.info["task_id"] == "count/test/9":
        await asyncio.Event().wait()


class Counter(Policy):
    """Right nine times of ten; `thinking` is awaited before each reply."""

    name = "counter"

    def __init__(self, thinking: Callable[[TurnContext], Awaitable[None]] = at_once) -> None:
        self._thinking = thinking
        self.live = set[int]()
        self.most = self.closed = 0

    async def reply(self, context: TurnContext) -> Reply:
        self.live.add(context.key)
        self.most = max(self.most, len(self.live))
        await self._thinking(context)
        said = len(context.conversation) // 2 - 1
        done = said >= int(context.info["task_id"].rpartition("/")[2]) or context.rng.random() < 0.1
        return Reply(f"Action: {'stop' if done else 'add'}")

    def forget(self, key: int) -> None:
        self.live.discard(key)

    async def close(self) -> None:
        self.closed += 1


class Entry:
    """An installed entry point."""

    name = "counter"

    def __init__(self, player: Policy) -> None:
        self._player = player

    def load(self) -> Any:
        return lambda argument, **settings: self._player
