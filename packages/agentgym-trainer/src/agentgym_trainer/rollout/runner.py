"""Rollouts with an engine: the policy that turns conversations into token ids and sampled ids into replies, and the
thread in which all episodes are played concurrently.
"""

from __future__ import annotations

import asyncio
import math
import time
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
    ExpertStart,
    Policy,
    PoolSlot,
    Reply,
    ReplyWrapper,
    Sample,
    TurnContext,
    play_episode,
    play_pool,
)
from agentgym_envs.core.loop_thread import LoopThread

from agentgym_trainer.engines.base import Engine, SamplingParams, Weights
from agentgym_trainer.gateway.sampling import EngineReplier
from agentgym_trainer.gateway.server import Gateway
from agentgym_trainer.models.machine_copy import MachineCopy
from agentgym_trainer.rollout.weight_stream import WeightStream
from agentgym_trainer.tokens.chat import Chat, Context

T = TypeVar("T")
_GLANCE = 1.0  # seconds between looks: a signal just before a thread starts to wait doesn't wake it
_CANCEL = 10.0
"""Seconds that a cancelled coroutine has to end. A step of an environment that runs inline can't be cancelled."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Token limits of a policy. Where one is reached, generation stops and the episode ends with `length`."""

    turn: int = 512
    """Maximum number of tokens of a reply."""
    context: int = 8704
    """Maximum number of tokens of a context, prompt tokens included."""
    episode: int = 0
    """Maximum number of completion tokens of an episode; 0 sets no limit."""


class EnginePolicy(Policy):
    """A language model behind an engine as a policy, for all agents."""

    def __init__(self, engine: Engine, chat: Chat, budget: TokenBudget, *, name: str, temperature: float = 1.0) -> None:
        """Set up the policy.

        Args:
            engine: Samples the replies. It stays open when the policy is closed.
            chat: The model's tokenizer and chat template.
            budget: Token limits; the engine's own context limit applies, too.
            name: The policy's name in reports.
            temperature: Sampling temperature; 0 samples greedily.
        """
        self.name = name
        self.engine = engine
        self.chat = chat
        self.budget = budget
        self.temperature = temperature
        self._contexts: dict[int, Context] = {}

    async def reply(self, context: TurnContext) -> Reply:
        """Sample a reply; an empty one, cut off, where no token is left in the budget.

        Raises:
            EngineGone: if the engine can't be brought back.
            EnvFault: if the sampled tokens have log-probabilities that aren't finite, so that they can't be trained on.
        """
        tokens = self._tokens(context)
        prompt, fresh = tokens.prompt(context.conversation)
        seed = int(context.rng.integers(2**63))
        left = self._left(tokens)
        if left < 1:
            # Prompt tokens beyond the limit are never read by the model, so the learner doesn't read them either.
            excess = max(0, len(tokens.ids) - self._longest)
            unread = tuple(prompt[: len(prompt) - excess])
            return Reply("", "length", Sample(unread, (), (), self.engine.version, fresh))
        completion = await self.engine.generate(tokens.ids, SamplingParams(self.temperature, left, seed))
        if not all(map(math.isfinite, completion.logprobs)):
            raise EnvFault("The engine's log-probabilities of a reply aren't finite.")
        tokens.append_reply(completion.ids)
        sample = Sample(
            tuple(prompt), completion.ids, completion.logprobs, completion.version, fresh, completion.versions
        )
        return Reply(self.chat.reply_text(completion.ids), completion.finish, sample)

    def count_tokens(self, context: TurnContext) -> int:
        """Return the number of tokens of a context, with the chat template's."""
        return self._tokens(context).length(context.conversation)

    def _tokens(self, context: TurnContext) -> Context:
        if context.key not in self._contexts:
            self._contexts[context.key] = Context(self.chat.with_tools(context.tools))
        return self._contexts[context.key]

    def forget(self, key: int) -> None:
        """Free the tokens of this attempt."""
        self._contexts.pop(key, None)

    @property
    def _longest(self) -> int:
        return min(self.budget.context, self.engine.max_context)

    def _left(self, tokens: Context) -> int:
        """Maximum number of tokens of the next reply."""
        left = min(self.budget.turn, self._longest - len(tokens.ids))
        return min(left, self.budget.episode - tokens.completion_tokens) if self.budget.episode else left


class RolloutEnvironment(Protocol):
    """An environment as rollouts need it."""

    @property
    def wrapped(self) -> ReplyWrapper:
        """A local instance, which has the tasks and instructions and parses replies."""
        ...

    @property
    def pool(self) -> EnvPool:
        """The pool of environments that are played."""
        ...


class EpisodePlayer(Protocol):
    """Plays whole episodes by itself, such as a harness."""

    async def play(self, world: RolloutEnvironment, spec: EpisodeSpec, horizon: int | None) -> Episode:
        """Play an episode; at most `horizon` of its replies are sampled.

        Raises:
            Exception: any exception ends everything that is being played.
        """
        ...


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Episodes to be played in one environment."""

    world: RolloutEnvironment
    episodes: Iterable[EpisodeSpec]
    horizon: int | None = None
    """Maximum number of the policy's actions in an episode."""
    expert_start: ExpertStart | None = None
    """Lets the environment's expert play the first turns of each episode."""


class RolloutRunner:
    """Runs an engine and all episodes sampled from it in the event loop of one background thread.

    Used from the main thread, which may train in the meantime: `with RolloutRunner(engine) as rollouts: ...`

    What is interrupted has 10 seconds to end. If an environment or the engine blocks the thread for longer, the thread
    is abandoned: the runner counts as closed, with its engine still open, and the process should end by `os._exit`.
    """

    def __init__(self, engine: Engine, check: Callable[[], object] = lambda: None) -> None:
        """Start the thread; the engine is closed with it.

        Args:
            engine: Samples the replies.
            check: Called in the main thread every second while it waits for episodes or for the engine. An exception
                that it raises ends the wait.
        """
        self.engine = engine
        self.check = check
        self._thread = LoopThread("Rollouts")
        self._gateway: Gateway | None = None
        self._machine_copy = MachineCopy()

    def __enter__(self) -> RolloutRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def gateway(self, chat: Chat, model: str) -> Gateway:
        """Return the gateway to the engine, which is started on the first call and closed with this runner."""
        if self._gateway is None:
            gateway = Gateway(EngineReplier(self.engine, chat), model=model)
            self.run(gateway.start())
            self._gateway = gateway
        return self._gateway

    def play(self, requests: Sequence[RolloutRequest], policy: Policy | EpisodePlayer) -> Generator[Episode]:
        """Play all requests concurrently, each in all slots of its environment, and yield episodes as they end.

        If the caller closes the generator or is interrupted, the remaining episodes are cancelled before this returns,
        or the thread is abandoned.

        Raises:
            EngineGone: if the engine can't be brought back.
            Exception: whatever else the policy or the check raises.
        """
        ended: SimpleQueue[Episode | None] = SimpleQueue()

        async def play_all() -> None:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(_play(request, policy, ended))

        with self._running(play_all()) as playing:
            playing.add_done_callback(lambda _: ended.put(None))
            while (episode := self._taken(ended)) is not None:
                yield episode
            try:
                playing.result()
            except ExceptionGroup as errors:
                first: Exception = errors
                while isinstance(first, ExceptionGroup):
                    first = first.exceptions[0]
                raise first from first.__cause__

    def run(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        checked: bool = False,
        meanwhile: Callable[[Future[T]], object] = lambda _: None,
    ) -> T:
        """Run a coroutine in the loop and return its result. An interruption cancels it first, or abandons the thread.

        Args:
            coroutine: The coroutine.
            checked: Whether the check is called while it runs, every second.
            meanwhile: Called in this thread once it runs, with its outcome to be.

        Raises:
            RuntimeError: if this runner is closed.
        """
        with self._running(coroutine) as running:
            meanwhile(running)
            while checked and not wait([running], _GLANCE).done:
                self.check()
            while not wait([running], _GLANCE).done:
                pass
            return running.result()

    def end(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine that ends others; if it doesn't within 10 seconds, abandon the thread. Nothing is left to do
        if this runner is closed.
        """
        if not self._thread.alive:
            coroutine.close()
            return
        with self._running(coroutine) as ending:
            if _over(ending):
                ending.result()
            else:
                self._thread.abandon()

    @property
    def closed(self) -> bool:
        """Whether nothing can run any more, since this was closed or its thread was abandoned."""
        return not self._thread.alive

    def load(self, weights: Weights) -> None:
        """Load new weights into the engine. See `Engine.load`.

        Sharded weights are gathered in this thread, by all processes: all must call this, and each gathers all tensors,
        also if its engine fails or loads nothing. Engines that need them later share a copy on each machine.
        """
        if not weights.collective:
            self.run(self.engine.load(weights), checked=True)
            return
        stream = WeightStream(weights, self._machine_copy)
        with stream.gathering():
            loading = self.engine.load(stream.weights)
            self.run(loading, checked=True, meanwhile=lambda outcome: stream.feed(outcome.done, self.check))

    def sleep(self) -> bool:
        """Free the engine's memory that only sampling needs. See `Engine.sleep`."""
        return self.run(self.engine.sleep())

    def close(self) -> None:
        """Close the engine and end the thread, cancelling whatever still runs. May be called twice."""
        if self._thread.alive:
            try:
                if self._gateway is not None:
                    self.run(self._gateway.close())
                self.run(self.engine.close())
            finally:
                self._thread.stop()

    def _taken(self, ended: SimpleQueue[Episode | None]) -> Episode | None:
        while True:
            self.check()
            with suppress(Empty):
                return ended.get(timeout=_GLANCE)

    @contextmanager
    def _running(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Future[T]]:
        """Run the coroutine in the loop while the context is open; on exit it has ended or was cancelled."""
        if not self._thread.alive:
            coroutine.close()
            raise RuntimeError("This rollout runner is closed, or this process was forked since; make a new one.")
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
            if not outcome.done() and self._thread.alive:
                self._thread.call_soon(cancel)
                if not _over(outcome):
                    self._thread.abandon()


def _over(outcome: Future[Any]) -> bool:
    """Wait until it is over, for at most 10 seconds, and return whether it is."""
    until = time.monotonic() + _CANCEL
    while (left := until - time.monotonic()) > 0 and not outcome.done():
        wait([outcome], min(_GLANCE, left))
    return outcome.done()


def _settle(outcome: Future[T], task: asyncio.Task[T]) -> None:
    """Copy a task's outcome to a future for another thread. If the other thread could cancel the future, it would look
    done while the task is still running.
    """
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


async def play_in_slot(
    policy: Policy | EpisodePlayer,
    world: RolloutEnvironment,
    slot: int,
    spec: EpisodeSpec,
    horizon: int | None,
    expert_start: ExpertStart | None = None,
) -> Episode:
    """Play an episode in a slot of an environment, or with a player that needs none."""
    if isinstance(policy, Policy):
        place = PoolSlot(world.pool, slot, world.wrapped)
        return await play_episode(place, policy, spec, horizon=horizon, expert_start=expert_start)
    return await policy.play(world, spec, horizon)


async def _play(request: RolloutRequest, policy: Policy | EpisodePlayer, ended: SimpleQueue[Episode | None]) -> None:
    env = request.world
    if not isinstance(policy, Policy):
        player = policy

        async def play_one(spec: EpisodeSpec) -> None:
            ended.put(await player.play(env, spec, request.horizon))

        async with asyncio.TaskGroup() as group:
            for spec in request.episodes:
                group.create_task(play_one(spec))
        return
    episodes = play_pool(
        env.pool,
        policy,
        request.episodes,
        env=env.wrapped,
        horizon=request.horizon,
        expert_start=request.expert_start,
    )
    async with aclosing(episodes):
        async for episode in episodes:
            ended.put(episode)
