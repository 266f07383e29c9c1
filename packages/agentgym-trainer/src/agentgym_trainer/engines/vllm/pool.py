"""An engine of several vLLM servers, which all training processes share.

Each server gets its weights from one process. Each process sends each request to a server that has its prefix in the
cache, or that has little to do (`prefix_router`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import torch

from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams
from agentgym_trainer.engines.vllm.prefix_router import PrefixRouter
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.models.weights import HostCopy, Weights, exhaust


class VllmPool:
    """An `Engine` of several servers."""

    def __init__(self, servers: Sequence[VllmServer], *, dtype: torch.dtype | None = None) -> None:
        """Create the engine.

        Args:
            servers: The servers; at least one.
            dtype: Data type of a copy of the weights for several servers; see `HostCopy`.
        """
        self.version = 0
        self.usage = EngineUsage()
        """The sums over this process's requests; `busy` is the mean over servers."""
        self.max_context = min(server.max_context for server in servers)
        self._servers = list(servers)
        self._router = PrefixRouter(len(servers))
        self._copy = HostCopy(dtype)

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """See `Engine.generate`."""
        with self._router.routed(ids) as number:
            completion = await self._servers[number].generate(ids, sampling)
        usages = [server.usage for server in self._servers]
        self.usage.prefilled = sum(usage.prefilled for usage in usages)
        self.usage.reused = sum(usage.reused for usage in usages)
        self.usage.generated = sum(usage.generated for usage in usages)
        self.usage.busy = sum(usage.busy for usage in usages) / len(usages)
        return completion

    async def load(self, weights: Weights) -> None:
        """See `Engine.load`. All servers load at the same time."""
        pushing = [server for server in self._servers if server.pushes]
        once = not weights.lasting and len(pushing) != 1
        async with AsyncExitStack() as locks:
            if once:
                # There is only one pass: over a copy for several servers, or to drop the tensors.
                weights = self._copy.of(weights) if pushing else weights
                for server in pushing:  # none may be sent the last weights from the copy while these replace it
                    await locks.enter_async_context(server.lock)
                await asyncio.to_thread(exhaust, weights.tensors())
                weights = replace(weights, lasting=True)
            others = replace(weights, lasting=True)
            await _all(
                server.load(weights, locked=once) if server.pushes else server.load(others) for server in self._servers
            )
        self.version = weights.version

    async def sleep(self) -> bool:
        """Do nothing: the servers keep their memory."""
        return False

    async def close(self) -> None:
        """Close all connections."""
        await _all(server.close() for server in self._servers)


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all, and raise the first error."""
    for result in await asyncio.gather(*coroutines, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
