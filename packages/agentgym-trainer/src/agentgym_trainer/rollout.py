"""Plays with an engine: the player that turns conversations into token ids and sampled ids into replies, and the
thread in which all trajectories are played at once.

Knows engines and `chat`; knows neither learners nor algorithms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from agentgym_envs import EnvPool, Episode, Job, Player, Reply, ReplyWrapper, Sample, Seat, play_pool
from agentgym_envs.loop import LoopThread

from agentgym_trainer.chat import Chat, Context
from agentgym_trainer.engines import Engine, Sampling, Weights

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budget:
    """The most tokens that a player may use. Where one is used up, generation stops and the episode is cut."""

    turn: int = 512
    """Of a reply."""
    context: int = 8704
    """Of a context, what the world says included."""
    episode: int = 0
    """Of all replies of an episode together; 0 sets no limit."""


class EnginePlayer(Player):
    """A language model as a player."""

    def __init__(self, engine: Engine, chat: Chat, budget: Budget, *, name: str, temperature: float = 1.0) -> None:
        """Seat a model.

        Args:
            engine: Samples the replies. It stays open when the player is closed.
            chat: Its tokenizer and chat template.
            budget: What it may say; no context is longer than the engine takes.
            name: What reports call it.
            temperature: Of the sampling; 0 plays greedily.
        """
        self.name = name
        self.engine = engine
        self.chat = chat
        self.budget = budget
        self.temperature = temperature
        self._contexts: dict[int, Context] = {}

    async def reply(self, seat: Seat) -> Reply:
        """Sample a reply. An empty one, cut before it began, when no token is left to it.

        Raises:
            EngineGone: when the engine can't be brought back.
        """
        context = self._contexts.setdefault(seat.key, Context(self.chat))
        prompt, fresh = context.prompt(seat.conversation)
        seed = int(seat.rng.integers(2**63))
        left = self._left(context)
        if left < 1:
            # What nobody will read is no load for the learner either.
            longer = max(0, len(context.ids) - self._longest)
            unread = tuple(prompt[: len(prompt) - longer])
            return Reply("", "length", Sample(unread, (), (), self.engine.version, fresh))
        said = await self.engine.generate(context.ids, Sampling(self.temperature, left, seed))
        context.said(said.ids)
        sample = Sample(tuple(prompt), said.ids, said.logprobs, said.version, fresh)
        return Reply(self.chat.reply_text(said.ids), said.finish, sample)

    def leave(self, key: int) -> None:
        """Forget this attempt."""
        self._contexts.pop(key, None)

    @property
    def _longest(self) -> int:
        return min(self.budget.context, self.engine.max_context)

    def _left(self, context: Context) -> int:
        """The most tokens of the next reply."""
        left = min(self.budget.turn, self._longest - len(context.ids))
        return min(left, self.budget.episode - context.spoken) if self.budget.episode else left


class Playground(Protocol):
    """A world as rollouts need it."""

    @property
    def wrapped(self) -> ReplyWrapper:
        """One at hand: it has the tasks and instructions, and finds actions in replies."""
        ...

    @property
    def pool(self) -> EnvPool:
        """The ones that are played, in slots."""
        ...


@dataclass(frozen=True, slots=True)
class Match:
    """What is to be played in one world."""

    world: Playground
    jobs: Iterable[Job]
    horizon: int | None = None
    """The most turns of an episode."""


class Running(Generic[T]):
    """A coroutine in the thread of `Rollouts`, seen from another one."""

    def __init__(self, thread: LoopThread, coroutine: Coroutine[Any, Any, T]) -> None:
        """Start it.

        Raises:
            RuntimeError: when the thread has ended.
        """
        self._thread = thread
        self._task: asyncio.Task[T] | None = None
        self._unwanted = False
        try:
            # A future that is cancelled says so at once, while its coroutine may still be at work: this one never is.
            self.future: Future[T] = thread.start(self._carry(coroutine))
        except RuntimeError:
            coroutine.close()
            raise

    def result(self) -> T:
        """What the coroutine returns or raises, when it has. An interruption here, such as Ctrl-C, ends it too."""
        try:
            return self.future.result()
        finally:
            self.end()

    def end(self) -> None:
        """Cancel the coroutine and wait until it is over; nothing happens to one that is."""
        if not self.future.done():
            self._thread.call_soon(self._cancel)
            wait([self.future])

    def _cancel(self) -> None:
        self._unwanted = True
        if self._task is not None:
            self._task.cancel()

    async def _carry(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.ensure_future(coroutine)
        if self._unwanted:
            self._task.cancel()
        return await self._task


class Rollouts:
    """An engine, and the thread with the one event loop in which it and all that is played with it live.

    For the main thread, which trains meanwhile or waits. `with Rollouts(engine) as rollouts: ...`
    """

    def __init__(self, engine: Engine) -> None:
        """Start the thread; the engine is closed with it."""
        self.engine = engine
        self._thread = LoopThread("Rollouts")

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def play(self, matches: Sequence[Match], player: Player) -> Iterator[Episode]:
        """Play all matches at once, each in all slots of its world, and yield the episodes as they end.

        What is left when the caller takes no more, or is interrupted, is cancelled before this returns.

        Raises:
            EngineGone: when the engine can't be brought back; or whatever else the player raises.
        """
        ended: SimpleQueue[Episode | None] = SimpleQueue()

        async def play_all() -> None:
            async with asyncio.TaskGroup() as group:
                for match in matches:
                    group.create_task(_play(match, player, ended))

        playing = self.start(play_all())
        playing.future.add_done_callback(lambda _: ended.put(None))
        try:
            while (episode := ended.get()) is not None:
                yield episode
            playing.result()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            playing.end()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What `coroutine` returns or raises, run in the loop; cancelled when this is interrupted."""
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Run `coroutine` in the loop and return at once.

        Raises:
            RuntimeError: when this is closed.
        """
        return Running(self._thread, coroutine)

    def load(self, weights: Weights) -> None:
        """Give the engine new weights. See `Engine.load`."""
        self.run(self.engine.load(weights))

    def rest(self) -> None:
        """Have the engine free what only sampling needs. See `Engine.rest`."""
        self.run(self.engine.rest())

    def close(self) -> None:
        """Close the engine and end the thread, with all that still runs there. May be called twice."""
        if self._thread.alive:
            try:
                self.run(self.engine.close())
            finally:
                self._thread.stop()


async def _play(match: Match, player: Player, ended: SimpleQueue[Episode | None]) -> None:
    episodes = play_pool(match.world.pool, player, match.jobs, world=match.world.wrapped, horizon=match.horizon)
    async with aclosing(episodes):
        async for episode in episodes:
            ended.put(episode)
