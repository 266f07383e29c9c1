"""Helpers for tests of rollouts: the coin environment in a pool, and scripted and recording engines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from agentgym_envs import EnvPool, Episode, EpisodeSpec, make
from agentgym_envs.agents.agent import Agent
from agentgym_trainer.engines.base import Completion, Engine, SamplingParams
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner
from agentgym_trainer.tokens.chat import Chat
from coin_world import ENV


@contextmanager
def open_environment(
    env: str = ENV,
    slots: int = 3,
    *,
    agent: str = "bare",
    instructions: str | None = "",
    backend: str = "inline",
    **options: Any,
) -> Generator[OpenEnvironment]:
    """Open an environment with a pool. With `instructions=None`, it has its own instructions."""
    with (
        closing(Agent.parse(agent).wrap(make(env, **options), instructions=instructions)) as wrapped,
        EnvPool(env, slots, backend, options=options) as pool,
    ):
        yield OpenEnvironment(env, 1.0, wrapped, pool)


def coin_specs(count: int, *, samples: int = 1, seed: int = 4) -> list[EpisodeSpec]:
    """Return the episode specs of the first `count` training tasks of the coin environment."""
    return [EpisodeSpec(f"coin/train/{i}", sample, seed) for i in range(count) for sample in range(samples)]


def play_episodes(
    engine: Engine, policy: EnginePolicy, environment: OpenEnvironment, specs: Sequence[EpisodeSpec], **options: Any
) -> list[Episode]:
    """Play episodes, and return them in the order of `specs`."""
    with RolloutRunner(engine) as rollouts:
        episodes = list(rollouts.play([RolloutRequest(environment, specs, **options)], policy))
    order = {(job.task_id, job.sample): i for i, job in enumerate(specs)}
    return sorted(episodes, key=lambda episode: order[episode.task_id, episode.sample])


def random_reply_engine(chat: Chat, texts: Sequence[str]) -> ScriptedEngine:
    """Return an engine that replies with random texts, half of them in tokens that the tokenizer wouldn't choose."""
    rng = np.random.default_rng(0)

    def script(_: tuple[int, ...]) -> list[int]:
        text = texts[rng.integers(len(texts))]
        if rng.random() < 0.5:
            return chat.reply_ids(text)
        return [token for letter in text for token in chat.reply_ids(letter)[:-1]] + [chat.end_id]

    return ScriptedEngine(script, end_id=chat.end_id)


class RecordingEngine:
    """An engine that records its calls and token budgets."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.version, self.usage, self.max_context = engine.version, engine.usage, engine.max_context
        self.calls: list[tuple[tuple[int, ...], Completion]] = []
        self.budgets: list[int] = []

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        completion = await self.engine.generate(ids, sampling)
        self.calls.append((tuple(ids), completion))
        self.budgets.append(sampling.max_tokens)
        return completion

    async def load(self, weights: Any) -> None:
        await self.engine.load(weights)
        self.version = self.engine.version

    async def sleep(self) -> bool:
        return await self.engine.sleep()

    async def close(self) -> None:
        await self.engine.close()


def contexts(episode: Episode) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the context and the completion tokens of each turn, as recorded in the episode's samples."""
    context: tuple[int, ...] = ()
    for turn in episode.turns:
        sample = turn.reply.sample
        assert sample is not None
        context = sample.prompt if sample.fresh else context + sample.prompt
        yield context, sample.ids
        context += sample.ids


def constant_script(chat: Chat, text: str) -> Callable[[tuple[int, ...]], list[int]]:
    """Return a script that always replies with `text`."""
    return lambda _: chat.reply_ids(text)
