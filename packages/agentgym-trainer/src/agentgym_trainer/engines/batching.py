"""Continuous batching: requests join and leave one by one, and each step of a core serves all that are there.

What every engine that computes in this process has in common: who waits, who is under way, new weights between
steps, and a core that dies. Knows neither models nor devices; that is the core's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from agentgym_trainer.engines.base import Completion, EngineGone, EngineUsage, SamplingParams
from agentgym_trainer.models.weights import Weights

_T = TypeVar("_T")


class Core(Protocol):
    """What computes. Called from one place at a time; it may raise anything, and is then closed and made anew."""

    max_context: int
    """The most tokens that a context and its reply may have together."""

    def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
        """Take up a request, from the next step on."""
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """One more token, or piece of a context, for every request taken up; those that are complete leave."""
        ...

    def abort(self, numbers: Collection[int]) -> None:
        """Drop these requests, as far as they are under way."""
        ...

    def load(self, weights: Weights) -> None:
        """Take new weights. What is under way goes on with them, from what it has so far."""
        ...

    def sleep(self) -> None:
        """Free what only sampling needs, until the next `load` or `admit`. Nothing is under way."""
        ...

    def close(self) -> None:
        """Free everything; also after something was raised."""
        ...


@dataclass(frozen=True, slots=True)
class _Request:
    ids: tuple[int, ...]
    sampling: SamplingParams
    reply: asyncio.Future[Completion]


class Batching:
    """An engine over a core."""

    def __init__(self, make: Callable[[EngineUsage], Core], *, in_thread: bool) -> None:
        """Make the core.

        Args:
            make: Makes a core, which counts the tokens it reads and samples into the engine's usage. Called again when
                a core has died.
            in_thread: Let the core compute in a thread of its own, while the loop goes on. Otherwise it computes in the
                loop itself: then the same requests always share the same steps, and rounding repeats itself to the bit.
        """
        self.usage = EngineUsage()
        self.version = 0
        self._make = make
        self._core = make(self.usage)
        self._alive = True
        """Whether the core is open. It and the core change where the core computes."""
        self._closed = False
        self.max_context = self._core.max_context
        self._thread = ThreadPoolExecutor(1, "engine") if in_thread else None
        self._numbers = itertools.count()
        self._waiting: dict[int, _Request] = {}
        self._under_way: dict[int, _Request] = {}
        self._driver: asyncio.Task[None] | None = None
        self._alone = asyncio.Lock()
        self._pausing = self._frozen = False
        """Whether nobody is taken up, and whether no step is computed for those under way either."""
        self._weights: Weights | None = None
        self._death: BaseException | None = None
        """What the core died of, until the one after it has completed something."""
        self._over = ""
        """Why nothing is served any more."""

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """A reply to a whole context.

        Raises:
            EngineGone: when the core has died, and again after it was made anew.
            ValueError: when the context is empty, or longer than `max_context` together with its budget.
        """
        if not ids or len(ids) + sampling.max_tokens > self.max_context:
            raise ValueError(
                f"A context of {len(ids)} tokens with a budget of {sampling.max_tokens} was asked for; the engine takes"
                f" contexts of at least 1 token, and {self.max_context} with the budget."
            )
        self._check()
        reply = asyncio.get_running_loop().create_future()
        self._waiting[next(self._numbers)] = _Request(tuple(ids), sampling, reply)
        self._drive()
        return await reply

    async def load(self, weights: Weights) -> None:
        """Take new weights between two steps; replies under way go on with them. See `Engine.load`.

        Raises:
            EngineGone: when the core has died, and again after it was made anew.
        """
        async with self._paused(frozen=True):
            self._weights, self.version = weights, weights.version
            # A core that is made anew gets them, too.
            await self._survived(lambda: self._core.load(weights))

    async def sleep(self) -> None:
        """Free what only sampling needs, when all replies under way are finished.

        Raises:
            EngineGone: as `load`.
        """
        async with self._paused(frozen=False):
            while not await self._survived(lambda: self._core.sleep()):
                pass

    async def close(self) -> None:
        """Free everything. Who waits for a reply gets an EngineGone."""
        self._over = self._over or "The engine was closed; make a new one."
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait([self._driver])
            self._driver = None
        self._refuse()
        closed, self._closed = self._closed, True
        if not closed:
            await self._call(self._let_go)
            if self._thread is not None:
                self._thread.shutdown()

    def _check(self) -> None:
        if self._over:
            raise EngineGone(self._over) from self._death

    @contextlib.asynccontextmanager
    async def _paused(self, *, frozen: bool) -> AsyncGenerator[None]:
        """The step at hand is over meanwhile, and unless `frozen`, also all that was under way."""
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
        """See that there is a driver, if there is something to drive."""
        idle = self._driver is None or self._driver.done()
        if (self._waiting or self._under_way) and idle and not self._pausing:
            self._driver = asyncio.get_running_loop().create_task(self._serve())
            # Whoever waits is told what it died of.
            self._driver.add_done_callback(lambda driver: driver.cancelled() or driver.exception())

    async def _serve(self) -> None:
        """Step until nobody waits any more."""
        try:
            while (self._under_way and not self._frozen) or (self._waiting and not self._pausing):
                await self._step()
                # Whoever has just got a reply, and answers at once, joins the very next step.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._abandon()
            raise
        except BaseException as error:
            # What the core believes to have read, for one, may be more than it has.
            self._over = f"The engine was interrupted in the middle of a step, by {error!r}; make a new one."
            self._death = error
            self._refuse()
            raise
        finally:
            self._driver = None

    async def _step(self) -> None:
        """Let go of whom nobody waits for any more, take up who has come, and compute a step for all."""
        left = [number for number, request in self._under_way.items() if request.reply.done()]
        for number in left:
            del self._under_way[number]
        coming: dict[int, _Request] = {}
        if not self._pausing:
            coming = {number: request for number, request in self._waiting.items() if not request.reply.done()}
            self._waiting = {}
            self._under_way |= coming
        began = time.perf_counter()
        try:
            completions = await self._call(lambda: self._turn(left, coming, bool(self._under_way)))
        except Exception as error:  # noqa: BLE001 - whatever a core may die of
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

    def _turn(
        self, left: Sequence[int], coming: Mapping[int, _Request], anyone: bool
    ) -> Sequence[tuple[int, Completion]]:
        if left:
            self._core.abort(left)
        self._admit(coming)
        return self._core.step() if anyone else []

    def _admit(self, requests: Mapping[int, _Request]) -> None:
        for number, request in requests.items():
            self._core.admit(number, request.ids, request.sampling)

    async def _survived(self, do: Callable[[], None]) -> bool:
        """Whether the core does this without dying; if not, there is a new one.

        Raises:
            EngineGone: when there isn't.
        """
        try:
            await self._call(do)
        except Exception as error:  # noqa: BLE001 - likewise
            await self._revive(error)
            self._check()
            return False
        return True

    async def _revive(self, error: Exception) -> None:
        """Make the core anew and let it play everything under way again, unless it has just died before."""
        before, self._death = self._death, error
        if before is None:
            try:
                await self._call(lambda: self._make_anew(dict(self._under_way)))
            except Exception as again:  # noqa: BLE001 - likewise
                self._death = again
            else:
                return
        self._over = self._over or f"The engine died, was started again, and died again: {self._death!r}"
        self._refuse()
        with contextlib.suppress(Exception):
            await self._call(self._let_go)

    def _make_anew(self, requests: Mapping[int, _Request]) -> None:
        # How it died is known; that it can't be closed properly any more adds nothing.
        with contextlib.suppress(Exception):
            self._let_go()
        self._core, self._alive = self._make(self.usage), True
        if self._weights is not None:
            self._core.load(self._weights)
        self._admit(requests)

    def _let_go(self) -> None:
        if self._alive:
            self._alive = False
            self._core.close()

    def _abandon(self) -> None:
        """The loop ends, and with it whoever waits there; the core stays for the next one."""
        numbers = list(self._under_way)
        self._refuse()
        if numbers and self._thread is None:
            self._core.abort(numbers)
        elif numbers and self._thread is not None:
            # Behind the step that may still be under way there.
            self._thread.submit(lambda: self._core.abort(numbers))

    def _refuse(self) -> None:
        """Serve none of those who wait. They aren't cancelled: a group of tasks would take no notice of that."""
        requests = [*self._under_way.values(), *self._waiting.values()]
        self._under_way, self._waiting = {}, {}
        for request in requests:
            if not request.reply.done():
                gone = EngineGone(self._over or "The engine's loop has ended.")
                gone.__cause__ = self._death
                request.reply.set_exception(gone)

    async def _call(self, do: Callable[[], _T]) -> _T:
        """What comes of it where the core computes: nothing else is done to the core meanwhile."""
        if self._thread is None:
            return do()
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)
