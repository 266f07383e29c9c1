"""Evaluation on held-out tasks, sampled as in training and greedily, saved in the run's folder.

During training, the tasks of `evaluation.split` are played, and all decisions are based on them. The test split is only
played after training, and no decision depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from agentgym_envs import Episode, Task
from agentgym_envs.core.feedback import faulting
from agentgym_envs.core.tasks import Split
from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey, episode_key
from agentgym_eval.metrics.summary import report
from agentgym_eval.runs.environments import spread

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import GroupSpec, OpenEnvironment, group_specs
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.play import play_groups, player, seed_of
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import DECODINGS, Decoding, RunFolder
from agentgym_trainer.tokens.chat import Chat

_EVALUATION = 2  # distinguishes the seeds of evaluations from those of other uses in the loop


class Evaluator:
    """Plays the evaluation tasks of a run. Every process plays its share."""

    def __init__(
        self,
        config: BaseConfig,
        folder: RunFolder,
        worlds: Sequence[OpenEnvironment],
        chat: Chat,
        tracker: RunConsole,
        rollouts: RolloutRunner,
    ) -> None:
        """Prepare evaluations without playing."""
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
    ) -> dict[Decoding, list[EpisodeOutcome]]:
        """Play the tasks of `evaluation.split` at the training temperature and greedily, or read saved episodes back.

        Args:
            step: Number of updates done.
            playing: Returns a context manager within which the engine samples with the weights of this step. It is
                entered once, unless all episodes are saved.
        """
        return self._evaluated(self.config.evaluation.split, step, playing)

    def test(self, step: int, playing: Callable[[], AbstractContextManager[object]]) -> None:
        """Play the test tasks in the same way, after training."""
        self._evaluated("test", step, playing)

    def play(self, groups: Sequence[GroupSpec], temperature: float) -> list[Episode]:
        """Play groups on all processes; return the episodes in order on the main process, and none on the others.

        Raises:
            TooManyFailed: when more episodes of this session failed than `max_failed` allows.
        """
        own = self.ranks.share(groups)
        total = sum(len(group.episodes) for group in own)
        policy = player(self.config, self.rollouts, self.chat, temperature=temperature)
        with self.ranks.errors_together():
            played = play_groups(
                own,
                self.rollouts,
                policy,
                horizon=self.config.horizon.longest,
                watch=lambda episodes: self.tracker.phase("Evaluating", episodes, total, keep=False),
            )
        gathered = self.ranks.gather_to_main([(group.number, found) for group, found in zip(own, played, strict=True)])
        episodes = [episode for _, found in sorted(gathered, key=lambda item: item[0]) for episode in found]
        with self.ranks.errors_together():
            self._failed.count(map(EpisodeOutcome.of, episodes))
        return episodes

    def is_due(self, step: int, last: int) -> bool:
        """Whether an evaluation is due after this step of a run whose last step is `last`."""
        every = self.config.evaluation.every
        return step == last or (every > 0 and step % every == 0)

    def _evaluated(
        self, split: Split, step: int, playing: Callable[[], AbstractContextManager[object]]
    ) -> dict[Decoding, list[EpisodeOutcome]]:
        """Play what isn't saved yet. The results are shown on the main process; all processes get the outcomes."""
        saved = dict[Decoding, list[Episode] | None]()
        with self.ranks.errors_together():
            if self.ranks.is_main:
                saved = {decoding: self._saved(split, step, decoding) for decoding in DECODINGS}
        missing = self.ranks.broadcast([decoding for decoding in DECODINGS if saved.get(decoding) is None])
        played: dict[Decoding, list[EpisodeOutcome]] = {}
        # Between the decodings, the engine keeps the weights.
        with playing() if missing else nullcontext():
            for decoding in DECODINGS:
                episodes = self._played(split, step, decoding) if decoding in missing else saved.get(decoding) or []
                if self.ranks.is_main:
                    ks = self.config.evaluation.ks if decoding == "sampled" else (1,)
                    self.tracker.evaluation(step, decoding, split, report(episodes, ks=ks, seed=self.config.seed))
                with self.ranks.errors_together():
                    distances = self._distances(split, step, decoding, episodes)
                outcomes = [EpisodeOutcome.of(each, distances=distances.get(episode_key(each))) for each in episodes]
                played[decoding] = self.ranks.broadcast(outcomes)
        return played

    def _distances(
        self, split: Split, step: int, decoding: Decoding, episodes: Sequence[Episode]
    ) -> Mapping[EpisodeKey, Distances]:
        """Measure how far from the goal the unsuccessful episodes were, and save it, if the run asks for that."""
        if not (self.config.evaluation.forensics and decoding == "sampled" and episodes):
            return {}
        check, test = self.rollouts.check, split == "test"
        distances, note = self.folder.evaluation_distances(step, decoding, episodes, check, test=test)
        if note:
            self.tracker.say(note)
        return distances

    def _played(self, split: Split, step: int, decoding: Decoding) -> list[Episode]:
        """Play and save the tasks of a split; return the episodes on the main process, and none on the others."""
        config = self.config
        samples, temperature = config.evaluation.samples, config.generation.temperature
        if decoding == "greedy":
            samples, temperature = 1, 0.0
        with self.ranks.errors_together():
            groups = self._group_specs(split, samples, seed_of(config.seed, step, _EVALUATION))
        episodes = self.play(groups, temperature)
        with self.ranks.errors_together():
            if self.ranks.is_main:
                self.folder.save_evaluation(step, decoding, episodes, test=split == "test")
        return episodes

    def _saved(self, split: Split, step: int, decoding: Decoding) -> list[Episode] | None:
        """Return the episodes of a saved evaluation; None, with a message if it is incomplete, if it must be played."""
        test = split == "test"
        known = self.folder.read_evaluation(step, decoding, test=test)
        damage = self.folder.evaluation_damage(step, decoding, test=test) if known is None else None
        if known is not None:
            samples = 1 if decoding == "greedy" else self.config.evaluation.samples
            expected = samples * sum(len(evaluated_tasks(self.config, world, split)) for world in self.worlds)
            damage = f"it has {len(known)} of {expected} episodes" if len(known) != expected else None
        if damage:
            self.tracker.say(
                f"The saved evaluation after {step} steps, {decoding} on {split} tasks, is incomplete: {damage}. It is "
                "played again."
            )
        return None if damage else known

    def _group_specs(self, split: Split, samples: int, seed: int) -> list[GroupSpec]:
        groups = list[GroupSpec]()
        for world in self.worlds:
            tasks = evaluated_tasks(self.config, world, split)
            groups += group_specs(world, tasks, samples=samples, seed=seed, after=len(groups))
        return groups


def evaluated_tasks(config: BaseConfig, world: OpenEnvironment, split: Split) -> list[Task]:
    """Return the tasks of this split on which the run is evaluated in an environment.

    Raises:
        EnvFault: when the environment can't build them.
    """
    tasks, settings = world.tasks.split(split), config.evaluation
    wanted = settings.test_tasks if split == "test" else settings.tasks
    with faulting(world.name):
        return spread(tasks, min(wanted or len(tasks), len(tasks)))
