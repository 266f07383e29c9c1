"""What is dealt, played by the model in training or by a saved one. Knows neither learners nor why it is played."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from agentgym_envs import Episode

from agentgym_trainer.beginning import has_own_weights, open_accelerator, open_engine
from agentgym_trainer.chat import Chat
from agentgym_trainer.config import Setup
from agentgym_trainer.engines import Engine
from agentgym_trainer.models import load_model
from agentgym_trainer.ranks import Ranks
from agentgym_trainer.rollout import Budget, EnginePlayer, Match, Rollouts
from agentgym_trainer.weights import weights_of
from agentgym_trainer.worlds import Deal


@contextmanager
def saved_model(
    config: Setup, model: str, folder: Path, say: Callable[[str], None], *, version: int = 0
) -> Generator[tuple[Rollouts, Chat]]:
    """A whole model by name or path, ready to play. All processes of the run call this.

    Args:
        config: Of the run.
        model: Who plays.
        folder: For an engine's log.
        say: Told what takes a while.
        version: Number of updates that it has seen, which its samples carry.

    Raises:
        UsageError: when the engine can't be had.
        EngineError: when it can't be brought back.
    """
    accelerator = open_accelerator(config)
    policy, chat = load_model(model, dtype=torch.float32, device=accelerator.device)
    apart = has_own_weights(config, accelerator)
    engine = open_engine(config, model, policy, chat, accelerator, folder, say, apart=apart)
    with Rollouts(engine) as rollouts:
        with Ranks().together():
            rollouts.load(weights_of(policy.eval(), version))
        yield rollouts, chat
    clear_device_cache(garbage_collection=True)


def engine_player(config: Setup, engine: Engine, chat: Chat, *, temperature: float) -> EnginePlayer:
    """The model in training as a player, within the token budgets of the configuration."""
    generation = config.generation
    budget = Budget(turn=generation.max_tokens, context=generation.max_context, episode=generation.max_said)
    return EnginePlayer(engine, chat, budget, name=config.model, temperature=temperature)


def play_deals(dealt: Sequence[Deal], rollouts: Rollouts, player: EnginePlayer, *, horizon: int) -> list[list[Episode]]:
    """The episodes of each deal in the order of the samples, whichever ended first."""
    matches = [
        Match(world, [job for deal in some for job in deal.jobs], horizon)
        for world, some in groupby(dealt, key=lambda deal: deal.world)
    ]
    played = {(deal.world.name, deal.jobs[0].task_id): list[Episode]() for deal in dealt}
    for episode in rollouts.play(matches, player):
        played[episode.env, episode.task_id].append(episode)
    return [sorted(episodes, key=lambda episode: episode.sample) for episodes in played.values()]


def seed_of(*parts: int) -> int:
    """A seed that is another for other parts, such as the run's seed, a step, and what it is for."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 2)
