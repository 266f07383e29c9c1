"""Exploration: the last model of an evolution plays training tasks of all worlds.

Every episode is on disk as soon as it ends, and a killed exploration goes on with those that are missing. Knows nothing
about what is learned from them.
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

_EXPLORATION = 3  # among the numbers that seeds are made of
_Place = tuple[str, str | None, int]
"""World, task and sample: there is one episode of each."""


@dataclass(frozen=True)
class Explorer:
    """Has a model play. All processes of the run play their share."""

    config: AgentEvolConfig
    worlds: Sequence[OpenEnvironment]
    known: Collection[tuple[str, str]]
    """Environments and ids of the tasks of the base data."""
    tracker: RunConsole
    stopping: Stopping
    """Asked after every episode: whether to leave it there."""

    def deal(self, number: int) -> list[tuple[OpenEnvironment, list[EpisodeSpec]]]:
        """What each world has to offer in this iteration."""
        chosen, dealt = self.config.exploration, list[tuple[OpenEnvironment, list[EpisodeSpec]]]()
        rng = np.random.default_rng([self.config.seed, number, _EXPLORATION])
        shares = apportion(chosen.tasks, [world.weight for world in self.worlds], rng)
        for world, share in zip(self.worlds, shares, strict=True):
            tasks = [task for task in world.tasks.train if chosen.known or (world.name, task.id) not in self.known]
            tasks = tasks or list(world.tasks.train)
            places = evenly([task.id for task in tasks], share, rng) if chosen.tasks else range(len(tasks))
            seed = seed_of(self.config.seed, number, _EXPLORATION)
            dealt.append((world, episode_specs([tasks[i] for i in places], samples=chosen.samples, seed=seed)))
        return dealt

    def explore(self, model: Path, number: int, folder: Path) -> bool:
        """Play what is to be played in an iteration and leave it in `folder/sampled.jsonl`, in the order of dealing.

        Args:
            model: Folder of who plays.
            number: Of the iteration, which tasks and seeds hang on.
            folder: Of the iteration.

        Returns:
            Whether all was played.

        Raises:
            EngineError: when the engine can't be brought back.
            TooManyFailed: when more episodes failed than the configuration bears. Those before them are kept.
            Stopped: when the run is to end at once. The episodes that have ended are kept.
        """
        ranks, sampled, parts = Ranks(), folder / "sampled.jsonl", folder / "sampling"
        if ranks.broadcast(sampled.exists()):
            return True
        dealt = self.deal(number)
        places = [(world.name, job.task_id, job.sample) for world, some in dealt for job in some]
        known = ranks.broadcast({_place(episode) for episode in _played(parts)} if ranks.is_main else set[_Place]())
        if len(known) < len(places):
            left = [
                (world, [job for job in some if (world.name, job.task_id, job.sample) not in known])
                for world, some in dealt
            ]
            if not self._play(model, left, parts):
                return False
        with ranks.errors_together():
            if ranks.is_main:
                found = {_place(episode): episode for episode in _played(parts)}
                with writing(sampled):
                    write_whole(sampled, "".join(f"{found[place].to_json()}\n" for place in places))
                shutil.rmtree(parts)
        return True

    def _play(self, model: Path, dealt: Sequence[tuple[OpenEnvironment, list[EpisodeSpec]]], parts: Path) -> bool:
        """Play this process's share, and keep each episode as it ends. Whether all processes came to their end."""
        ranks, config = Ranks(), self.config
        own = [RolloutRequest(world, ranks.share(some), config.horizon.longest) for world, some in dealt]
        failed = FailureLimit(config.max_failed)
        total, stopped = sum(len(ranks.share(some)) for _, some in dealt), False
        named, temperature = replace(config, model=str(model)), config.exploration.temperature
        if temperature is None:
            temperature = config.generation.temperature
        playing = saved_model(config, str(model), parts.parent, self.tracker.say, self.stopping.check)
        with playing as (rollouts, chat), ranks.errors_together():
            player = engine_policy(named, rollouts.engine, chat, temperature=temperature)
            with Store(parts / str(ranks.index), {}) as store, closing(rollouts.play(own, player)) as played:
                for episode in self.tracker.phase("Exploring", played, total):
                    failed.count([EpisodeOutcome.of(episode)])
                    with writing(parts):
                        store.append(episode)
                    if stopped := self.stopping():
                        break
        return not ranks.any(stopped)


def _played(parts: Path) -> list[Episode]:
    """What any process has played so far."""
    return [episode for path in sorted(parts.glob("*/episodes.jsonl")) for episode in read_episodes(path)]


def _place(episode: Episode) -> _Place:
    return episode.env, episode.task_id, episode.sample
