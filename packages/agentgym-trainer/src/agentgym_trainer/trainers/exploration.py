"""The exploration step of AgentEvol: the last model plays training tasks of all environments.

Every episode is written to disk as soon as it ends, and an interrupted exploration resumes with the missing ones.
Selecting the episodes to train on is not part of this module.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from agentgym_envs import Episode, EpisodeSpec, read_episodes
from agentgym_envs.util.files import write_whole
from agentgym_eval.storage.store import Store

from agentgym_trainer.config import AgentEvolConfig
from agentgym_trainer.curriculum.task_sampler import apportion, evenly
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import OpenEnvironment, episode_specs
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.play import engine_policy, seed_of
from agentgym_trainer.rollout.runner import RolloutRequest
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.setup import saved_model

_EXPLORATION = 3  # distinguishes the seeds of exploration from those of other uses
_EpisodeKey = tuple[str, str | None, int]
"""Environment, task and sample, which identify an episode."""


@dataclass(frozen=True)
class Explorer:
    """Plays episodes with a model. Every process of the run plays its share."""

    config: AgentEvolConfig
    worlds: Sequence[OpenEnvironment]
    known: Collection[tuple[str, str]]
    """Environments and ids of the tasks of the base data."""
    tracker: RunConsole
    stopping: Stopping
    """Called after every episode; True ends the exploration early."""

    def draw_episodes(self, number: int) -> list[tuple[OpenEnvironment, list[EpisodeSpec]]]:
        """Return the episodes to play in each environment in this iteration."""
        settings, specs = self.config.exploration, list[tuple[OpenEnvironment, list[EpisodeSpec]]]()
        rng = np.random.default_rng([self.config.seed, number, _EXPLORATION])
        shares = apportion(settings.tasks, [world.weight for world in self.worlds], rng)
        for world, share in zip(self.worlds, shares, strict=True):
            tasks = [task for task in world.tasks.train if settings.known or (world.name, task.id) not in self.known]
            tasks = tasks or list(world.tasks.train)
            chosen = evenly([task.id for task in tasks], share, rng) if settings.tasks else range(len(tasks))
            seed = seed_of(self.config.seed, number, _EXPLORATION)
            specs.append((world, episode_specs([tasks[i] for i in chosen], samples=settings.samples, seed=seed)))
        return specs

    def explore(self, model: Path, number: int, folder: Path) -> bool:
        """Play the episodes of an iteration and write them to `folder/sampled.jsonl` in the order of `deal`.

        Args:
            model: Folder of the model that plays.
            number: Number of the iteration, which determines tasks and seeds.
            folder: Folder of the iteration.

        Returns:
            Whether all episodes were played.

        Raises:
            EngineError: when the engine can't be recovered.
            TooManyFailed: when more episodes failed than `max_failed` allows. Earlier episodes are kept.
            Stopped: when the run must end immediately. Finished episodes are kept.
        """
        ranks, sampled, parts = Ranks(), folder / "sampled.jsonl", folder / "sampling"
        if ranks.broadcast(sampled.exists()):
            return True
        specs = self.draw_episodes(number)
        keys = [(world.name, spec.task_id, spec.sample) for world, own in specs for spec in own]
        known = ranks.broadcast({_key(episode) for episode in _played(parts)} if ranks.is_main else set[_EpisodeKey]())
        if len(known) < len(keys):
            missing = [
                (world, [spec for spec in own if (world.name, spec.task_id, spec.sample) not in known])
                for world, own in specs
            ]
            if not self._play(model, missing, parts):
                return False
        with ranks.errors_together():
            if ranks.is_main:
                found = {_key(episode): episode for episode in _played(parts)}
                with writing(sampled):
                    write_whole(sampled, "".join(f"{found[key].to_json()}\n" for key in keys))
                shutil.rmtree(parts)
        return True

    def _play(self, model: Path, specs: Sequence[tuple[OpenEnvironment, list[EpisodeSpec]]], parts: Path) -> bool:
        """Play this process's share and save each episode when it ends; return whether all processes finished."""
        ranks, config = Ranks(), self.config
        requests = [RolloutRequest(world, ranks.share(own), config.horizon.longest) for world, own in specs]
        failed = FailureLimit(config.max_failed)
        total, stopped = sum(len(ranks.share(own)) for _, own in specs), False
        named, temperature = replace(config, model=str(model)), config.exploration.temperature
        if temperature is None:
            temperature = config.generation.temperature
        opened = saved_model(config, str(model), parts.parent, self.tracker.say, self.stopping.check)
        with opened as (rollouts, chat), ranks.errors_together():
            policy = engine_policy(named, rollouts.engine, chat, temperature=temperature)
            with Store(parts / str(ranks.index), {}) as store, closing(rollouts.play(requests, policy)) as played:
                for episode in self.tracker.phase("Exploring", played, total):
                    failed.count([EpisodeOutcome.of(episode)])
                    with writing(parts):
                        store.append(episode)
                    if stopped := self.stopping():
                        break
        return not ranks.any(stopped)


def _played(parts: Path) -> list[Episode]:
    """Return the episodes that all processes have played so far."""
    return [episode for path in sorted(parts.glob("*/episodes.jsonl")) for episode in read_episodes(path)]


def _key(episode: Episode) -> _EpisodeKey:
    return episode.env, episode.task_id, episode.sample
