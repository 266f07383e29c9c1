"""AgentEvol (arXiv 2406.04151): an agent that explores its worlds, and learns from what went well there.

Behavioural cloning of the base data makes the first model. In each iteration the last model plays; what went well is
merged with the base data, and the model that the run began with is trained on both, as in any run of supervised
fine-tuning. An iteration is a folder, and what lies in it is not made again.
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
from accelerate.utils.memory import clear_device_cache
from agentgym_envs import Episode, read_episodes
from agentgym_envs.util.files import write_whole
from agentgym_eval.data.card import seen_and_said
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import RunStopped

from agentgym_trainer.config import AgentEvolConfig, DataConfig, Exploration, SFTConfig
from agentgym_trainer.curriculum.state import Reached
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.models.load import check_model
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import MANNERS, RunFolder
from agentgym_trainer.run.metrics import episode_metrics, success_metrics
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers import sft
from agentgym_trainer.trainers.exploration import Explorer
from agentgym_trainer.trainers.setup import model_from_scratch, open_accelerator, save_start
from agentgym_trainer.trainers.training_data import gather_episodes, good_enough

_MERGING = 4  # among the numbers that seeds are made of


@dataclass(frozen=True, slots=True)
class Iteration:
    """The folder of an iteration. The one with the number 0 is behavioural cloning, and has nothing that was played."""

    path: Path

    @property
    def sampled(self) -> Path:
        """All episodes that were played."""
        return self.path / "sampled.jsonl"

    @property
    def kept(self) -> Path:
        """Those of them that are learned from."""
        return self.path / "kept.jsonl"

    @property
    def training(self) -> RunFolder:
        """The run of supervised fine-tuning, with the merged data, evaluations and the model."""
        return RunFolder(self.path / "sft")


def train(config: AgentEvolConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> Reached:
    """Begin an evolution or go on with one, as far as `stopping` lets it. All processes of the run call this.

    Returns:
        How many models have been trained, behavioural cloning's included. At the end the folder holds the last one,
        evaluations, and a line of metrics for each.

    Raises:
        UsageError: when the model, a world, a file or an option doesn't exist, or the engine can't be had.
        RunStopped: when there is nothing to learn from in an iteration, more episodes failed than the configuration
            bears, or something isn't finite.
        EngineError: when the engine can't be brought back.
        Stopped: when the run is to end at once. What is done is saved.
    """
    torch.set_num_threads(config.threads)
    open_accelerator(config)
    return Evolution(config, folder, tracker, stopping).run()


class Evolution:
    """One run."""

    def __init__(self, config: AgentEvolConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping) -> None:
        """Make nothing yet."""
        self.config = config
        self.folder = folder
        self.tracker = tracker
        self.ranks = Ranks()
        self._stopping = stopping

    def run(self) -> Reached:
        """Go on with the first iteration that isn't complete."""
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
                    # They are for going on, and weigh several times what the model does.
                    shutil.rmtree(self.iteration(number).training.checkpoints, ignore_errors=True)
        return Reached(last, of=last)

    def iteration(self, number: int) -> Iteration:
        """That of this number, from 0."""
        return Iteration(self.folder.path / f"iteration-{number:04d}")

    def sources(self, number: int) -> list[Path]:
        """Files of kept episodes that an iteration learns from."""
        first = 1 if self.config.memory == "all" else max(1, number)
        return [self.iteration(i).kept for i in range(first, number + 1)]

    def _begin(self) -> list[Episode]:
        """The base data; and the model that each iteration trains, where it is made here."""
        config, folder = self.config, self.folder
        with open_environments(config) as worlds, self.tracker.showing():
            if config.model != "scratch" and not folder.data.exists():
                check_model(config.model)
            base = gather_episodes(config, config.data, worlds, folder, self.tracker, self._stopping)
            with self.ranks.errors_together():
                if self.ranks.is_main and config.model == "scratch" and not folder.start.exists():
                    save_start(folder, *model_from_scratch(config, worlds, Oracle(config.data.noise), base))
        return base

    def _explore(self, number: int, base: Sequence[Episode]) -> bool:
        """Let the last model play and keep what is to be learned from. Whether it came to its end."""
        own = self.iteration(number)
        if number and not self.ranks.broadcast(own.kept.exists()):
            with open_environments(self.config) as worlds, self.tracker.showing():
                known = frozenset((episode.env, episode.task_id) for episode in base)
                explorer = Explorer(self.config, worlds, known, self.tracker, self._stopping)
                if not explorer.explore(self.iteration(number - 1).training.model, number, own.path):
                    return False
            with self.ranks.errors_together():
                if self.ranks.is_main:
                    kept = worth_learning(read_episodes(own.sampled), self.config.exploration)
                    with writing(own.kept):
                        write_whole(own.kept, "".join(f"{episode.to_json()}\n" for episode in kept))
        return True

    def _learn(self, number: int, base: Sequence[Episode]) -> bool:
        """Train on the merged data. Whether it came to its end."""
        own, sources = self.iteration(number).training, self.sources(number)
        config = _retraining(self.config, self.folder, sources)
        with self.ranks.errors_together():
            if self.ranks.is_main and not own.data.exists():
                self._prepare(number, config, self._merged(number, base, sources))
        reached = sft.train(config, own, self.tracker, self._stopping)
        clear_device_cache(garbage_collection=True)
        return reached.done

    def _prepare(self, number: int, config: SFTConfig, data: Sequence[Episode]) -> None:
        """Begin the run that trains on this data. What the untrained model does in evaluations is known already."""
        own = self.iteration(number).training
        self.tracker.say(f"Iteration {number} of {self.config.iterations}: training on {len(data)} episodes.")
        if not own.settings.exists():
            shutil.rmtree(own.path, ignore_errors=True)  # half of it may be there
            RunFolder.create(own.path, config, f"iteration {number}")
        for manner in MANNERS if number else ():
            own.save_evaluation(0, manner, self.folder.read_evaluation(0, manner) or [])
        own.save_data(data)

    def _merged(self, number: int, base: Sequence[Episode], sources: Iterable[Path]) -> list[Episode]:
        """What an iteration learns from, each episode once."""
        share = self.config.base if number else 1.0
        rng = np.random.default_rng([self.config.seed, number, _MERGING])
        chosen = sorted(rng.choice(len(base), round(share * len(base)), replace=False).tolist())
        kept = [episode for path in sources for episode in read_episodes(path)]
        merged = distinct([*(base[i] for i in chosen), *kept])
        if not merged:
            raise RunStopped(
                f"There is nothing to learn from in iteration {number}: none of the episodes in "
                f"{self.iteration(number).sampled} is kept, and `base` is {share:g}. Begin another run with a higher "
                "share of the base data, or with exploration.keep all."
            )
        return merged

    def _conclude(self, number: int, *, seconds: float) -> None:
        """Make what has come of an iteration the run's. The line of metrics, written last, says that all is done."""
        own, step = self.iteration(number).training, number + 1
        copies = {step: own.evaluated_steps(MANNERS[0])[-1]} | ({} if number else {0: 0})
        for manner in MANNERS:
            for here, there in copies.items():
                self.folder.save_evaluation(here, manner, own.read_evaluation(there, manner) or [])
        self.folder.model.unlink(missing_ok=True)
        self.folder.model.symlink_to(own.model.relative_to(self.folder.path))
        self.folder.log({"step": step, "iteration": number, **self._figures(number), "seconds": seconds})

    def _figures(self, number: int) -> dict[str, Any]:
        """What was played and learned from, and success in evaluations; of all worlds and of each."""
        own = self.iteration(number)
        merged, kept, sampled = list(read_episodes(own.training.data)), list[Episode](), list[Episode]()
        if number:
            kept, sampled = list(read_episodes(own.kept)), list(read_episodes(own.sampled))
        played = {manner: self.folder.read_evaluation(number + 1, manner) or [] for manner in MANNERS}

        def figures(world: str | None) -> dict[str, Any]:
            def chosen(episodes: Iterable[Episode]) -> list[EpisodeOutcome]:
                return [EpisodeOutcome.of(episode) for episode in episodes if world in (None, episode.env)]

            return {
                "sampled": episode_metrics(chosen(sampled)),
                "kept": len(chosen(kept)),
                "data": len(chosen(merged)),
                self.config.evaluation.split: success_metrics(
                    {manner: chosen(episodes) for manner, episodes in played.items()}
                ),
            }

        worlds = dict.fromkeys(episode.env for episodes in played.values() for episode in episodes)
        return {**figures(None), "worlds": {world: figures(world) for world in worlds}}


def worth_learning(sampled: Iterable[Episode], rule: Exploration) -> list[Episode]:
    """Those that are kept of what was played. Never one that was cut at the token budget: half a reply ends it."""
    good = [episode for episode in good_enough(sampled, rule) if episode.stop != "length"]
    by_task = defaultdict[tuple[str, str], list[Episode]](list)
    for episode in good:
        by_task[episode.env, episode.task_id].append(episode)
    ranked = (sorted(some, key=lambda episode: episode.score or 0.0, reverse=True) for some in by_task.values())
    return [episode for some in ranked for episode in some[: rule.most or None]]


def distinct(episodes: Iterable[Episode]) -> list[Episode]:
    """The episodes without those in which the same was seen and said as in an earlier one of the same task."""
    first: dict[Any, Episode] = {}
    for episode in episodes:
        first.setdefault(seen_and_said(episode), episode)
    return list(first.values())


def _retraining(config: AgentEvolConfig, folder: RunFolder, sources: Iterable[Path]) -> SFTConfig:
    """The run of supervised fine-tuning that each iteration consists of."""
    settings: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(SFTConfig)}
    model = str(folder.start) if config.model == "scratch" else config.model
    data = DataConfig(files=tuple(map(str, (folder.data, *sources))), keep="all")
    return replace(SFTConfig(**settings), model=model, data=data)
