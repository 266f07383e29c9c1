"""Plays with an engine: the player that turns conversations into token ids and sampled ids into replies, and the
thread in which all trajectories are played at once.

Knows engines and `chat`; knows neither learners nor algorithms.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from agentgym_envs import (
    EnvFault,
    EnvPool,
    Episode,
    EpisodeSpec,
    Player,
    Reply,
    ReplyWrapper,
    Sample,
    TurnContext,
    play_pool,
)
from agentgym_envs.core.loop_thread import LoopThread

from agentgym_trainer.engines.base import Engine, SamplingParams, Weights
from agentgym_trainer.tokens.chat import Chat, Context

T = TypeVar("T")
_GLANCE = 1.0  # seconds: Ctrl-C that comes in the moment before a thread falls asleep doesn't wake it


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The most tokens that a player may use. Where one is used up, generation stops and the episode is cut."""

    turn: int = 512
    """Of a reply."""
    context: int = 8704
    """Of a context, what the world says included."""
    episode: int = 0
    """Of all replies of an episode together; 0 sets no limit."""


class EnginePolicy(Player):
    """A language model as a player, for all agents: in whatever conversation it is asked, it says what comes next."""

    def __init__(self, engine: Engine, chat: Chat, budget: TokenBudget, *, name: str, temperature: float = 1.0) -> None:
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

    async def reply(self, seat: TurnContext) -> Reply:
        """Sample a reply. An empty one, cut before it began, when no token is left to it.

        Raises:
            EngineGone: when the engine can't be brought back.
            EnvFault: when what it sampled has log-probabilities that aren't finite: nothing can be learned from that,
                nor was it the policy that said it.
        """
        if seat.key not in self._contexts:
            self._contexts[seat.key] = Context(self.chat.with_tools(seat.tools))
        context = self._contexts[seat.key]
        prompt, fresh = context.prompt(seat.conversation)
        seed = int(seat.rng.integers(2**63))
        left = self._left(context)
        if left < 1:
            # What nobody will read is no load for the learner either.
            longer = max(0, len(context.ids) - self._longest)
            unread = tuple(prompt[: len(prompt) - longer])
            return Reply("", "length", Sample(unread, (), (), self.engine.version, fresh))
        said = await self.engine.generate(context.ids, SamplingParams(self.temperature, left, seed))
        if not all(map(math.isfinite, said.logprobs)):
            raise EnvFault("The engine's log-probabilities of a reply aren't finite.")
        context.append_reply(said.ids)
        sample = Sample(tuple(prompt), said.ids, said.logprobs, said.version, fresh, said.versions)
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
        return min(left, self.budget.episode - context.completion_tokens) if self.budget.episode else left


class RolloutEnvironment(Protocol):
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
class RolloutRequest:
    """What is to be played in one world."""

    world: RolloutEnvironment
    episodes: Iterable[EpisodeSpec]
    horizon: int | None = None
    """The most turns of an episode."""


class RolloutRunner:
    """An engine, and the thread with the one event loop in which it and all that is played with it live.

    For the main thread, which trains meanwhile or waits. `with Rollouts(engine) as rollouts: ...`
    """

    def __init__(self, engine: Engine, check: Callable[[], object] = lambda: None) -> None:
        """Start the thread; the engine is closed with it.

        Args:
            engine: Samples the replies.
            check: Called in the main thread every second while it waits for episodes or for the engine; what it raises
                ends that.
        """
        self.engine = engine
        self._check = check
        self._thread = LoopThread("Rollouts")

    def __enter__(self) -> RolloutRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def play(self, matches: Sequence[RolloutRequest], player: Player) -> Generator[Episode]:
        """Play all matches at once, each in all slots of its world, and yield the episodes as they end.

        What is left when the caller takes no more, or is interrupted, is cancelled before this returns.

        Raises:
            EngineGone: when the engine can't be brought back; or whatever else the player or the check raises.
        """
        ended: SimpleQueue[Episode | None] = SimpleQueue()

        async def play_all() -> None:
            async with asyncio.TaskGroup() as group:
                for match in matches:
                    group.create_task(_play(match, player, ended))

        with self._running(play_all()) as playing:
            playing.add_done_callback(lambda _: ended.put(None))
            while (episode := self._taken(ended)) is not None:
                yield episode
            try:
                playing.result()
            except ExceptionGroup as errors:
                first = errors.exceptions[0]
                raise first from first.__cause__

    def run(self, coroutine: Coroutine[Any, Any, T], *, checked: bool = False) -> T:
        """What `coroutine` returns or raises, run in the loop. When this is interrupted it is cancelled first.

        Args:
            coroutine: What to run.
            checked: Whether the check may end it, once it takes longer than a second.

        Raises:
            RuntimeError: when this is closed.
        """
        with self._running(coroutine) as running:
            while checked and not wait([running], _GLANCE).done:
                self._check()
            return _over(running).result()

    def load(self, weights: Weights) -> None:
        """Give the engine new weights. See `Engine.load`."""
        self.run(self.engine.load(weights), checked=True)

    def sleep(self) -> None:
        """Have the engine free what only sampling needs. See `Engine.rest`."""
        self.run(self.engine.sleep())

    def close(self) -> None:
        """Close the engine and end the thread, with all that still runs there. May be called twice."""
        if self._thread.alive:
            try:
                self.run(self.engine.close())
            finally:
                self._thread.stop()

    def _taken(self, ended: SimpleQueue[Episode | None]) -> Episode | None:
        while True:
            self._check()
            with suppress(Empty):
                return ended.get(timeout=_GLANCE)

    @contextmanager
    def _running(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Future[T]]:
        """The coroutine at work in the loop, and what is to come of it. When this is left it is over, come what may."""
        if not self._thread.alive:
            coroutine.close()
            raise RuntimeError("These rollouts are closed, or this process was forked since; make new ones.")
        outcome: Future[T] = Future()
        task: asyncio.Task[T] | None = None

        def begin() -> None:
            nonlocal task
            task = asyncio.get_running_loop().create_task(coroutine)
            task.add_done_callback(partial(_settle, outcome))

        def cancel() -> None:
            if task is not None:
                task.cancel()
            else:  # interrupted before it began
                coroutine.close()
                outcome.cancel()
                outcome.set_running_or_notify_cancel()

        try:
            self._thread.call_soon(begin)
            yield outcome
        finally:
            if not outcome.done():
                self._thread.call_soon(cancel)
                _over(outcome)


def _over(outcome: Future[T]) -> Future[T]:
    while not wait([outcome], _GLANCE).done:
        pass
    return outcome


def _settle(outcome: Future[T], task: asyncio.Task[T]) -> None:
    """Tell another thread what has come of a task. A future that could be cancelled from there would say that it is
    over while the task is still at it.
    """
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


async def _play(match: RolloutRequest, player: Player, ended: SimpleQueue[Episode | None]) -> None:
    episodes = play_pool(match.world.pool, player, match.episodes, world=match.world.wrapped, horizon=match.horizon)
    async with aclosing(episodes):
        async for episode in episodes:
            ended.put(episode)
