"""An engine that says what it is told to, in the time it is told to: for tests and benchmarks of all around engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams, Weights

_ROOMY = 1 << 20


class ScriptedEngine:
    """Answers each request with what a function of its whole context says; each id has log-probability -1.

    It has no cache: every context is read anew, which takes no time of its own.
    """

    def __init__(
        self,
        script: Callable[[tuple[int, ...]], Sequence[int]],
        *,
        end_id: int,
        seconds_per_request: float = 0.0,
        seconds_per_token: float = 0.0,
        capacity: int | None = None,
        max_context: int = _ROOMY,
    ) -> None:
        """Make it.

        Args:
            script: From a context to the ids of the reply, which are cut at the budget. Called when the reply begins.
            end_id: A reply that ends with it has come to its end.
            seconds_per_request: What each reply takes whatever its length.
            seconds_per_token: What each of its tokens takes besides.
            capacity: How many replies are under way at once, none slower for the others; None sets no limit.
            max_context: The most tokens that a context and its reply may have together.
        """
        self.version = 0
        self.usage = EngineUsage()
        self.max_context = max_context
        self._script, self._end_id = script, end_id
        self._seconds = (seconds_per_request, seconds_per_token)
        self._capacity = capacity or _ROOMY
        self._underway = 0
        self._changed = asyncio.Condition()
        self._since = 0.0

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """What the script says. See `Engine.generate`."""
        if len(ids) + sampling.max_tokens > self.max_context:
            raise ValueError(
                f"A context of {len(ids)} tokens and a reply of up to {sampling.max_tokens} are more than the "
                f"{self.max_context} that this engine takes."
            )
        async with self._place():
            version = self.version
            said = tuple(self._script(tuple(ids)))[: sampling.max_tokens]
            self.usage.prefilled += len(ids)
            per_request, per_token = self._seconds
            await asyncio.sleep(per_request + per_token * len(said))
            self.usage.generated += len(said)
            finish = "stop" if said[-1:] == (self._end_id,) else "length"
            return Completion(said, (-1.0,) * len(said), finish, version)

    async def load(self, weights: Weights) -> None:
        """Note the version, for replies that begin from now on: those under way were drawn when they began."""
        self.version = weights.version

    async def sleep(self) -> None:
        """There is nothing to free."""

    async def close(self) -> None:
        """There is nothing to free."""

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        """One of the replies under way; waits for a place."""
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
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
