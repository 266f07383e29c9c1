"""What the tests of rollouts share: coins in a pool, and what an engine was asked and said."""

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
def open_world(
    env: str = ENV,
    slots: int = 3,
    *,
    agent: str = "bare",
    instructions: str | None = "",
    backend: str = "inline",
    **options: Any,
) -> Generator[OpenEnvironment]:
    """A world in a pool, with instructions of its own where they are None."""
    with (
        closing(Agent.parse(agent).wrap(make(env, **options), instructions=instructions)) as wrapped,
        EnvPool(env, slots, backend, options=options) as pool,
    ):
        yield OpenEnvironment(env, 1.0, wrapped, pool)


def coins(count: int, *, samples: int = 1, seed: int = 4) -> list[EpisodeSpec]:
    """Jobs of the coin world."""
    return [EpisodeSpec(f"coin/train/{i}", sample, seed) for i in range(count) for sample in range(samples)]


def played(
    engine: Engine, player: EnginePolicy, world: OpenEnvironment, jobs: Sequence[EpisodeSpec], **how: Any
) -> list[Episode]:
    """The episodes of these jobs, in their order."""
    with RolloutRunner(engine) as rollouts:
        episodes = list(rollouts.play([RolloutRequest(world, jobs, **how)], player))
    order = {(job.task_id, job.sample): i for i, job in enumerate(jobs)}
    return sorted(episodes, key=lambda episode: order[episode.task_id, episode.sample])


def chatter(chat: Chat, texts: Sequence[str]) -> ScriptedEngine:
    """Says one of the texts, as often as not in ids that no tokenizer would choose."""
    rng = np.random.default_rng(0)

    def script(_: tuple[int, ...]) -> list[int]:
        text = texts[rng.integers(len(texts))]
        if rng.random() < 0.5:
            return chat.reply_ids(text)
        return [i for letter in text for i in chat.reply_ids(letter)[:-1]] + [chat.end_id]

    return ScriptedEngine(script, end_id=chat.end_id)


class Recording:
    """An engine, and what it was asked and said."""

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

    async def sleep(self) -> None:
        await self.engine.sleep()

    async def close(self) -> None:
        await self.engine.close()


def contexts(episode: Episode) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The context and the reply of each turn, as the episode's samples have them."""
    context: tuple[int, ...] = ()
    for turn in episode.turns:
        sample = turn.reply.sample
        assert sample is not None
        context = sample.prompt if sample.fresh else context + sample.prompt
        yield context, sample.ids
        context += sample.ids


def always(chat: Chat, text: str) -> Callable[[tuple[int, ...]], list[int]]:
    """A script of one line."""
    return lambda _: chat.reply_ids(text)
