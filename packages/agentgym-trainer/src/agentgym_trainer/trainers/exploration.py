"""The exploration step of AgentEvol: the last model plays training tasks of all environments.

Every episode is written to disk as soon as it ends, and an interrupted exploration resumes with the missing ones.
Selecting the episodes to train on is not part of this module.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from agentgym_envs import EpisodeSpec
from agentgym_envs.util.files import write_whole

from agentgym_trainer.config import AgentEvolConfig
from agentgym_trainer.curriculum.task_sampler import apportion, evenly
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import OpenEnvironment, episode_specs
from agentgym_trainer.rollout.play import engine_policy, seed_of
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.setup import saved_model
from agentgym_trainer.trainers.stored_play import Specs, StoredPlay

_EXPLORATION = 3  # distinguishes the seeds of exploration from those of other uses


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
        if not ranks.broadcast(sampled.exists()):
            play = StoredPlay(self.draw_episodes(number), parts)
            if (missing := play.missing()) and not self._play(model, play, missing):
                return False
            with ranks.errors_together():
                if ranks.is_main:
                    lines = [f"{episode.to_json()}\n" for episode in play.episodes()]
                    with writing(sampled):
                        write_whole(sampled, "".join(lines))
        if ranks.is_main:
            shutil.rmtree(parts, ignore_errors=True)
        return True

    def _play(self, model: Path, play: StoredPlay, missing: Specs) -> bool:
        """Play the missing episodes with a model; return whether all processes finished."""
        config, temperature = self.config, self.config.exploration.temperature
        if temperature is None:
            temperature = config.generation.temperature
        opened = saved_model(config, str(model), play.folder.parent, self.tracker.say, self.stopping.check)
        with opened as (rollouts, chat):
            named = replace(config, model=str(model))
            policy = engine_policy(named, rollouts.engine, chat, temperature=temperature)
            return play.play(
                missing, rollouts, policy, config, tracker=self.tracker, title="Exploring", stop=self.stopping
            )
