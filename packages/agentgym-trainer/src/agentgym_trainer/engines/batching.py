"""Continuous batching: requests join and leave one by one, and each step of a core serves all current requests.

This is the part that all in-process engines share: the queue, the running requests, weight updates between steps, and
the restart of a core that died. Models and devices are up to the core.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from agentgym_trainer.engines.base import Completion, EngineGone, EngineUsage, SamplingParams
from agentgym_trainer.models.weights import HostCopy, Weights

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")


class Core(Protocol):
    """The computing part of an engine.

    Its methods are never called concurrently. They may raise anything; the core is then closed and recreated.
    """

    max_context: int
    """The maximum number of tokens of a context and its completion together."""

    def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
        """Add a request to the batch from the next step on."""
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """Sample one token, or prefill a part of the context, for every request; return those that are complete."""
        ...

    def abort(self, numbers: Collection[int]) -> None:
        """Drop those of these requests that are running."""
        ...

    def load(self, weights: Weights) -> None:
        """Load new weights. Running requests continue with them after the tokens sampled so far."""
        ...

    def sleep(self) -> bool:
        """Free what only sampling needs, until the next `load` or `admit`. No request is running.

        Returns:
            Whether the weights were freed, too: they are then loaded again before the next `admit`.
        """
        ...

    def close(self) -> None:
        """Free everything, also after a method raised."""
        ...


@dataclass(frozen=True, slots=True)
class _Request:
    ids: tuple[int, ...]
    sampling: SamplingParams
    reply: asyncio.Future[Completion]


class Batching:
    """An `Engine` that runs a core with continuous batching."""

    def __init__(
        self, make: Callable[[EngineUsage], Core], *, in_thread: bool, dtype: torch.dtype | None = None
    ) -> None:
        """Create the core.

        Args:
            make: Creates a core, which adds the tokens it prefills and samples to the engine's usage. Called again
                after a core has died.
            in_thread: Run the core in a thread of its own, concurrently with the event loop. Otherwise it runs in the
                loop itself: the same requests then always share the same steps, which makes results reproducible
                bit by bit.
            dtype: Data type of a copy of the weights, which is kept in host memory for a core that has lost them if the
                learner's don't last (`Weights.lasting`); None: that of the learner's.
        """
        self.usage = EngineUsage()
        self.version = 0
        self._make = make
        self._core = make(self.usage)
        self._alive = True
        """Whether the core is open. This and `_core` are only changed where the core computes."""
        self._closed = False
        self.max_context = self._core.max_context
        self._thread = ThreadPoolExecutor(1, "engine") if in_thread else None
        self._numbers = itertools.count()
        self._waiting: dict[int, _Request] = {}
        self._under_way: dict[int, _Request] = {}
        self._driver: asyncio.Task[None] | None = None
        self._alone = asyncio.Lock()
        self._pausing = self._frozen = False
        """`_pausing`: no waiting request is admitted. `_frozen`: no step is computed for running ones either."""
        self._copy = HostCopy(dtype)
        self._weights: Weights | None = None
        self._unloaded = False
        """Whether the core has freed its weights. Only changed where the core computes."""
        self._death: BaseException | None = None
        """The error that the core died of, until its successor has completed a request."""
        self._over = ""
        """Why the engine serves no requests any more; empty while it does."""

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample a completion of a whole context.

        Raises:
            EngineGone: when the core died, and died again after it was recreated.
            ValueError: when the context is empty, or exceeds `max_context` together with its token budget.
        """
        sampling.check_length(len(ids), self.max_context)
        self._check()
        reply = asyncio.get_running_loop().create_future()
        self._waiting[next(self._numbers)] = _Request(tuple(ids), sampling, reply)
        self._drive()
        return await reply

    async def load(self, weights: Weights) -> None:
        """Load new weights between two steps. See `Engine.load`.

        Raises:
            EngineGone: when the core died, and died again after it was recreated.
        """
        async with self._paused(frozen=True):
            self._weights, self.version = self._copy.of(weights), weights.version
            # If the core dies here, its successor loads them as well.
            await self._survived(self._load_core)

    async def sleep(self) -> bool:
        """Free what only sampling needs, after all running requests have finished.

        Returns:
            False: if the core drops the weights, `generate` loads them again as fast as `load`.

        Raises:
            EngineGone: as `load`.
        """
        async with self._paused(frozen=False):
            while not await self._survived(self._sleep_core):
                pass
        return False

    async def close(self) -> None:
        """Free everything. Pending requests raise EngineGone."""
        self._over = self._over or "The engine was closed; create a new one."
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait([self._driver])
            self._driver = None
        self._refuse()
        closed, self._closed = self._closed, True
        if not closed:
            await self._call(self._close_core)
            if self._thread is not None:
                self._thread.shutdown()

    def _check(self) -> None:
        if self._over:
            raise EngineGone(self._over) from self._death

    @contextlib.asynccontextmanager
    async def _paused(self, *, frozen: bool) -> AsyncGenerator[None]:
        """Wait for the current step, and unless `frozen` for all running requests; compute nothing until the exit."""
        async with self._alone:
            self._pausing, self._frozen = True, frozen
            try:
                if self._driver is not None:
                    await asyncio.wait([self._driver])
                self._check()
                yield
            finally:
                self._pausing = self._frozen = False
                self._drive()

    def _drive(self) -> None:
        """Start the driver task if there are requests and none is running."""
        idle = self._driver is None or self._driver.done()
        if (self._waiting or self._under_way) and idle and not self._pausing:
            self._driver = asyncio.get_running_loop().create_task(self._serve())
            # Retrieve its exception, which the pending requests have been given already.
            self._driver.add_done_callback(lambda driver: driver.cancelled() or driver.exception())

    async def _serve(self) -> None:
        """Step until no request is left."""
        try:
            while (self._under_way and not self._frozen) or (self._waiting and not self._pausing):
                await self._step()
                # Yield, so that a caller that reacts to its completion immediately can join the next step.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._abandon()
            raise
        except BaseException as error:
            # The state of the core may be inconsistent, for instance how much of each context it has prefilled.
            self._over = f"The engine was interrupted in the middle of a step by {error!r}; create a new one."
            self._death = error
            self._refuse()
            raise
        finally:
            self._driver = None

    async def _step(self) -> None:
        """Abort cancelled requests, admit waiting ones, and compute one step for all."""
        cancelled = [number for number, request in self._under_way.items() if request.reply.done()]
        for number in cancelled:
            del self._under_way[number]
        admitted: dict[int, _Request] = {}
        if not self._pausing:
            admitted = {number: request for number, request in self._waiting.items() if not request.reply.done()}
            self._waiting = {}
            self._under_way |= admitted
        began = time.perf_counter()
        try:
            completions = await self._call(lambda: self._step_core(cancelled, admitted, bool(self._under_way)))
        except Exception as error:  # noqa: BLE001 - a core may raise anything
            await self._revive(error)
        else:
            self._reply(completions)
        finally:
            self.usage.busy += time.perf_counter() - began

    def _reply(self, completions: Sequence[tuple[int, Completion]]) -> None:
        for number, completion in completions:
            self._death = None
            reply = self._under_way.pop(number).reply
            if not reply.done():
                reply.set_result(completion)

    def _step_core(
        self, cancelled: Sequence[int], admitted: Mapping[int, _Request], any_running: bool
    ) -> Sequence[tuple[int, Completion]]:
        if cancelled:
            self._core.abort(cancelled)
        self._admit(admitted)
        return self._core.step() if any_running else []

    def _admit(self, requests: Mapping[int, _Request]) -> None:
        if requests and self._unloaded:
            self._load_core()
        for number, request in requests.items():
            self._core.admit(number, request.ids, request.sampling)

    async def _survived(self, do: Callable[[], None]) -> bool:
        """Run a function on the core; return False if the core died and was recreated.

        Raises:
            EngineGone: when it could not be recreated.
        """
        try:
            await self._call(do)
        except Exception as error:  # noqa: BLE001 - a core may raise anything
            await self._revive(error)
            self._check()
            return False
        return True

    async def _revive(self, error: Exception) -> None:
        """Recreate the core and run all running requests again from the start, unless its predecessor died, too."""
        before, self._death = self._death, error
        # Otherwise the functions that it has ended keep their tensors, such as the cache of a core without memory.
        traceback.clear_frames(error.__traceback__)
        if before is None:
            try:
                await self._call(lambda: self._recreate_core(dict(self._under_way)))
            except Exception as again:  # noqa: BLE001 - a core may raise anything
                self._death = again
            else:
                return
        self._over = self._over or f"The engine died, was restarted, and died again: {self._death!r}"
        self._refuse()
        with contextlib.suppress(Exception):
            await self._call(self._close_core)

    def _recreate_core(self, requests: Mapping[int, _Request]) -> None:
        # An error on closing would only hide the one that the core died of.
        with contextlib.suppress(Exception):
            self._close_core()
        self._core, self._alive, self._unloaded = self._make(self.usage), True, False
        self._load_core()
        self._admit(requests)

    def _load_core(self) -> None:
        if self._weights is not None:
            self._core.load(self._weights)
        self._unloaded = False

    def _sleep_core(self) -> None:
        self._unloaded = self._core.sleep() or self._unloaded

    def _close_core(self) -> None:
        if self._alive:
            self._alive = False
            self._core.close()

    def _abandon(self) -> None:
        """Fail all requests because the event loop ends. The core stays usable in the next loop."""
        numbers = list(self._under_way)
        self._refuse()
        if numbers and self._thread is None:
            self._core.abort(numbers)
        elif numbers and self._thread is not None:
            # Queued behind the step that may still be running in the thread.
            self._thread.submit(lambda: self._core.abort(numbers))

    def _refuse(self) -> None:
        """Fail all requests. Cancelling them instead would go unnoticed in a task group."""
        requests = [*self._under_way.values(), *self._waiting.values()]
        self._under_way, self._waiting = {}, {}
        for request in requests:
            if not request.reply.done():
                gone = EngineGone(self._over or "The engine's loop has ended.")
                gone.__cause__ = self._death
                request.reply.set_exception(gone)

    async def _call(self, do: Callable[[], _T]) -> _T:
        """Run a function on the core's thread, exclusively."""
        if self._thread is None:
            return do()
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)
