"""Collects the rollouts of a training step.

Tasks are drawn from the seed and the number of the step: all processes draw the same tasks, and each plays its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from agentgym_envs import Policy
from agentgym_envs.core.feedback import faulting

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.curriculum.task_sampler import apportion, draw
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.plugins import blaming
from agentgym_trainer.rollout.async_collector import AsyncCollector, classified
from agentgym_trainer.rollout.environments import GroupSpec, OpenEnvironment, group_specs
from agentgym_trainer.rollout.groups import EpisodeGroup, GroupOutcome
from agentgym_trainer.rollout.labels import LabelingPolicy
from agentgym_trainer.rollout.play import play_groups, player
from agentgym_trainer.rollout.runner import EpisodePlayer, RolloutRunner
from agentgym_trainer.tokens.chat import Chat

_ROLLOUT = 0


class RolloutCollector:
    """Plays training tasks for the learner."""

    def __init__(
        self,
        config: RLConfig,
        worlds: Sequence[OpenEnvironment],
        chat: Chat,
        rollouts: RolloutRunner,
        ranks: Ranks,
        *,
        expert: Policy | None = None,
    ) -> None:
        """Play nothing yet.

        Args:
            config: Of the run.
            worlds: The environments that tasks are drawn of.
            chat: The model's tokenizer and chat template.
            rollouts: The engine and its thread.
            ranks: The processes that share the tasks of a step.
            expert: The policy that `distillation.expert` names, if it isn't the environment's expert.
        """
        self.config = config
        self.worlds = worlds
        self.chat = chat
        self.rollouts = rollouts
        self.ranks = ranks
        self._expert = expert
        self.async_collector = self.open_async_collector() if config.async_rollout.max_staleness else None

    def collect(self, state: TrainingState) -> tuple[list[EpisodeGroup], list[GroupOutcome]]:
        """Play the groups of a step.

        Returns:
            The groups that this process played, and the outcomes of the groups of all processes, in the order in which
            they were drawn. Groups that were resampled or dropped are included, and marked by their treatment.
        """
        if self.async_collector is None:
            return self._play_step(state)
        with self.ranks.errors_together():
            own = self.async_collector.collect(state)
        return own, self._outcomes(own)

    def in_flight(self) -> list[dict[str, Any]]:
        """The groups in flight of each process, for checkpoints; see `AsyncCollector.in_flight`."""
        return self.ranks.gather([self.async_collector.in_flight()]) if self.async_collector else []

    def settle(self) -> None:
        """Finish the episodes in flight, so that all slots are free for an evaluation."""
        if self.async_collector:
            with self.ranks.errors_together():
                self.async_collector.settle()

    def close(self) -> None:
        """Cancel the episodes in flight."""
        if self.async_collector:
            self.async_collector.close()

    def open_async_collector(self) -> AsyncCollector:
        """A collector that samples groups while the learner works.

        A task that recurs, in another draw or in the same draw of another process, is played with other seeds.
        """

        def shared(number: int, state: TrainingState) -> list[GroupSpec]:
            wanted, rng = self._wanted(number)
            # Processes that make the same draw after different steps, where one has resampled more groups, may get the
            # same task.
            return self.ranks.share(self._draw(wanted, state, (), rng, offset=self.ranks.index))

        return AsyncCollector(self.rollouts, self._policy(0), self.config, self.worlds, shared, ranks=self.ranks)

    def _play_step(self, state: TrainingState) -> tuple[list[EpisodeGroup], list[GroupOutcome]]:
        """Play the groups drawn first, those that replace groups to be resampled, and more up to `turns_per_step`."""
        own, known, kept = list[EpisodeGroup](), list[GroupOutcome](), list[GroupOutcome]()
        wanted, rng = self._wanted(state.step)
        rounds = self.config.algorithm.groups.rounds
        while any(wanted):
            with self.ranks.errors_together():
                drawn = self._draw(wanted, state, known, rng)
            fresh = self._play_groups(drawn, state)
            seen = self._outcomes(fresh)
            own += fresh
            known += seen
            again = Counter(group.world for group in seen if group.treatment == "resample" and rounds)
            kept += [group for group in seen if group.treatment != "resample" or not rounds]
            wanted = [again[world.name] for world in self.worlds]
            if any(wanted):
                rounds -= 1
            else:
                missing = missing_groups(kept, self.config.turns_per_step) if seen else 0
                wanted = self._apportioned(missing, rng)
        return own, known

    def _wanted(self, number: int) -> tuple[list[int], np.random.Generator]:
        """How many tasks of each environment to draw, and the generator to draw them with."""
        rng = np.random.default_rng([self.config.seed, number, _ROLLOUT])
        return self._apportioned(self.config.tasks_per_step, rng), rng

    def _apportioned(self, count: int, rng: np.random.Generator) -> list[int]:
        return apportion(count, [world.weight for world in self.worlds], rng) if count else []

    def _draw(
        self,
        wanted: Sequence[int],
        state: TrainingState,
        before: Sequence[GroupOutcome],
        rng: np.random.Generator,
        *,
        offset: int = 0,
    ) -> list[GroupSpec]:
        """Draw training tasks of each environment, none of which was played `before` in this step. `offset` is added to
        the seeds of their episodes.
        """
        config, specs = self.config, list[GroupSpec]()
        for world, count in zip(self.worlds, wanted, strict=True):
            without = {group.task for group in before if group.world == world.name}
            ids = world.tasks.train.ids
            with blaming(config.sampler, doing="draw training tasks"):
                chosen = draw(config.sampler, ids, count, state=state.sampler, rng=rng, without=without)
            with faulting(world.name):
                tasks = [world.tasks.train[i] for i in chosen]
            seed = int(rng.integers(2**62)) + offset
            specs += group_specs(world, tasks, samples=config.group_size, seed=seed, after=len(before) + len(specs))
        return specs

    def _play_groups(self, specs: Sequence[GroupSpec], state: TrainingState) -> list[EpisodeGroup]:
        config, own = self.config, self.ranks.share(specs)
        with self.ranks.errors_together():
            stage, policy = state.stage, self._policy(state.step)
            played = play_groups(own, self.rollouts, policy, horizon=stage.turns, remaining=stage.remaining)
            return [
                classified(config, episodes, spec.number, stage.number, state.step)
                for spec, episodes in zip(own, played, strict=True)
            ]

    def _policy(self, step: int) -> Policy | EpisodePlayer:
        """What plays the episodes of a step, with labels while they have a weight."""
        config, distillation = self.config, self.config.distillation
        playing = player(config, self.rollouts, self.chat, temperature=config.generation.temperature)
        if isinstance(playing, Policy) and distillation.expert and distillation.decay(step, config.steps):
            return LabelingPolicy(playing, self._expert, distillation.fraction)
        return playing

    def _outcomes(self, own: Sequence[EpisodeGroup]) -> list[GroupOutcome]:
        """Outcomes of the groups of all processes, in the order in which they were drawn."""
        return sorted(self.ranks.gather([group.outcome for group in own]), key=lambda group: group.number)


def missing_groups(played: Sequence[GroupOutcome], turns: int) -> int:
    """Return how many more groups a step plays next to have `turns` turns; 0 if no episode has any turns.

    It is half of what is missing by the mean of the groups played. When these happen to be short, the whole estimate
    is far too high, and the groups in excess can't be taken back.
    """
    found = sum(episode.turns for group in played for episode in group.episodes)
    missing = max(0, round((turns - found) * len(played) / found)) if found else 0
    return (missing + 1) // 2
