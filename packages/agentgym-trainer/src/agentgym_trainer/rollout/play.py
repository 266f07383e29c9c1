"""What is dealt, played by the model in training. Knows neither learners nor why it is played."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from agentgym_envs import Episode

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.rollout.environments import GroupSpec
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat


def engine_policy(config: BaseConfig, engine: Engine, chat: Chat, *, temperature: float) -> EnginePolicy:
    """The model in training as a player, within the token budgets of the configuration."""
    generation = config.generation
    budget = TokenBudget(
        turn=generation.max_tokens, context=generation.max_context, episode=generation.max_completion_tokens
    )
    return EnginePolicy(engine, chat, budget, name=config.model, temperature=temperature)


def play_groups(
    dealt: Sequence[GroupSpec], rollouts: RolloutRunner, player: EnginePolicy, *, horizon: int
) -> list[list[Episode]]:
    """The episodes of each deal in the order of the samples, whichever ended first."""
    matches = [
        RolloutRequest(world, [job for deal in some for job in deal.episodes], horizon)
        for world, some in groupby(dealt, key=lambda deal: deal.world)
    ]
    played = {(deal.world.name, deal.episodes[0].task_id): list[Episode]() for deal in dealt}
    for episode in rollouts.play(matches, player):
        played[episode.env, episode.task_id].append(episode)
    return [sorted(episodes, key=lambda episode: episode.sample) for episodes in played.values()]


def seed_of(*parts: int) -> int:
    """A seed that is another for other parts, such as the run's seed, a step, and what it is for."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 2)
