"""Ways to get the same episodes out of the same engine, for `rollout.py`: our rollouts, the engine alone, lock-step.

- `play`: what `train` does, one coroutine per trajectory.
- `raw`: the requests of a `play` once more, with the same seeds and so the same tokens, but without worlds, tokenizer,
  or anything else around the engine. The contexts are known beforehand; each request follows on the one before it in
  its trajectory, as there.
- `lock_step`: in each turn all wait for the longest reply and then for the slowest world, and the engine reads every
  context as a whole. So that none of its caches helps, each context begins with tokens of its own, drawn by lot.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from agentgym_envs import Conversation, EnvPool, EpisodeSpec, Message, ReplyWrapper, Sample, make
from agentgym_trainer.engines.base import Completion, Engine, SamplingParams
from agentgym_trainer.models.weights import Weights
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat

SLOW = "benchmark/Slow-v0"
_NONCE = 3  # tokens

Request = tuple[tuple[int, ...], SamplingParams]
Chain = list[Request]
"""Requests that follow on each other: a context, and how its reply is sampled."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Of a world's steps and resets, lognormal."""

    median: float
    """Seconds."""
    sigma: float
    """Standard deviation of the logarithm."""


class Slow(gymnasium.Wrapper[str, str, str, str]):
    """A world that takes its time, as one does that waits for a browser or a server."""

    def __init__(self, *, world: str, latency: tuple[float, float], **options: Any) -> None:
        super().__init__(make(world, **options))
        self._latency = Latency(*latency)
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset, in a while."""
        self._rng = np.random.default_rng([seed or 0, *str((options or {}).get("task")).encode()])
        self._wait()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Step, in a while."""
        self._wait()
        return self.env.step(action)

    def _wait(self) -> None:
        time.sleep(self._rng.lognormal(np.log(self._latency.median), self._latency.sigma))


gymnasium.register(SLOW, Slow, disable_env_checker=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rollout needs but for the engine; as many slots as jobs."""

    pool: EnvPool
    wrapped: ReplyWrapper
    chat: Chat
    jobs: tuple[EpisodeSpec, ...]
    horizon: int
    budget: TokenBudget
    weights: Weights
    """The engine's own; loading them again makes it forget what it has read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a way came to."""

    seconds: float
    processor: float
    """Seconds that this process computed, in all of its threads."""
    episodes: int
    replies: int
    generated: int
    """Tokens sampled."""
    prefilled: int
    """Tokens read, sampled ones not among them."""
    busy: float
    """Seconds in which the engine was at work."""


class Clock:
    """Measures what an engine does from now on. Before, it forgets what it has read."""

    def __init__(self, rollouts: RolloutRunner, stage: Stage) -> None:
        rollouts.load(stage.weights)
        rollouts.run(rollouts.engine.generate([0], SamplingParams(max_tokens=1)))
        self._engine = rollouts.engine
        self._before = replace(self._engine.usage)
        self._began = time.perf_counter(), time.process_time()

    def outcome(self, episodes: int, replies: int) -> Outcome:
        """What came of it."""
        now, then = self._engine.usage, self._before
        return Outcome(
            time.perf_counter() - self._began[0],
            time.process_time() - self._began[1],
            episodes,
            replies,
            generated=now.generated - then.generated,
            prefilled=now.prefilled - then.prefilled,
            busy=now.busy - then.busy,
        )


class Recorder:
    """An engine whose requests are noted, those of each coroutine in order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.version = engine.version
        self.max_context = engine.max_context
        self.chains = defaultdict[Any, Chain](list)

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """What the engine says."""
        self.chains[asyncio.current_task()].append((tuple(ids), sampling))
        return await self.engine.generate(ids, sampling)


def play(rollouts: RolloutRunner, stage: Stage) -> tuple[Outcome, int, list[Chain]]:
    """Our rollouts; the tokens that had to be read for them at least; and their requests."""
    recorder: Any = Recorder(rollouts.engine)
    player = EnginePolicy(recorder, stage.chat, stage.budget, name="talker")
    clock = Clock(rollouts, stage)
    episodes = list(rollouts.play([RolloutRequest(stage, stage.jobs, stage.horizon)], player))
    outcome = clock.outcome(len(episodes), sum(len(episode.turns) for episode in episodes))
    if failed := [episode.error for episode in episodes if episode.failed]:
        raise RuntimeError(f"{len(failed)} episodes failed: {failed[0]}")
    samples = ([turn.reply.sample for turn in episode.turns if turn.reply.sample] for episode in episodes)
    return outcome, least_prefill(samples), list(recorder.chains.values())


def raw(rollouts: RolloutRunner, stage: Stage, chains: Sequence[Chain]) -> Outcome:
    """The engine alone."""

    async def follow(chain: Chain) -> int:
        return len([await rollouts.engine.generate(ids, sampling) for ids, sampling in chain])

    async def follow_all() -> list[int]:
        return await asyncio.gather(*map(follow, chains))

    clock = Clock(rollouts, stage)
    return clock.outcome(0, sum(rollouts.run(follow_all())))


def lock_step(rollouts: RolloutRunner, stage: Stage) -> Outcome:
    """A turn of all, and then the next turn of all."""
    clock = Clock(rollouts, stage)
    return clock.outcome(len(stage.jobs), rollouts.run(_turn_by_turn(rollouts.engine, stage)))


async def _turn_by_turn(engine: Engine, stage: Stage) -> int:
    """How many replies there were."""
    rng, chat = np.random.default_rng(0), stage.chat
    starts = await asyncio.gather(*(stage.pool.start(i, job.task_id, seed=0) for i, job in enumerate(stage.jobs)))
    told = stage.wrapped.instructions
    before: Conversation = (Message("system", told),) if told else ()
    live = {slot: (*before, Message("user", start.observation)) for slot, start in enumerate(starts)}
    contexts = {slot: chat.open(conversation) for slot, conversation in live.items()}
    replies = 0
    for _ in range(stage.horizon):
        said = await asyncio.gather(*(_reply(engine, stage, contexts[slot], rng) for slot in live))
        replies += len(said)
        texts = {slot: chat.reply_text(one.ids) for slot, one in zip(live, said, strict=True) if one.finish == "stop"}
        ids = dict(zip(live, (one.ids for one in said), strict=True))
        actions = {slot: stage.wrapped.parse(text) for slot, text in texts.items()}
        results = await asyncio.gather(*(stage.pool.step(slot, action) for slot, action in actions.items()))
        going = [result for result in results if not result.over]
        live = {r.slot: (*live[r.slot], _said(texts[r.slot]), Message("user", r.observation)) for r in going}
        contexts = {slot: [*contexts[slot], *ids[slot], *(chat.extend(live[slot]) or ())] for slot in live}
    return replies


async def _reply(engine: Engine, stage: Stage, context: list[int], rng: np.random.Generator) -> Completion:
    nonce = rng.integers(len(stage.chat.tokenizer), size=_NONCE).tolist()
    left = min(stage.budget.turn, stage.budget.context - len(context) - _NONCE)
    return await engine.generate([*nonce, *context], SamplingParams(max_tokens=left, seed=int(rng.integers(2**62))))


def _said(text: str) -> Message:
    return Message("assistant", text)


def least_prefill(trajectories: Iterable[Iterable[Sample]]) -> int:
    """Tokens that must be read at least to sample these trajectories, with every beginning that several have in common
    read once, and what was sampled never.
    """
    nodes: dict[tuple[int, int], int] = {}
    sampled = set[int]()
    for trajectory in trajectories:
        at = 0
        for sample in trajectory:
            at = 0 if sample.fresh else at
            for token in sample.prompt:
                at = nodes.setdefault((at, token), len(nodes) + 1)
            for token in sample.ids:
                at = nodes.setdefault((at, token), len(nodes) + 1)
                sampled.add(at)
    return len(nodes) - len(sampled)
