"""An engine with scripted completions and delays, for tests and benchmarks of the code around engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams, Weights

_UNLIMITED = 1 << 20


class ScriptedEngine:
    """Answers each request with a function of its whole context; every id has log-probability -1.

    It has no cache: every context counts as prefilled, which takes no time.
    """

    def __init__(
        self,
        script: Callable[[tuple[int, ...]], Sequence[int]],
        *,
        end_id: int,
        seconds_per_request: float = 0.0,
        seconds_per_token: float = 0.0,
        capacity: int | None = None,
        max_context: int = _UNLIMITED,
    ) -> None:
        """Create the engine.

        Args:
            script: Maps a context to the ids of the completion, which are cut at the token budget. Called when the
                request starts.
            end_id: The token that ends a completion.
            seconds_per_request: Duration of each request, independent of its length.
            seconds_per_token: Additional duration per completion token.
            capacity: Number of requests that run concurrently without slowing each other down; None: no limit.
            max_context: The maximum number of tokens of a context and its completion together.
        """
        self.version = 0
        self.usage = EngineUsage()
        self.max_context = max_context
        self._script, self._end_id = script, end_id
        self._seconds = (seconds_per_request, seconds_per_token)
        self._capacity = capacity or _UNLIMITED
        self._underway = 0
        self._changed = asyncio.Condition()
        self._since = 0.0

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Return the scripted completion. See `Engine.generate`."""
        sampling.check_length(len(ids), self.max_context)
        async with self._slot():
            version = self.version
            completion = tuple(self._script(tuple(ids)))[: sampling.max_tokens]
            self.usage.prefilled += len(ids)
            per_request, per_token = self._seconds
            await asyncio.sleep(per_request + per_token * len(completion))
            self.usage.generated += len(completion)
            finish = "stop" if completion[-1:] == (self._end_id,) else "length"
            return Completion(completion, (-1.0,) * len(completion), finish, version)

    async def load(self, weights: Weights) -> None:
        """Set the version of requests that start from now on; the completions of running ones are fixed already."""
        self.version = weights.version

    async def sleep(self) -> bool:
        """Do nothing: there is nothing to free."""
        return False

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        """Wait for one of the `capacity` slots and hold it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._underway < self._capacity)
            if not self._underway:
                self._since = time.perf_counter()
            self._underway += 1
        try:
            yield
        finally:
            self._underway -= 1
            if not self._underway:
                self.usage.busy += time.perf_counter() - self._since
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
