"""Groups of episodes, played by the model in training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import cast

import numpy as np
from agentgym_envs import Episode, ExpertStart, Policy
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig, RLConfig
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.gateway.harness import Harness, check_command, run_command, run_function
from agentgym_trainer.gateway.recording import EpisodeLimits
from agentgym_trainer.plugins import find_named
from agentgym_trainer.rollout.environments import GroupSpec
from agentgym_trainer.rollout.harness_player import HarnessPlayer, RunHarness
from agentgym_trainer.rollout.runner import EnginePolicy, EpisodePlayer, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat

HARNESSES = "agentgym.harnesses"
"""Entry points of harnesses."""


def engine_policy(config: BaseConfig, engine: Engine, chat: Chat, *, temperature: float) -> EnginePolicy:
    """The model in training as a policy, with the token budget of the configuration."""
    generation = config.generation
    budget = TokenBudget(
        turn=generation.max_tokens, context=generation.max_context, episode=generation.max_completion_tokens
    )
    return EnginePolicy(engine, chat, budget, name=config.model, temperature=temperature)


def find_harness(config: BaseConfig) -> RunHarness | None:
    """Return what runs the harness of the configuration; None if the episodes are played in the environments.

    Raises:
        UsageError: if there is no such harness.
    """
    return named_harness(config.harness, config.harness_command) if isinstance(config, RLConfig) else None


def named_harness(name: str, command: str) -> RunHarness | None:
    """Return what runs the harness MODULE:NAME, or an installed one of that name, or else a command; None without both.

    Raises:
        UsageError: if there is no such harness, or the command isn't one of a shell.
    """
    if command:
        check_command(command)
        return partial(run_command, command)
    if not name:
        return None
    harness = find_named(name, "harness", (), HARNESSES)
    if not callable(harness):
        raise UsageError(f"{name} is no harness: it must be a function of a task, a base URL and a key.")
    return partial(run_function, cast("Harness", harness))


def player(
    config: BaseConfig, rollouts: RolloutRunner, chat: Chat, *, temperature: float
) -> EnginePolicy | EpisodePlayer:
    """What plays the episodes of a run: the model in training as a policy, or the run's harness with this model.

    Raises:
        UsageError: if there is no such harness.
    """
    run = find_harness(config)
    if run is None or not isinstance(config, RLConfig):
        return engine_policy(config, rollouts.engine, chat, temperature=temperature)
    generation = config.generation
    limits = EpisodeLimits(temperature, generation.max_tokens, generation.max_context, generation.max_completion_tokens)
    slots = asyncio.Semaphore(config.harness_concurrency)
    gateway = rollouts.gateway(chat, config.model)
    return HarnessPlayer(run, gateway, limits, timeout=config.harness_timeout, slots=slots)


def play_groups(
    specs: Sequence[GroupSpec],
    rollouts: RolloutRunner,
    policy: Policy | EpisodePlayer,
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
