"""The training loop: collect, trajectories, batch, credit, update, and again with a slightly better player.

The one room where rollouts and the learner meet. Everything drawn at step t comes from (seed, t), so a run that was
killed goes on from its last checkpoint exactly as if it had not been.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, Literal

import gymnasium
import numpy as np
from agentgym_envs import Episode, Job, Task, play_many, text_env
from agentgym_eval.report import Report, report
from agentgym_eval.worlds import spread

from agentgym_trainer.batch import make_batch
from agentgym_trainer.chat import Chat
from agentgym_trainer.checkpoint import Checkpoints, Progress
from agentgym_trainer.config import Config
from agentgym_trainer.engines import Sampling
from agentgym_trainer.engines.transformers import TransformersEngine
from agentgym_trainer.learner import Learner
from agentgym_trainer.rollout import EnginePolicy
from agentgym_trainer.run_folder import RunFolder
from agentgym_trainer.tracking import Tracker
from agentgym_trainer.trajectory import trajectory

Manner = Literal["sampled", "greedy"]
MANNERS: tuple[Manner, ...] = ("sampled", "greedy")
_ROLLOUT, _UPDATE, _EVALUATION = range(3)


class Loop:
    """Reinforcement learning from a given start."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        envs: Sequence[gymnasium.Env[str, str]],
        learner: Learner,
        chat: Chat,
        tracker: Tracker,
    ) -> None:
        self.config = config
        self.folder = folder
        self.envs = envs
        self.learner = learner
        self.chat = chat
        self.tracker = tracker
        self.checkpoints = Checkpoints(folder.checkpoints, keep=config.keep)
        model = learner.accelerator.unwrap_model(learner.model)
        self.engine = TransformersEngine(model, end_id=chat.end_id, pad_id=chat.pad_id)
        self.tasks = text_env(envs[0]).tasks

    def run(self, stopping: Callable[[], bool]) -> Progress:
        """Train from the last checkpoint, if there is one, to the last step.

        Args:
            stopping: Asked after every step; when it says so, the run is saved and ends early.
        """
        config, latest = self.config, self.checkpoints.latest()
        progress = self.checkpoints.load(latest, self.learner) if latest else Progress()
        self.engine.version = progress.step
        self.folder.rewind(progress.step)
        if not progress.step:
            self.evaluate(progress)
        stopped = stopping()
        while progress.step < config.steps and not stopped:
            progress = self.step(progress)
            last = progress.step == config.steps
            every = config.evaluation.every
            if last or (every and progress.step % every == 0):
                self.evaluate(progress)
            # Asked once, so that a run never ends early without having been saved.
            stopped = stopping()
            if last or progress.step % config.save_every == 0 or stopped:
                self.checkpoints.save(self.learner, self.chat.tokenizer, progress)
        return progress

    def step(self, progress: Progress) -> Progress:
        """One update from new episodes."""
        began = time.perf_counter()
        horizon = self.config.horizon.at(progress.step)
        episodes = self.collect(progress.step, horizon)
        played = time.perf_counter()
        metrics = self.update(progress.step, episodes)
        done = time.perf_counter()
        progress = Progress(progress.step + 1, progress.env_steps + sum(len(e.turns) for e in episodes))
        self.engine.version = progress.step
        line = {
            "step": progress.step,
            "env_steps": progress.env_steps,
            "horizon": horizon,
            **_summary(episodes),
            **metrics,
            "seconds": {"rollout": played - began, "update": done - played},
        }
        self.folder.log(line)
        self.tracker.step(line)
        return progress

    def collect(self, step: int, horizon: int) -> list[Episode]:
        """Episodes on this step's training tasks, `samples` of each, in the order of the tasks."""
        rng = np.random.default_rng([self.config.seed, step, _ROLLOUT])
        tasks = self.tasks.train
        chosen = rng.choice(len(tasks), self.config.tasks, replace=len(tasks) < self.config.tasks)
        jobs = _jobs([tasks[int(i)] for i in chosen], self.config.samples, seed=int(rng.integers(2**62)))
        return self._play(jobs, horizon, self.config.generation.temperature)

    def update(self, step: int, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Credit and one update of the weights. Failed episodes stay out."""
        config = self.config
        kept = [e for e in episodes if not e.failed and (config.train_cut or e.stop != "length")]
        if not kept:
            return {"trained": 0}
        trajectories = [trajectory(episode) for episode in kept]
        batch = make_batch(trajectories, pad_id=self.chat.pad_id, layout=config.layout)
        credit = config.algorithm.credit(batch.rewards_EK, batch.played_EK, batch.group_E)
        learned = self.learner.update(
            batch,
            config.algorithm,
            advantage_EK=credit.advantage_EK,
            trains_E=credit.trains_E,
            epochs=config.epochs,
            minibatches=config.minibatches,
            seed=_seed(config.seed, step, _UPDATE),
        )
        return {
            "trained": int(credit.trains_E.sum()),
            "groups": {"all": int(batch.group_E.max()) + 1, "lonely": credit.lonely, "flat": credit.flat},
            "segments": sum(len(t.segments) for t in trajectories),
            "tokens": {"seen": batch.seen_tokens, "said": batch.said_tokens, "padding": batch.padding_share},
            **learned,
        }

    def evaluate(self, progress: Progress) -> dict[Manner, Report]:
        """Play held-out tasks at the training temperature and greedily; what was played before is read back."""
        return {manner: self._evaluate(progress.step, manner) for manner in MANNERS}

    def _evaluate(self, step: int, manner: Manner) -> Report:
        config = self.config
        ks, samples = (config.evaluation.ks, config.evaluation.samples) if manner == "sampled" else ((1,), 1)
        episodes = self.folder.read_evaluation(step, manner)
        if episodes is None:
            tasks = spread(self.tasks.test, min(config.evaluation.tasks or len(self.tasks.test), len(self.tasks.test)))
            temperature = config.generation.temperature if manner == "sampled" else 0.0
            jobs = _jobs(tasks, samples, seed=_seed(config.seed, step, _EVALUATION))
            episodes = self._play(jobs, config.horizon.longest, temperature)
            self.folder.save_evaluation(step, manner, episodes)
        result = report(episodes, ks=ks, seed=config.seed)
        self.tracker.evaluation(step, manner, result)
        return result

    def _play(self, jobs: Sequence[Job], horizon: int, temperature: float) -> list[Episode]:
        """Play `jobs` and return their episodes in the same order, whichever ended first."""
        generation = self.config.generation
        sampling = Sampling(temperature, generation.max_tokens, generation.max_context)
        policy = EnginePolicy(self.engine, self.chat, sampling, name=self.config.model)
        episodes = list(play_many(self.envs, policy, jobs, horizon=horizon))
        policy.release()
        place = {(job.task_id, job.sample): i for i, job in enumerate(jobs)}
        return sorted(episodes, key=lambda episode: place[episode.task_id, episode.sample])


def _jobs(tasks: Sequence[Task], samples: int, *, seed: int) -> list[Job]:
    """`samples` episodes of each task. A task that was drawn twice gets other samples, not the same ones again."""
    drawn = Counter[str]()
    jobs: list[Job] = []
    for task in tasks:
        jobs += [Job(task.id, drawn[task.id] + sample, seed) for sample in range(samples)]
        drawn[task.id] += samples
    return jobs


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 2)


def _summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Means over the episodes that did not fail; None where all did."""
    scored = [episode for episode in episodes if not episode.failed]

    def mean(figure: Callable[[Episode], float]) -> float | None:
        return fmean(map(figure, scored)) if scored else None

    return {
        "success": mean(lambda episode: bool(episode.success)),
        "score": mean(lambda episode: episode.score or 0.0),
        "turns": mean(lambda episode: len(episode.turns)),
        "valid": mean(lambda episode: fmean(turn.valid for turn in episode.turns)),
        "failed": len(episodes) - len(scored),
        "stops": dict(Counter(episode.stop for episode in episodes)),
    }
