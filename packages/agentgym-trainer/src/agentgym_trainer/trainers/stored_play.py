"""Episodes that a model plays for a run: each is stored when it ends, and a resumed run plays the others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgym_envs import Episode, EpisodeSpec, Policy, read_episodes
from agentgym_eval.metrics.failure_causes import EpisodeKey, episode_key
from agentgym_eval.storage.store import Store
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.failures import FailureLimit
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.runner import EpisodePlayer, RolloutRequest, RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing

Specs = Sequence[tuple[OpenEnvironment, Sequence[EpisodeSpec]]]
"""Episodes to play in each environment."""


@dataclass(frozen=True)
class StoredPlay:
    """Episodes to play, and where they are stored. Every process of the run has the same."""

    specs: Specs
    folder: Path
    """Has a folder for each process, until the run has all episodes and removes it."""

    def missing(self) -> list[tuple[OpenEnvironment, list[EpisodeSpec]]]:
        """Return the episodes that no process has played yet, or that failed, without environments where there are
        none. All processes must call this.
        """
        ranks = Ranks()
        stored = self._stored().items() if ranks.is_main else ()
        known = ranks.broadcast({key for key, episode in stored if not episode.failed})
        left = [(world, [spec for spec in own if _key(world, spec) not in known]) for world, own in self.specs]
        return [(world, own) for world, own in left if own]

    def play(
        self,
        missing: Specs,
        rollouts: RolloutRunner,
        policy: Policy | EpisodePlayer,
        config: BaseConfig,
        *,
        tracker: RunConsole,
        title: str,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Play this process's share of the missing episodes. All processes must call this.

        Args:
            missing: What `missing` returned.
            rollouts: Plays the episodes.
            policy: The policy.
            config: The configuration of the run: horizon and accepted failures.
            tracker: Shows progress.
            title: What is shown.
            stop: Asked after every episode; if true, this process plays no more.

        Returns:
            Whether no process was asked to stop.

        Raises:
            TooManyFailed: when more episodes failed than `max_failed` allows. Earlier episodes are kept.
            OSError: when an episode can't be written, for example because the disk is full.
        """
        ranks, failed, stopped = Ranks(), FailureLimit(config.max_failed), False
        shares = [(world, ranks.share(own)) for world, own in missing]
        requests = [RolloutRequest(world, own, config.horizon.longest) for world, own in shares]
        total = sum(len(own) for _, own in shares)
        with (
            ranks.errors_together(),
            self._opened(self.folder / str(ranks.index)) as store,
            closing(rollouts.play(requests, policy)) as played,
        ):
            for episode in tracker.phase(title, played, total):
                failed.count([EpisodeOutcome.of(episode)])
                with writing(self.folder):
                    store.append(episode)
                if stopped := stop():
                    break
        return not ranks.any(stopped)

    @contextmanager
    def _opened(self, folder: Path) -> Generator[Store]:
        """Open this process's store within the block. Errors on writing name the file and say what to do."""
        with ExitStack() as stack:
            with writing(self.folder):
                try:
                    store = stack.enter_context(Store(folder, {}))
                except UsageError as error:
                    # An evaluation's folder is given by the user, but this one is the run's own.
                    if isinstance(error.__cause__, OSError):
                        raise error.__cause__ from None
                    raise
            yield store

    def episodes(self) -> list[Episode]:
        """Return the episodes in the order of `specs`; all must have been played."""
        found = self._stored()
        return [found[_key(world, spec)] for world, own in self.specs for spec in own]

    def _stored(self) -> dict[EpisodeKey, Episode]:
        """Return the episodes that all processes have played so far; of one that failed at first, the later one."""
        files = sorted(self.folder.glob("*/episodes.jsonl"))
        episodes = [episode for file in files for episode in read_episodes(file)]
        episodes.sort(key=lambda episode: not episode.failed)
        return {episode_key(episode): episode for episode in episodes}


def _key(world: OpenEnvironment, spec: EpisodeSpec) -> EpisodeKey:
    """Return the key of an episode that is played on a given task."""
    return world.name, spec.task_id or "", spec.sample
