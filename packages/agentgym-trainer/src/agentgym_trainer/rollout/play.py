"""Groups of episodes, played by the model in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
from agentgym_envs import Episode, ExpertStart

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.rollout.environments import GroupSpec
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat


def engine_policy(config: BaseConfig, engine: Engine, chat: Chat, *, temperature: float) -> EnginePolicy:
    """The model in training as a policy, with the token budget of the configuration."""
    generation = config.generation
    budget = TokenBudget(
        turn=generation.max_tokens, context=generation.max_context, episode=generation.max_completion_tokens
    )
    return EnginePolicy(engine, chat, budget, name=config.model, temperature=temperature)


def play_groups(
    specs: Sequence[GroupSpec],
    rollouts: RolloutRunner,
    policy: EnginePolicy,
    *,
    horizon: int,
    remaining: int | None = None,
    watch: Callable[[Iterator[Episode]], Iterator[Episode]] = iter,
) -> list[list[Episode]]:
    """Play groups.

    Args:
        specs: The groups.
        rollouts: Plays the episodes.
        policy: The policy.
        horizon: Maximum number of the policy's turns in an episode.
        remaining: Number of turns that the environment's expert has left where episodes begin; None: the policy plays
            whole tasks.
        watch: Sees each episode when it has ended, to show progress.

    Returns:
        The episodes of each group, in the order of their samples.
    """
    requests = [
        RolloutRequest(
            world,
            [episode for group in groups for episode in group.episodes],
            horizon,
            None if remaining is None else ExpertStart(remaining),
        )
        for world, groups in groupby(specs, key=lambda group: group.world)
    ]
    played = {(group.world.name, group.episodes[0].task_id): list[Episode]() for group in specs}
    for episode in watch(rollouts.play(requests, policy)):
        played[episode.env, episode.task_id].append(episode)
    return [sorted(episodes, key=lambda episode: episode.sample) for episodes in played.values()]


def seed_of(*parts: int) -> int:
    """A seed derived from several numbers, such as the run's seed, the step and the purpose."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 2)
