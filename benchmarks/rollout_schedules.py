"""Three ways to send the requests of the same episodes to the same engine, for `rollout.py`.

- `play_async`: the rollouts of `train`, one coroutine per trajectory.
- `replay`: the requests of `play_async` again, with the same seeds and therefore the same tokens, without environments,
  tokenizer or anything else around the engine. Requests of a trajectory still follow one another.
- `play_lock_step`: each turn waits for the longest reply and then for the slowest environment. The engine prefills
  every context completely: a random prefix makes its caches useless.
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
_PREFIX_TOKENS = 3

Request = tuple[tuple[int, ...], SamplingParams]
"""A context, and the parameters that its reply is sampled with."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Lognormal response time of an environment's steps and resets."""

    median: float
    """Seconds."""
    sigma: float
    """Standard deviation of the logarithm."""


class SlowEnv(gymnasium.Wrapper[str, str, str, str]):
    """An environment with a response time, like one that waits for a browser or a server."""

    def __init__(self, *, world: str, latency: tuple[float, float], **options: Any) -> None:
        super().__init__(make(world, **options))
        self._latency = Latency(*latency)
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Wait, and reset."""
        self._rng = np.random.default_rng([seed or 0, *str((options or {}).get("task")).encode()])
        self._wait()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Wait, and step."""
        self._wait()
        return self.env.step(action)

    def _wait(self) -> None:
        time.sleep(self._rng.lognormal(np.log(self._latency.median), self._latency.sigma))


gymnasium.register(SLOW, SlowEnv, disable_env_checker=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything of a rollout except the engine. It is a `RolloutEnvironment`."""

    pool: EnvPool
    """One slot per episode."""
    wrapped: ReplyWrapper
    chat: Chat
    episodes: tuple[EpisodeSpec, ...]
    horizon: int
    budget: TokenBudget
    weights: Weights
    """The engine's own; loading them again empties its caches."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measurements of one schedule."""

    seconds: float
    processor: float
    """CPU seconds of this process, over all threads."""
    episodes: int
    replies: int
    generated: int
    """Completion tokens."""
    prefilled: int
    """Prefilled tokens, sampled ones not included."""
    busy: float
    """Seconds in which the engine had requests."""


class Meter:
    """Measures the use of an engine from its creation on, beginning with empty caches."""

    def __init__(self, rollouts: RolloutRunner, setting: Setting) -> None:
        rollouts.load(setting.weights)
        rollouts.run(rollouts.engine.generate([0], SamplingParams(max_tokens=1)))
        self._engine = rollouts.engine
        self._before = replace(self._engine.usage)
        self._began = time.perf_counter(), time.process_time()

    def outcome(self, episodes: int, replies: int) -> Outcome:
        """Return the measurements so far."""
        now, before = self._engine.usage, self._before
        return Outcome(
            time.perf_counter() - self._began[0],
            time.process_time() - self._began[1],
            episodes,
            replies,
            generated=now.generated - before.generated,
            prefilled=now.prefilled - before.prefilled,
            busy=now.busy - before.busy,
        )


class Recorder:
    """An engine that records the requests of each coroutine in order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.version = engine.version
        self.max_context = engine.max_context
        self.requests = defaultdict[Any, list[Request]](list)

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Record the request, and pass it on."""
        self.requests[asyncio.current_task()].append((tuple(ids), sampling))
        return await self.engine.generate(ids, sampling)


def play_async(rollouts: RolloutRunner, setting: Setting) -> tuple[Outcome, int, list[list[Request]]]:
    """Play the episodes without lock-step; also return the minimal prefill and the requests of each trajectory."""
    recorder: Any = Recorder(rollouts.engine)
    policy = EnginePolicy(recorder, setting.chat, setting.budget, name="thinking-model")
    meter = Meter(rollouts, setting)
    episodes = list(rollouts.play([RolloutRequest(setting, setting.episodes, setting.horizon)], policy))
    outcome = meter.outcome(len(episodes), sum(len(episode.turns) for episode in episodes))
    if failed := [episode.error for episode in episodes if episode.failed]:
        raise RuntimeError(f"{len(failed)} episodes failed: {failed[0]}")
    samples = ([turn.reply.sample for turn in episode.turns if turn.reply.sample] for episode in episodes)
    return outcome, minimal_prefill(samples), list(recorder.requests.values())


def replay(rollouts: RolloutRunner, setting: Setting, trajectories: Sequence[Sequence[Request]]) -> Outcome:
    """Send recorded requests to the engine alone."""

    async def follow(requests: Sequence[Request]) -> int:
        return len([await rollouts.engine.generate(ids, sampling) for ids, sampling in requests])

    async def follow_all() -> list[int]:
        return await asyncio.gather(*map(follow, trajectories))

    meter = Meter(rollouts, setting)
    return meter.outcome(0, sum(rollouts.run(follow_all())))


def play_lock_step(rollouts: RolloutRunner, setting: Setting) -> Outcome:
    """Play the episodes turn by turn."""
    meter = Meter(rollouts, setting)
    return meter.outcome(len(setting.episodes), rollouts.run(_play_turns(rollouts.engine, setting)))


async def _play_turns(engine: Engine, setting: Setting) -> int:
    """Return the number of replies."""
    rng, chat, pool = np.random.default_rng(0), setting.chat, setting.pool
    starts = await asyncio.gather(*(pool.start(i, spec.task_id, seed=0) for i, spec in enumerate(setting.episodes)))
    instructions = setting.wrapped.instructions
    system: Conversation = (Message("system", instructions),) if instructions else ()
    live = {slot: (*system, Message("user", start.observation)) for slot, start in enumerate(starts)}
    contexts = {slot: chat.open(conversation) for slot, conversation in live.items()}
    replies = 0
    for _ in range(setting.horizon):
        completions = await asyncio.gather(*(_reply(engine, setting, contexts[slot], rng) for slot in live))
        replies += len(completions)
        ids = {slot: one.ids for slot, one in zip(live, completions, strict=True)}
        ended = [slot for slot, one in zip(live, completions, strict=True) if one.finish == "stop"]
        texts = {slot: chat.reply_text(ids[slot]) for slot in ended}
        steps = (pool.step(slot, setting.wrapped.parse(text)) for slot, text in texts.items())
        continuing = [result for result in await asyncio.gather(*steps) if not result.over]
        live = {
            r.slot: (*live[r.slot], Message("assistant", texts[r.slot]), Message("user", r.observation))
            for r in continuing
        }
        contexts = {slot: [*contexts[slot], *ids[slot], *(chat.extend(live[slot]) or ())] for slot in live}
    return replies


async def _reply(engine: Engine, setting: Setting, context: list[int], rng: np.random.Generator) -> Completion:
    prefix = rng.integers(len(setting.chat.tokenizer), size=_PREFIX_TOKENS).tolist()
    left = min(setting.budget.turn, setting.budget.context - len(context) - _PREFIX_TOKENS)
    return await engine.generate([*prefix, *context], SamplingParams(max_tokens=left, seed=int(rng.integers(2**62))))


def minimal_prefill(trajectories: Iterable[Iterable[Sample]]) -> int:
    """Return the tokens that an ideal prefix cache prefills: each common prefix once, and no sampled token."""
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
