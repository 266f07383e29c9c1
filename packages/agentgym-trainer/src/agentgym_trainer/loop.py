"""The training loop: collect, trajectories, batch, assess, credit, update, and again with a slightly better player.

The one room where rollouts and the learner meet. Everything drawn at step t comes from (seed, t) and from what lies in
the checkpoint, so a run that was killed goes on from its last checkpoint exactly as if it had not been.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from agentgym_envs import Episode, Task
from agentgym_eval.report import report
from agentgym_eval.worlds import spread

from agentgym_trainer.algorithms.groups import Kind
from agentgym_trainer.batch import make_batch
from agentgym_trainer.chat import Chat
from agentgym_trainer.checkpoint import Checkpoints, Progress
from agentgym_trainer.config import Config
from agentgym_trainer.engines import Sampling
from agentgym_trainer.engines.transformers import TransformersEngine
from agentgym_trainer.figures import Group, cut_while_improving, episode_figures, success_rate, world_figures
from agentgym_trainer.horizon import Seen, Stage
from agentgym_trainer.learner import Learner
from agentgym_trainer.rollout import EnginePolicy
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.sampler import apportion, draw
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.trajectory import trajectory
from agentgym_trainer.worlds import OpenWorld

Manner = Literal["sampled", "greedy"]
MANNERS: tuple[Manner, ...] = ("sampled", "greedy")
_ROLLOUT, _UPDATE, _EVALUATION = range(3)
_LEARNING = ("rollout", "assess", "update")


class Loop:
    """Reinforcement learning from a given start."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        worlds: Sequence[OpenWorld],
        learner: Learner,
        chat: Chat,
        tracker: Tracker,
    ) -> None:
        self.config = config
        self.folder = folder
        self.worlds = worlds
        self.learner = learner
        self.chat = chat
        self.tracker = tracker
        self.checkpoints = Checkpoints(folder.checkpoints, keep=config.keep, say=tracker.say)
        self.engine = TransformersEngine(learner.policy, end_id=chat.end_id, pad_id=chat.pad_id)
        self._seconds = defaultdict[str, float](float)

    def run(self, stopping: Callable[[], bool]) -> Progress:
        """Train from the last checkpoint, if there is one, to the last step.

        Args:
            stopping: Asked after every step; when it says so, the run is saved and ends early.
        """
        config = self.config
        progress = self.checkpoints.resume(self.learner) or Progress(stage=config.horizon.begin())
        self.engine.version = progress.step
        self.folder.rewind(progress.step)
        if not progress.step:
            self.evaluate(0)
        stopped = stopping()
        while progress.step < config.steps and not stopped:
            progress = self.step(progress)
            # Asked once, so that a run never ends early without having been saved.
            stopped = stopping()
            is_best = progress.best is not None and progress.best.step == progress.step
            if stopped or is_best or self._is_due(progress.step, config.save_every):
                with self._timed("checkpoint"):
                    self.checkpoints.save(self.learner, self.chat.tokenizer, progress)
        return progress

    def step(self, progress: Progress) -> Progress:
        """One update from new episodes, an evaluation if it is due, and where the run stands then."""
        config, begun = self.config, progress.stage
        groups = self.collect(progress)
        metrics = self.update(progress.step, [group for group in groups if group.treatment == "keep"])
        success = {group.task: mean for group in groups if (mean := success_rate(group.episodes)) is not None}
        progress = replace(
            progress,
            step=progress.step + 1,
            env_steps=progress.env_steps + sum(len(e.turns) for group in groups for e in group.episodes),
            sampler=config.sampler.after(progress.sampler, success),
        )
        self.engine.version = progress.step
        held_out = self.evaluate(progress.step) if self._is_due(progress.step, config.evaluation.every) else {}
        tested = success_rate(held_out["sampled"]) if held_out else None
        seen = Seen(tested, cut_while_improving(groups))
        progress = replace(progress, stage=config.horizon.after(begun, progress.step, seen)).evaluated(tested)
        self._log(progress, begun, groups, metrics, held_out)
        return progress

    def collect(self, progress: Progress) -> list[Group]:
        """The groups of this step: those drawn first, and those played in the place of groups to be resampled."""
        config, groups = self.config, list[Group]()
        rng = np.random.default_rng([config.seed, progress.step, _ROLLOUT])
        wanted = apportion(config.tasks, [world.weight for world in self.worlds], rng)
        with self._timed("rollout"):
            for _ in range(config.algorithm.groups.rounds + 1):
                for i, world in enumerate(self.worlds):
                    fresh = self._play_groups(world, wanted[i], progress, groups, rng)
                    wanted[i] = sum(group.treatment == "resample" for group in fresh)
                    groups += fresh
        return groups

    def _play_groups(
        self, world: OpenWorld, count: int, progress: Progress, before: Sequence[Group], rng: np.random.Generator
    ) -> list[Group]:
        """`count` training tasks of a world, none of which was played `before` in this step."""
        config, tasks = self.config, world.tasks.train
        without = {group.task for group in before if group.world == world.name}
        chosen = draw(config.sampler, tasks.ids, count, state=progress.sampler, rng=rng, without=without)
        played = self._play(
            world,
            [tasks[i] for i in chosen],
            samples=config.samples,
            seed=int(rng.integers(2**62)),
            horizon=progress.stage.turns,
            temperature=config.generation.temperature,
        )
        rules = config.algorithm.groups
        return [Group.judged(episodes, rules, train_cut=config.train_cut) for episodes in played]

    def update(self, step: int, groups: Sequence[Group]) -> dict[str, Any]:
        """Credit and one update of the weights."""
        config, algorithm = self.config, self.config.algorithm
        with self._timed("assess"):
            batch = make_batch([trajectory(episode) for group in groups for episode in group.usable])
            experience = self.learner.assess(batch, algorithm)
            credit = algorithm.credit(experience, self.learner.total)
        with self._timed("update"):
            learned = self.learner.update(
                batch,
                experience,
                credit,
                algorithm,
                epochs=config.epochs,
                minibatches=config.minibatches,
                seed=_seed(config.seed, step, _UPDATE),
            )
        packed = {name: learned.pop(name) for name in ("padding", "fill") if name in learned}
        return {
            "trained": len(experience.group_E),
            "segments": len(batch.episodes),
            "tokens": {"trained": len(batch.ids_S), **packed},
            **credit.metrics,
            **learned,
        }

    def evaluate(self, step: int) -> dict[Manner, list[Episode]]:
        """Play held-out tasks at the training temperature and greedily; what was played before is read back."""
        played: dict[Manner, list[Episode]] = {}
        with self._timed("evaluation"):
            for manner in MANNERS:
                played[manner] = self._held_out(step, manner)
                ks = self.config.evaluation.ks if manner == "sampled" else (1,)
                self.tracker.evaluation(step, manner, report(played[manner], ks=ks, seed=self.config.seed))
        return played

    def _held_out(self, step: int, manner: Manner) -> list[Episode]:
        config = self.config
        episodes = self.folder.read_evaluation(step, manner)
        if episodes is None:
            episodes = []
            for world in self.worlds:
                tasks = world.tasks.test
                groups = self._play(
                    world,
                    spread(tasks, min(config.evaluation.tasks or len(tasks), len(tasks))),
                    samples=config.evaluation.samples if manner == "sampled" else 1,
                    seed=_seed(config.seed, step, _EVALUATION),
                    horizon=config.horizon.longest,
                    temperature=config.generation.temperature if manner == "sampled" else 0.0,
                )
                episodes += itertools.chain.from_iterable(groups)
            self.folder.save_evaluation(step, manner, episodes)
        return episodes

    def _play(
        self, world: OpenWorld, tasks: Sequence[Task], *, samples: int, seed: int, horizon: int, temperature: float
    ) -> list[list[Episode]]:
        """The episodes of each task, in the order of the tasks and samples, whichever ended first."""
        generation = self.config.generation
        sampling = Sampling(temperature, generation.max_tokens, generation.max_context)
        policy = EnginePolicy(self.engine, self.chat, sampling, name=self.config.model)
        played: dict[str, list[Episode]] = {task.id: [] for task in tasks}
        # What is sampled in the precision that is trained in needs no correction.
        with self.learner.accelerator.autocast():
            for episode in world.play(policy, tasks, samples=samples, seed=seed, horizon=horizon):
                played[episode.task_id].append(episode)
        policy.release()
        return [sorted(episodes, key=lambda episode: episode.sample) for episodes in played.values()]

    def _is_due(self, step: int, every: int) -> bool:
        """Whether what is done every so many steps (never, when 0) and after the last one is done after this one."""
        return step == self.config.steps or (every > 0 and step % every == 0)

    @contextmanager
    def _timed(self, phase: str) -> Generator[None]:
        began = time.perf_counter()
        yield
        self._seconds[phase] += time.perf_counter() - began

    def _log(
        self,
        progress: Progress,
        stage: Stage,
        groups: Sequence[Group],
        metrics: dict[str, Any],
        held_out: dict[Manner, list[Episode]],
    ) -> None:
        """Write this step's line. What the checkpoint took is that of the step before: this one's is still to come."""
        seconds, self._seconds = self._seconds, defaultdict[str, float](float)
        kinds = Counter(group.kind for group in groups)
        summary = episode_figures([episode for group in groups for episode in group.episodes])
        tokens = summary["tokens"] | metrics.pop("tokens")
        line = {
            "step": progress.step,
            "env_steps": progress.env_steps,
            "horizon": stage.turns,
            "stage": {"number": stage.number, "since": stage.since, "why": stage.why},
            **summary,
            "worlds": {world.name: world_figures(world.name, groups, held_out) for world in self.worlds},
            "groups": {"all": len(groups)} | {kind: kinds[kind] for kind in get_args(Kind)},
            "tokens": tokens,
            **metrics,
            "held_out": {manner: success_rate(episodes) for manner, episodes in held_out.items()},
            "seconds": dict(seconds),
            "tokens_per_s": tokens["seen"] / sum(seconds[name] for name in _LEARNING),
        }
        self.folder.log(line)
        self.tracker.step(line)


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 2)
