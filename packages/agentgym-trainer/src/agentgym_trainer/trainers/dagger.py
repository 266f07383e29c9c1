"""DAgger (Ross, Gordon and Bagnell 2011, arXiv 1011.0686): the expert acts in states that the policy itself reaches.

Cloned policies drift into states that no demonstration contains. In a round of DAgger, the policy and the expert play
episodes together: at each action, the expert replies with probability beta and the policy otherwise. The expert's
replies are trained on; the policy's are context. The paper labels every state; with the expert's replies in the
conversation itself, an episode costs one context instead of one per turn.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from agentgym_envs import Episode, EpisodeSpec, Policy, Reply, TurnContext, read_episodes, text_env
from agentgym_envs.episodes.slots import NoExpertReply
from agentgym_envs.util.files import write_whole
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.task_sampler import apportion, evenly
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import OpenEnvironment, episode_specs
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.play import engine_policy, seed_of
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.setup import saved_model
from agentgym_trainer.trainers.stored_play import Specs, StoredPlay
from agentgym_trainer.trainers.training_data import exclude_turns

_DAGGER = 5  # distinguishes the seeds of DAgger from those of other uses


class Mixture(Policy):
    """At each action, the expert replies with probability `beta` if it has an action, and another policy otherwise.

    Plans, reflections and summaries are the policy's.
    """

    def __init__(self, policy: Policy, beta: float) -> None:
        """Mix `policy` with the environment's expert."""
        self.name = f"dagger:{beta:g}"
        self._policy = policy
        self._beta = beta

    async def reply(self, context: TurnContext) -> Reply:
        """The expert's reply, which has no sampled ids, or the policy's."""
        if context.kind == "act" and context.expert and context.rng.random() < self._beta:
            with suppress(NoExpertReply):
                return await context.expert()
        return await self._policy.reply(context)

    def count_tokens(self, context: TurnContext) -> int:
        """Return the number of tokens of a context for the policy."""
        return self._policy.count_tokens(context)

    def forget(self, key: int) -> None:
        """Free what the policy keeps for this attempt."""
        self._policy.forget(key)


@dataclass(frozen=True, slots=True)
class Round:
    """A round of DAgger, and its files in the run folder."""

    config: RLConfig
    number: int
    """From 1. Round 0 is the cloning of the expert's own episodes."""
    folder: Path

    @property
    def episodes(self) -> Path:
        """The file of the episodes that were played in this round."""
        return self.folder / f"round-{self.number:04d}.jsonl"

    @property
    def model(self) -> Path:
        """The folder of the model that this round trained, until the warm start is complete."""
        return self.folder / f"round-{self.number:04d}"

    @property
    def seed(self) -> int:
        """Seed of everything that is drawn in this round."""
        return seed_of(self.config.seed, self.number, _DAGGER)

    def draw_episodes(self, worlds: Sequence[OpenEnvironment]) -> list[tuple[OpenEnvironment, list[EpisodeSpec]]]:
        """Draw the episodes of each environment, in proportion to the weights."""
        rng = np.random.default_rng(self.seed)
        shares = apportion(self.config.warm_start.dagger.episodes, [world.weight for world in worlds], rng)
        drawn = [
            [world.tasks.train[i] for i in evenly(world.tasks.train.ids, share, rng)]
            for world, share in zip(worlds, shares, strict=True)
        ]
        return [
            (world, episode_specs(tasks, samples=1, seed=self.seed)) for world, tasks in zip(worlds, drawn, strict=True)
        ]

    def play(
        self, model: Path, worlds: Sequence[OpenEnvironment], console: RunConsole, stopping: Stopping
    ) -> list[Episode]:
        """Play the episodes of this round, or read them back. All processes must call this; all get the same episodes.

        Args:
            model: Folder of the model that the previous round trained.
            worlds: The environments.
            console: Shows the number of episodes.
            stopping: Whether the run must end immediately.

        Returns:
            The episodes, in which only the expert's replies are in the loss.

        Raises:
            UsageError: when the engine can't be started.
            EngineError: when the engine can't be recovered.
            TooManyFailed: when more episodes failed than `max_failed` allows. Earlier episodes are kept.
            Stopped: when the run must end immediately. Finished episodes are kept.
        """
        ranks, playing = Ranks(), self.folder / f"playing-{self.number:04d}"
        if not ranks.broadcast(self.episodes.exists()):
            play = StoredPlay(self.draw_episodes(worlds), playing)
            if missing := play.missing():
                self._play(model, play, missing, console, stopping)
            with ranks.errors_together():
                if ranks.is_main:
                    self._save(play.episodes())
        if ranks.is_main:
            shutil.rmtree(playing, ignore_errors=True)
        episodes = list(read_episodes(self.episodes))
        if names := ", ".join(sorted(world.name for world in worlds if not _has_labels(world.name, episodes))):
            console.say(
                f"Warning: the expert had no action in any state of DAgger round {self.number} in {names}, so the "
                "round teaches nothing there. Train without it: --warm-start.dagger.rounds 0."
            )
        return episodes

    def _play(self, model: Path, play: StoredPlay, missing: Specs, console: RunConsole, stopping: Stopping) -> None:
        """Play the missing episodes with the model and the expert."""
        config = self.config
        opened = saved_model(config, str(model), self.folder.parent, console.say, stopping.check)
        with opened as (rollouts, chat):
            policy = engine_policy(config, rollouts.engine, chat, temperature=config.generation.temperature)
            mixture, title = Mixture(policy, config.warm_start.dagger.beta), f"Playing DAgger round {self.number}"
            play.play(missing, rollouts, mixture, config, tracker=console, title=title)

    def _save(self, played: Sequence[Episode]) -> None:
        """Save the episodes, in the order in which they were drawn, unless too many of all processes failed."""
        FailureLimit(self.config.max_failed).count(map(EpisodeOutcome.of, played))
        lines = (exclude_turns(episode, lambda turn: turn.reply.sample is not None).to_json() for episode in played)
        with writing(self.episodes):
            write_whole(self.episodes, "".join(f"{line}\n" for line in lines))


def _has_labels(env: str, episodes: Sequence[Episode]) -> bool:
    """Return whether the expert replied in any of an environment's episodes, or it has none."""
    turns = [turn for episode in episodes if episode.env == env for turn in episode.turns]
    return not turns or any(turn.loss for turn in turns)


def check_experts(worlds: Sequence[OpenEnvironment]) -> None:
    """Check that the environments' experts can act in states that another policy has reached.

    Raises:
        UsageError: when one can't; the message names its environment.
    """
    for world in worlds:
        if not text_env(world.wrapped).oracle_replans:
            raise UsageError(
                f"DAgger needs an expert that can act in any state, and that of {world.name} follows a path that is "
                "computed at the start of an episode. Train without DAgger there: --warm-start.dagger.rounds 0."
            )
