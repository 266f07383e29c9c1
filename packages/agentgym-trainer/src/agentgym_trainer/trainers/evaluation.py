"""Evaluation on tasks that nothing trains on, sampled as in training and greedily, kept in the run's folder.

In the course of a run it is the tasks of `evaluation.split` that are played, and every decision is made by them. The
test split is played when the run is over; whoever decides anything never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from agentgym_envs import Episode, Task
from agentgym_envs.core.tasks import Split
from agentgym_eval.metrics.summary import report
from agentgym_eval.runs.environments import spread

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import GroupSpec, OpenEnvironment, group_specs
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.play import engine_policy, play_groups, seed_of
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import MANNERS, Manner, RunFolder
from agentgym_trainer.tokens.chat import Chat

_EVALUATION = 2  # among the numbers that seeds are made of in the loop


class Evaluator:
    """The tasks that a run is evaluated on. All of its processes play their share."""

    def __init__(
        self,
        config: BaseConfig,
        folder: RunFolder,
        worlds: Sequence[OpenEnvironment],
        chat: Chat,
        tracker: RunConsole,
        rollouts: RolloutRunner,
    ) -> None:
        """Play nothing yet."""
        self.config = config
        self.folder = folder
        self.worlds = worlds
        self.chat = chat
        self.tracker = tracker
        self.rollouts = rollouts
        self.ranks = Ranks()
        self._failed = FailureLimit(config.max_failed)

    def evaluate(
        self, step: int, playing: Callable[[], AbstractContextManager[object]]
    ) -> dict[Manner, list[EpisodeOutcome]]:
        """Play the tasks of `evaluation.split` at the training temperature and greedily; what was played before is read
        back.

        Args:
            step: Updates done.
            playing: Open while they are played; has the engine sample with the weights of this step.
        """
        played: dict[Manner, list[EpisodeOutcome]] = {}
        for manner in MANNERS:
            episodes = self._played(self.config.evaluation.split, step, manner, playing)
            played[manner] = self.ranks.broadcast([EpisodeOutcome.of(episode) for episode in episodes])
        return played

    def test(self, step: int, playing: Callable[[], AbstractContextManager[object]]) -> None:
        """Play the test tasks likewise. For when the run is over."""
        for manner in MANNERS:
            self._played("test", step, manner, playing)

    def play(self, dealt: Sequence[GroupSpec], temperature: float) -> list[Episode]:
        """The episodes of all processes for the one that leads, in the order of the tasks.

        Raises:
            TooManyFailed: when more episodes of the sitting failed than the configuration bears.
        """
        own, engine = self.ranks.share(dealt), self.rollouts.engine
        player = engine_policy(self.config, engine, self.chat, temperature=temperature)
        with self.ranks.errors_together():
            played = play_groups(own, self.rollouts, player, horizon=self.config.horizon.longest)
        gathered = self.ranks.gather_to_main([(deal.number, some) for deal, some in zip(own, played, strict=True)])
        episodes = [episode for _, some in sorted(gathered, key=lambda item: item[0]) for episode in some]
        with self.ranks.errors_together():
            self._failed.count(map(EpisodeOutcome.of, episodes))
        return episodes

    def is_due(self, step: int, last: int) -> bool:
        """Whether there is an evaluation after this step of a run whose last step is `last`."""
        every = self.config.evaluation.every
        return step == last or (every > 0 and step % every == 0)

    def _played(
        self, split: Split, step: int, manner: Manner, playing: Callable[[], AbstractContextManager[object]]
    ) -> list[Episode]:
        """The episodes, shown, for the process that leads; the others get none."""
        episodes = self._episodes(split, step, manner, playing)
        if self.ranks.is_main:
            ks = self.config.evaluation.ks if manner == "sampled" else (1,)
            self.tracker.evaluation(step, manner, split, report(episodes, ks=ks, seed=self.config.seed))
        return episodes

    def _episodes(
        self, split: Split, step: int, manner: Manner, playing: Callable[[], AbstractContextManager[object]]
    ) -> list[Episode]:
        config, tested = self.config, split == "test"
        known = self.folder.read_evaluation(step, manner, test=tested) if self.ranks.is_main else None
        if self.ranks.broadcast(known is not None):
            return known or []
        samples, temperature = config.evaluation.samples, config.generation.temperature
        if manner == "greedy":
            samples, temperature = 1, 0.0
        with playing():
            dealt = self._deals(split, samples, seed_of(config.seed, step, _EVALUATION))
            episodes = self.play(dealt, temperature)
        if self.ranks.is_main:
            self.folder.save_evaluation(step, manner, episodes, test=tested)
        return episodes

    def _deals(self, split: Split, samples: int, seed: int) -> list[GroupSpec]:
        dealt = list[GroupSpec]()
        for world in self.worlds:
            tasks = evaluated_tasks(self.config, world, split)
            dealt += group_specs(world, tasks, samples=samples, seed=seed, after=len(dealt))
        return dealt


def evaluated_tasks(config: BaseConfig, world: OpenEnvironment, split: Split) -> list[Task]:
    """The tasks of a world that the run plays of this split: in its course, or of `test` at its end."""
    tasks, asked = world.tasks.split(split), config.evaluation
    wanted = asked.test_tasks if split == "test" else asked.tasks
    return spread(tasks, min(wanted or len(tasks), len(tasks)))
