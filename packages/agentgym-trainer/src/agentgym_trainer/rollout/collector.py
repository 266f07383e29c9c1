"""Where a run plays: its worlds and its engine, and this process's share of all that is played there.

What is drawn comes from the seed and a number; all processes draw the same and each plays its share. Knows no learner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.curriculum.task_sampler import apportion, draw
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.plugins import blaming
from agentgym_trainer.rollout.async_collector import AsyncCollector, judged
from agentgym_trainer.rollout.environments import GroupSpec, OpenEnvironment, group_specs
from agentgym_trainer.rollout.groups import EpisodeGroup, GroupOutcome
from agentgym_trainer.rollout.play import engine_policy, play_groups
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRunner
from agentgym_trainer.tokens.chat import Chat

_ROLLOUT = 0


class RolloutCollector:
    """Plays training tasks for the learner."""

    def __init__(
        self, config: RLConfig, worlds: Sequence[OpenEnvironment], chat: Chat, rollouts: RolloutRunner, ranks: Ranks
    ) -> None:
        """Play nothing yet."""
        self.config = config
        self.worlds = worlds
        self.chat = chat
        self.rollouts = rollouts
        self.ranks = ranks
        self.ahead = self.play_ahead() if config.async_rollout.max_staleness else None

    def collect(self, progress: TrainingState) -> tuple[list[EpisodeGroup], list[GroupOutcome]]:
        """The groups of a step that this process played, and what came of those of all, in the order of dealing.

        Among them are those to be resampled and those that were too old when they were complete, marked so.
        """
        if self.ahead is None:
            return self._play_step(progress)
        with self.ranks.errors_together():
            own = self.ahead.collect(progress)
        return own, self._outcomes(own)

    def under_way(self) -> list[dict[str, Any]]:
        """For each process, what it has under way that was played ahead: see `Ahead.under_way`."""
        return self.ranks.gather([self.ahead.under_way()]) if self.ahead else []

    def settle(self) -> None:
        """Play what is in play ahead to its end. All slots are free then, for an evaluation."""
        if self.ahead:
            with self.ranks.errors_together():
                self.ahead.settle()

    def close(self) -> None:
        """End what is played ahead."""
        if self.ahead:
            self.ahead.close()

    def play_ahead(self) -> AsyncCollector:
        """Groups that are drawn as those of a step, and played as far ahead as the configuration says."""

        def shared(number: int, progress: TrainingState) -> list[GroupSpec]:
            wanted, rng = self._wanted(number)
            return self.ranks.share(self._draw(wanted, progress, (), rng))

        return AsyncCollector(self.rollouts, self._player(), self.config, self.worlds, shared, ranks=self.ranks)

    def _play_step(self, progress: TrainingState) -> tuple[list[EpisodeGroup], list[GroupOutcome]]:
        """The groups that are drawn first, and those that are played in the place of groups to be resampled."""
        own, known = list[EpisodeGroup](), list[GroupOutcome]()
        wanted, rng = self._wanted(progress.step)
        for _ in range(self.config.algorithm.groups.rounds + 1):
            fresh = self._play_groups(self._draw(wanted, progress, known, rng), progress)
            seen = self._outcomes(fresh)
            own += fresh
            known += seen
            again = Counter(group.world for group in seen if group.treatment == "resample")
            wanted = [again[world.name] for world in self.worlds]
            if not any(wanted):
                break
        return own, known

    def _wanted(self, number: int) -> tuple[list[int], np.random.Generator]:
        """How many tasks of each world the draw of this number has, and what it is drawn with."""
        rng = np.random.default_rng([self.config.seed, number, _ROLLOUT])
        return apportion(self.config.tasks_per_step, [world.weight for world in self.worlds], rng), rng

    def _draw(
        self, wanted: Sequence[int], progress: TrainingState, before: Sequence[GroupOutcome], rng: np.random.Generator
    ) -> list[GroupSpec]:
        """So many training tasks of each world, none of which was played `before` in this step."""
        config, dealt = self.config, list[GroupSpec]()
        for world, count in zip(self.worlds, wanted, strict=True):
            without = {group.task for group in before if group.world == world.name}
            ids = world.tasks.train.ids
            with blaming(config.sampler, doing="draw training tasks"):
                chosen = draw(config.sampler, ids, count, state=progress.sampler, rng=rng, without=without)
            tasks, seed = [world.tasks.train[i] for i in chosen], int(rng.integers(2**62))
            dealt += group_specs(world, tasks, samples=config.group_size, seed=seed, after=len(before) + len(dealt))
        return dealt

    def _play_groups(self, dealt: Sequence[GroupSpec], progress: TrainingState) -> list[EpisodeGroup]:
        config, own = self.config, self.ranks.share(dealt)
        with self.ranks.errors_together():
            played = play_groups(own, self.rollouts, self._player(), horizon=progress.stage.turns)
            return [judged(config, episodes, deal.number) for deal, episodes in zip(own, played, strict=True)]

    def _player(self) -> EnginePolicy:
        temperature = self.config.generation.temperature
        return engine_policy(self.config, self.rollouts.engine, self.chat, temperature=temperature)

    def _outcomes(self, own: Sequence[EpisodeGroup]) -> list[GroupOutcome]:
        """What came of these groups and of those of the other processes, in the order of dealing."""
        return sorted(self.ranks.gather([group.outcome for group in own]), key=lambda group: group.number)
