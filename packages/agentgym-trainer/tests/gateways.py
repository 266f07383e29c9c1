"""A gateway on a thread of its own, for tests with the clients of other packages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import cycle

import numpy as np
from agentgym_envs import Episode
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.gateway.recording import EpisodeLimits, EpisodeRecord
from agentgym_trainer.gateway.sampling import EngineReplier
from agentgym_trainer.gateway.server import Gateway, OpenedEpisode
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import Segment, trajectory
from dev_packages import require_packages
from patience import PATIENCE

require_packages("openai")
from openai import OpenAI

UNLIMITED = EpisodeLimits(turn=1 << 16, context=1 << 16)


@contextmanager
def open_gateway(engine: Engine, chat: Chat) -> Generator[Gateway]:
    """Serve the engine while the context is open."""
    thread, gateway = LoopThread("The gateway"), Gateway(EngineReplier(engine, chat), model="tiny")
    try:
        thread.run(gateway.start(), PATIENCE)
        yield gateway
    finally:
        thread.run(gateway.close(), PATIENCE)
        thread.stop()


def begin(gateway: Gateway, limits: EpisodeLimits = UNLIMITED, seed: int = 0) -> OpenedEpisode:
    """Open an episode."""
    return gateway.open_episode(limits, np.random.default_rng(seed))


@contextmanager
def openai_client(opened: OpenedEpisode) -> Generator[OpenAI]:
    """The unmodified client, without repetitions of failed requests."""
    with OpenAI(base_url=opened.base_url, api_key=opened.api_key, max_retries=0) as client:
        yield client


def replying(chat: Chat, *texts: str) -> ScriptedEngine:
    """Return an engine that gives these replies in turn, again and again."""
    replies = cycle(texts)
    return ScriptedEngine(lambda _: chat.reply_ids(next(replies)), end_id=chat.end_id)


def scripted(chat: Chat, script: Callable[[tuple[int, ...]], Sequence[int]]) -> ScriptedEngine:
    """Return an engine with this script."""
    return ScriptedEngine(script, end_id=chat.end_id)


def segments(record: EpisodeRecord, reward: float = 1.0) -> tuple[Segment, ...]:
    """Return the segments that would be trained on."""
    episode = Episode(
        env="e",
        task_id="t",
        split="train",
        category="",
        difficulty=0,
        policy="p",
        sample=0,
        instructions="",
        turns=record.turns(reward),
        final_observation="",
        stop="terminated",
        score=reward,
        success=True,
    )
    return trajectory(Episode.from_json(episode.to_json())).segments
