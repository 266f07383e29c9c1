"""What is dealt, played by the model in training. Knows neither learners nor why it is played."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from agentgym_envs import Episode

from agentgym_trainer.config import Setup
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.rollout.environments import Deal
from agentgym_trainer.rollout.runner import Budget, EnginePlayer, Match, Rollouts
from agentgym_trainer.tokens.chat import Chat


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
