"""AgentEvol (arXiv 2406.04151): an agent explores its environments and is trained on its successful episodes.

Behavioural cloning of the base data gives the first model. In each iteration the last model plays; its successful
episodes are merged with the base data, and the run's initial model is trained on both by ordinary supervised
fine-tuning. Every iteration has a folder; files that exist there are not produced again.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentgym_envs import Episode, read_episodes
from agentgym_envs.util.files import write_whole
from agentgym_eval.data.card import duplicate_key
from agentgym_eval.metrics.failure_causes import episode_key
from agentgym_eval.storage.distances import read_distances, write_distances
from agentgym_eval.util.errors import RunStopped, UsageError

from agentgym_trainer.config import AgentEvolConfig, DataConfig, Exploration, SFTConfig
from agentgym_trainer.curriculum.state import Reached
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.models.load import check_model
from agentgym_trainer.models.memory import peak_memory
from agentgym_trainer.planning.sharding import check_sharding
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import DECODINGS, RunFolder
from agentgym_trainer.run.metrics import episode_metrics, evaluation_metrics
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers import sft
from agentgym_trainer.trainers.exploration import Explorer
from agentgym_trainer.trainers.model_setup import make_start, makes_start
from agentgym_trainer.trainers.setup import is_sharded, open_accelerator, release_memory
from agentgym_trainer.trainers.training_data import gather_episodes, good_enough, thresholds_by_id

_MERGING = 4  # distinguishes the seeds of merging from those of other uses


@dataclass(frozen=True, slots=True)
class Iteration:
    """The folder of an iteration. Iteration 0 is behavioural cloning and has no played episodes."""

    path: Path

    @property
    def sampled(self) -> Path:
        """The file of all episodes that were played."""
        return self.path / "sampled.jsonl"

    @property
    def kept(self) -> Path:
        """The file of the played episodes that are trained on."""
        return self.path / "kept.jsonl"

    @property
    def training(self) -> RunFolder:
        """The run of supervised fine-tuning, with the merged data, evaluations and the model."""
        return RunFolder(self.path / "sft")


def train(config: AgentEvolConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> Reached:
    """Start or resume an AgentEvol run until it ends or `stopping` is set. All processes of the run must call this.

    Returns:
        The number of trained models, including that of behavioural cloning. At the end the folder holds the last
        model, evaluations, and a line of metrics for each model.

    Raises:
        UsageError: when the model, an environment, a file or an option doesn't exist, or the engine can't be started.
        RunStopped: when an iteration has no data to train on, more episodes failed than `max_failed` allows, or values
            aren't finite.
        EngineError: when the engine can't be recovered.
        Stopped: when the run must end immediately. The progress is saved.
    """
    torch.set_num_threads(config.threads)
    check_sharding(config, sharded=is_sharded(open_accelerator(config)))
    return Evolution(config, folder, tracker, stopping).run()


def _check_thresholds(config: AgentEvolConfig, played: Sequence[str]) -> None:
    """Raise `UsageError` if a threshold is for an environment that isn't played."""
    if others := [env for env in thresholds_by_id(config.exploration) if env not in played]:
        raise UsageError(
            f"exploration.thresholds names {', '.join(others)}, and this run plays {', '.join(played)}; leave out what "
            "it doesn't play."
        )


class Evolution:
    """One AgentEvol run."""

    def __init__(self, config: AgentEvolConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> None:
        """Prepare the run without starting it."""
        self.config = config
        self.folder = folder
        self.tracker = tracker
        self.ranks = Ranks()
        self._stopping = stopping

    def run(self) -> Reached:
        """Continue with the first incomplete iteration."""
        base, last = self._begin(), self.config.iterations + 1
        done = self.ranks.broadcast(self.folder.whole_lines)
        with self.ranks.errors_together():
            if self.ranks.is_main:
                self.folder.rewind(done)
        for number in range(last):
            began = time.perf_counter()
            if number >= done and not (self._explore(number, base) and self._learn(number, base)):
                return Reached(number, of=last)
            with self.ranks.errors_together():
                if self.ranks.is_main:
                    if number >= done:
                        self._conclude(number, seconds=time.perf_counter() - began)
                    # Only needed to resume this iteration, and several times as large as the model.
                    shutil.rmtree(self.iteration(number).training.checkpoints, ignore_errors=True)
        return Reached(last, of=last)

    def iteration(self, number: int) -> Iteration:
        """Return the iteration of this number, from 0."""
        return Iteration(self.folder.path / f"iteration-{number:04d}")

    def sources(self, number: int) -> list[Path]:
        """Return the files of kept episodes that an iteration trains on."""
        first = 1 if self.config.memory == "all" else max(1, number)
        return [self.iteration(i).kept for i in range(first, number + 1)]

    def _begin(self) -> list[Episode]:
        """Return the base data, and make the initial model unless it is a whole model already."""
        config, folder = self.config, self.folder
        with open_environments(config) as worlds, self.tracker.showing():
            _check_thresholds(config, [world.name for world in worlds])
            if config.model != "scratch" and not folder.data.exists():
                check_model(config.model)
            base = gather_episodes(config, config.data, worlds, folder, self.tracker, self._stopping)
            with self.ranks.errors_together():
                if makes_start(config) and self.ranks.is_main and not folder.start.exists():
                    make_start(config, folder, worlds, base)
        return base

    def _explore(self, number: int, base: Sequence[Episode]) -> bool:
        """Let the last model play and save the episodes to train on; return whether this was completed."""
        own = self.iteration(number)
        if number and not self.ranks.broadcast(own.kept.exists()):
            with open_environments(self.config) as worlds, self.tracker.showing():
                known = frozenset((episode.env, episode.task_id) for episode in base)
                explorer = Explorer(self.config, worlds, known, self.tracker, self._stopping)
                if not explorer.explore(self.iteration(number - 1).training.model, number, own.path):
                    return False
            with self.ranks.errors_together():
                if self.ranks.is_main:
                    kept = select_training_episodes(read_episodes(own.sampled), self.config.exploration)
                    with writing(own.kept):
                        write_whole(own.kept, "".join(f"{episode.to_json()}\n" for episode in kept))
        return True

    def _learn(self, number: int, base: Sequence[Episode]) -> bool:
        """Train on the merged data; return whether this was completed."""
        own, sources = self.iteration(number).training, self.sources(number)
        # Of the base data, which alone has labels, an iteration may train on none.
        labels = not number or any(turn.reply.label for one in self._base_share(number, base) for turn in one.turns)
        config = _retraining(self.config, self.folder, sources, labels=labels)
        with self.ranks.errors_together():
            if self.ranks.is_main and not own.data.exists():
                self._prepare(number, config, self._merged(number, base, sources))
        reached = sft.train(config, own, self.tracker, self._stopping)
        release_memory()
        return reached.done

    def _prepare(self, number: int, config: SFTConfig, data: Sequence[Episode]) -> None:
        """Create the run that trains on this data, with the known evaluation of the initial model."""
        own = self.iteration(number).training
        self.tracker.say(f"Iteration {number} of {self.config.iterations}: training on {len(data)} episodes.")
        if not own.settings.exists():
            shutil.rmtree(own.path, ignore_errors=True)  # it may be incomplete
            RunFolder.create(own.path, config, f"iteration {number}", then="continue with --resume")
        for decoding in DECODINGS if number else ():
            _copy_evaluation(self.folder, 0, own, 0, decoding)  # what can't be copied is played again
        own.save_data(data)

    def _merged(self, number: int, base: Sequence[Episode], sources: Iterable[Path]) -> list[Episode]:
        """Return the episodes that an iteration trains on, without duplicates, apart from renamed copies."""
        kept, some = [episode for path in sources for episode in read_episodes(path)], self._base_share(number, base)
        copies = some if self.config.data.copies > 1 else distinct(some)
        known = {duplicate_key(episode) for episode in some}
        merged = [*copies, *(episode for episode in distinct(kept) if duplicate_key(episode) not in known)]
        if not merged:
            raise RunStopped(
                f"There is nothing to train on in iteration {number}: none of the episodes in "
                f"{self.iteration(number).sampled} is kept, and `base` is {self.config.base:g}. Start another run with "
                "a higher share of the base data, or with exploration.keep all."
            )
        return merged

    def _base_share(self, number: int, base: Sequence[Episode]) -> list[Episode]:
        """Return the base data that an iteration trains on: all of it at first, then a share that is drawn again."""
        share = self.config.base if number else 1.0
        rng = np.random.default_rng([self.config.seed, number, _MERGING])
        return [base[i] for i in sorted(rng.choice(len(base), round(share * len(base)), replace=False).tolist())]

    def _conclude(self, number: int, *, seconds: float) -> None:
        """Copy an iteration's results to the run's folder. The line of metrics comes last and marks it complete."""
        own, step = self.iteration(number).training, number + 1
        copies = {step: own.evaluated_steps(DECODINGS[0])[-1]} | ({} if number else {0: 0})
        for decoding in DECODINGS:
            for target, source in copies.items():
                copied = _copy_evaluation(own, source, self.folder, target, decoding)
                if not copied and (damage := own.evaluation_damage(source, decoding)):
                    self.tracker.say(f"An evaluation of iteration {number} is incomplete, so it is left out: {damage}.")
        with writing(self.folder.model):
            self.folder.model.unlink(missing_ok=True)
            self.folder.model.symlink_to(own.model.relative_to(self.folder.path))
        taken = {"seconds": seconds, "memory": peak_memory()}
        self.folder.log({"step": step, "iteration": number, **self._metrics(number), **taken})

    def _metrics(self, number: int) -> dict[str, Any]:
        """Return metrics of the played episodes, the data and the evaluations, over all environments and for each."""
        own = self.iteration(number)
        merged, kept, sampled = list(read_episodes(own.training.data)), list[Episode](), list[Episode]()
        if number:
            kept, sampled = list(read_episodes(own.kept)), list(read_episodes(own.sampled))
        played = {decoding: self._evaluated(number + 1, decoding) for decoding in DECODINGS}

        def metrics(world: str | None) -> dict[str, Any]:
            def chosen(episodes: Iterable[Episode]) -> list[EpisodeOutcome]:
                return [EpisodeOutcome.of(episode) for episode in episodes if world in (None, episode.env)]

            return {
                "sampled": episode_metrics(chosen(sampled)),
                "kept": len(chosen(kept)),
                "data": len(chosen(merged)),
                **evaluation_metrics(played, self.config.evaluation, world),
            }

        worlds = dict.fromkeys(episode.world for episodes in played.values() for episode in episodes)
        return {**metrics(None), "worlds": {world: metrics(world) for world in worlds}}

    def _evaluated(self, step: int, decoding: str) -> list[EpisodeOutcome]:
        """Return the outcomes of an evaluation, with the causes of failure that its iteration has measured."""
        episodes = self.folder.read_evaluation(step, decoding) or []
        known = read_distances(self.folder.evaluation_file(step, decoding))
        return [EpisodeOutcome.of(episode, distances=known.get(episode_key(episode))) for episode in episodes]


def _copy_evaluation(source: RunFolder, source_step: int, target: RunFolder, step: int, decoding: str) -> bool:
    """Copy an evaluation between run folders, with its distances; return whether the evaluation exists and is whole."""
    episodes = source.read_evaluation(source_step, decoding)
    if episodes is None:
        return False
    target.save_evaluation(step, decoding, episodes)
    file = target.evaluation_file(step, decoding)
    if distances := read_distances(source.evaluation_file(source_step, decoding)):
        with writing(file):
            write_distances(file, distances)
    return True


def select_training_episodes(sampled: Iterable[Episode], rule: Exploration) -> list[Episode]:
    """Select the played episodes to train on, without those cut at the token budget: they end in half a reply."""
    good = [episode for episode in good_enough(sampled, rule) if episode.stop != "length"]
    by_task = defaultdict[tuple[str, str], list[Episode]](list)
    for episode in good:
        by_task[episode.env, episode.task_id].append(episode)
    ranked = (sorted(same, key=lambda episode: episode.score or 0.0, reverse=True) for same in by_task.values())
    return [episode for same in ranked for episode in same[: rule.most or None]]


def distinct(episodes: Iterable[Episode]) -> list[Episode]:
    """Remove episodes with the same observations and replies as an earlier one of the same task."""
    first: dict[Any, Episode] = {}
    for episode in episodes:
        first.setdefault(duplicate_key(episode), episode)
    return list(first.values())


def _retraining(config: AgentEvolConfig, folder: RunFolder, sources: Iterable[Path], *, labels: bool) -> SFTConfig:
    """Return the configuration of an iteration's supervised fine-tuning; `labels`: whether its data has any."""
    settings: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(SFTConfig)}
    model = str(folder.start) if makes_start(config) else config.model
    files = tuple(map(str, (folder.data, *sources)))
    given = config.data
    labels = labels and given.imitate_labels
    data = DataConfig(files=files, keep="all", imitate_noise=given.imitate_noise, imitate_labels=labels)
    return replace(SFTConfig(**settings), model=model, data=data)
