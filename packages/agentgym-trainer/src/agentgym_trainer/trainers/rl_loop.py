"""The training loop: load, collect, trajectories, batch, assess, credit, update; again, with a slightly better player.

The one room where rollouts and the learner meet. Everything drawn at step t comes from (seed, t) and from what lies in
the checkpoint, so a run that was killed goes on from its last checkpoint exactly as if it had not been. With many
processes all draw the same and each plays its share; figures and decisions are made of what all played.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from accelerate import Accelerator
from agentgym_envs import Episode, Message
from agentgym_eval.util.errors import RunStopped
from numpy.typing import NDArray

from agentgym_trainer.algorithms import Imitation
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import StepOutcome, begun, next_stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.curriculum.task_sampler import remembered
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import EngineError
from agentgym_trainer.learner.finite_checks import listed, without_nonfinite
from agentgym_trainer.learner.learner import Learner, LossTerm
from agentgym_trainer.plugins import PluginError, blaming
from agentgym_trainer.rollout.async_metrics import length_metrics, staleness_metrics
from agentgym_trainer.rollout.collector import RolloutCollector
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.failures import FailureLimit, TooManyFailed
from agentgym_trainer.rollout.groups import EpisodeGroup, EpisodeOutcome, GroupOutcome
from agentgym_trainer.rollout.play import seed_of
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.checkpoint import METRICS, Checkpoints
from agentgym_trainer.run.console import PHASES, RunConsole
from agentgym_trainer.run.diagnostics import Monitor
from agentgym_trainer.run.folder import Manner, RunFolder
from agentgym_trainer.run.metrics import (
    batch_fill,
    cut_while_improving,
    step_metrics,
    success_by_task,
    success_metrics,
    task_means,
)
from agentgym_trainer.run.rollout_log import RolloutLogger, split_by_episode
from agentgym_trainer.stopping import Stopped
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.demonstrations import Demonstrations
from agentgym_trainer.tokens.trajectory import trajectory
from agentgym_trainer.trainers.critic_bootstrap import bootstrap_values
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.logprob_check import PROBES, check_logprobs, last_contexts
from agentgym_trainer.trainers.setup import has_own_weights
from agentgym_trainer.trainers.task_dependence import task_dependence

_UPDATE, _PROBE = 1, 3  # beside what the arena draws, 0, and what is held out, 2


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What a step has to learn from."""

    own: list[EpisodeGroup]
    """The groups that this process played."""
    groups: list[GroupOutcome]
    """What came of those of all processes: first of those drawn first, then of those in the place of others."""
    tokens: dict[str, int]
    """How many of them the engines read, found in their caches and sampled, over all processes."""


class RLLoop:
    """Reinforcement learning from a given start."""

    def __init__(
        self,
        config: RLConfig,
        folder: RunFolder,
        worlds: Sequence[OpenEnvironment],
        learner: Learner,
        chat: Chat,
        tracker: RunConsole,
        rollouts: RolloutRunner,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.worlds = worlds
        self.learner = learner
        self.chat = chat
        self.tracker = tracker
        self.rollouts = rollouts
        self.demonstrations = demonstrations
        self.ranks = Ranks()
        minutes, say = config.save_minutes, tracker.say
        self.checkpoints = Checkpoints(folder.checkpoints, keep=config.keep_checkpoints, minutes=minutes, say=say)
        self.arena = RolloutCollector(config, worlds, chat, rollouts, self.ranks)
        self.held_out = Evaluator(config, folder, worlds, chat, tracker, rollouts)
        self.recorder = RolloutLogger(config, folder, learner, chat, self.ranks)
        self._failed = FailureLimit(config.max_failed)
        self.monitor = Monitor(config.warnings)
        self._loaded: int | None = None
        self._gap: float | None = None
        self._recent: list[Episode] = []
        self._known = self._used()
        self._seconds = defaultdict[str, float](float)

    def run(self, stopping: Callable[[], bool]) -> TrainingState:
        """Train from the last checkpoint, if there is one, to the last step.

        Args:
            stopping: Asked after every step; when it says so, the run is saved and ends early.

        Raises:
            EngineError: when the engine can't be brought back, or doesn't sample from what is trained. What is done is
                saved.
            ExtensionError: when the code of another package can't be used. What is done is saved.
            TooManyFailed: when more episodes failed than the configuration bears. What is done is saved.
            NotFinite: when the weights aren't finite, or too many optimizer steps in a row were skipped. Nothing is
                saved.
            RunStopped: when the code of another package is in the loss, where an update was under way.
            Stopped: when the check of `rollouts` has ended what was being played. What is done is saved.
        """
        config, resumed = self.config, self.checkpoints.resume(self.learner)
        with blaming(config.horizon, doing="say how many turns episodes have"):
            progress = resumed or TrainingState(stage=begun(config.horizon))
        with self.ranks.errors_together():
            if self.ranks.is_main:
                # The line of an update of which an evaluation is still to come is written once that is played.
                kept = self.checkpoints.at(progress.step) / METRICS
                if told := self.folder.rewind(progress.step - bool(progress.learned), kept):
                    self.tracker.say(told)
                self.folder.forget_rollouts(progress.step)
                self.monitor.resume(self.folder.read_metrics())
        try:
            if not progress.step:
                self.evaluate(0)
            stopped = self.ranks.any(stopping())
            while progress.learned or (progress.step < config.steps and not stopped):
                progress = progress if progress.learned else self.learn(progress)
                progress = self.conclude(progress)
                # Asked once, so that a run never ends early without having been saved.
                stopped = self.ranks.any(stopping())
                is_best = progress.best is not None and progress.best.step == progress.step
                due = self._is_due(progress.step, config.save_every) or self.ranks.broadcast(self.checkpoints.overdue)
                if stopped or is_best or due:
                    self._save(progress)
                    resumed = progress
        except (EngineError, PluginError, TooManyFailed, Stopped):
            # The learner is where `progress` is: no update was under way.
            if progress.step and progress != resumed:
                self._save(progress)
            raise
        finally:
            self.arena.close()
        return progress

    def learn(self, progress: TrainingState) -> TrainingState:
        """One update from new episodes. What hangs on an evaluation is still to come."""
        config = self.config
        collected = self.collect(progress)
        groups = collected.groups
        with blaming(config.sampler, doing=f"take note of step {progress.step + 1}"):
            sampler = remembered(config.sampler, progress.sampler, success_by_task(groups))
        metrics = self.update(progress.step, collected)
        after = replace(
            progress,
            step=progress.step + 1,
            env_steps=progress.env_steps + sum(episode.turns for group in groups for episode in group.episodes),
            sampler=sampler,
            ahead=self.arena.under_way(),
        )
        line = self._line(after, collected, metrics)
        return replace(after, learned={"cut": cut_while_improving(groups), "line": without_nonfinite(line)})

    def conclude(self, progress: TrainingState) -> TrainingState:
        """An evaluation if it is due, the line of the step, and where the run stands then."""
        step, learned, split = progress.step, progress.learned or {}, self.config.evaluation.split
        played = self.evaluate(step) if self.held_out.is_due(step, self.config.steps) else {}
        success = success_metrics(played)
        line = learned["line"] | {split: success}
        for name, figures in line["worlds"].items():
            figures[split] = success_metrics(played, name)
        for phase, seconds in self._taken().items():
            line["seconds"][phase] = line["seconds"].get(phase, 0.0) + seconds
        if self.ranks.is_main:
            line["warnings"] = [asdict(warning) for warning in self.monitor.observe(line)]
            self.folder.log(line)
        self.tracker.step(line, self.config.steps)
        seen = StepOutcome(task_means(played["sampled"]) if played else None, learned["cut"])
        with blaming(self.config.horizon, doing=f"say how many turns episodes have after step {step}"):
            stage = next_stage(self.config.horizon, progress.stage, step, seen)
        return replace(progress, stage=stage, learned=None).evaluated(success.get("sampled"))

    def collect(self, progress: TrainingState) -> StepBatch:
        """The groups of this step, and what it took to play them."""
        self._load(progress.step)
        with self._timed("rollout"):
            own, groups = self.arena.collect(progress)
            self._rest()
        self._failed.count(episode for group in groups for episode in group.episodes)
        self._recent = [episode for group in own for episode in group.episodes] or self._recent
        before, self._known = self._known, self._used()
        *tokens, busy = self._known - before
        self._seconds["engine"] += busy
        totals = np.sum(self.ranks.gather([tokens]), axis=0).astype(int).tolist()
        return StepBatch(own, groups, dict(zip(("prefilled", "reused", "generated"), totals, strict=True)))

    def update(self, step: int, collected: StepBatch) -> dict[str, Any]:
        """Credit and one update of the weights."""
        config, algorithm = self.config, self.config.async_rollout.corrected(self.config.algorithm)
        groups = [group for group in collected.own if group.treatment == "keep"]
        usable = [(group, episode) for group in groups for episode in group.usable]
        places = [(group.number, episode.sample) for group, episode in usable]
        with self._timed("logprobs"):
            # Two groups of the same task, of which one was played ahead, are two groups.
            made = [group.trajectory(episode, trajectory(episode)) for group, episode in usable]
            batch, in_loss = make_batch(made), [each.in_loss for each in made]
            experience = self.learner.compute_logprobs(batch, algorithm)
            if config.truncation == "bootstrap":
                episodes = [episode for _, episode in usable]
                value_E = bootstrap_values(self.learner, self.chat, episodes, config.generation)
                experience = experience.with_logprobs(bootstrap_E=value_E)
            with blaming(algorithm, algorithm.advantages, doing=f"estimate advantages of step {step + 1}"):
                credit = algorithm.compute_advantages(experience, self.learner.total)
            beside = self._beside(step)
            dependence = self._dependence(step, collected)
        if self.recorder.is_due(step + 1):
            with self._timed("record"):
                of_episode = zip(places, split_by_episode(credit.advantages_N, batch), in_loss, strict=True)
                advantages = {place: own for place, own, trains in of_episode if trains}
                self.recorder.record(step + 1, collected.own, collected.groups, advantages)
        doing = f"take update {step + 1}; the last checkpoint is from before it"
        with self._timed("update"), blaming(algorithm, doing=doing, error=RunStopped):
            learned = self.learner.update(
                batch,
                experience,
                credit,
                algorithm,
                epochs=config.epochs,
                minibatches=config.minibatches,
                share=batch_fill(collected.groups, config) if config.scale_minibatches else 1.0,
                seed=seed_of(config.seed, step, _UPDATE),
                places=places,
                auxiliary=beside,
            )
        if skipped := learned.get("skipped"):
            self.tracker.say(
                f"In step {step + 1}, {skipped:.0f} of the optimizer steps were skipped: values in the "
                f"{listed(self.learner.skips.causes)} weren't finite."
            )
        packed = {name: learned.pop(name) for name in ("padding", "fill") if name in learned}
        read = sum(length for e, length in zip(batch.episodes, batch.lengths, strict=True) if in_loss[e])
        own = (sum(in_loss), read, len(beside.batch.ids_S) if beside else 0)
        trained, tokens, imitated = np.sum(self.ranks.gather([own]), axis=0).tolist()
        counts = {"trained": tokens} | ({"imitated": imitated} if beside else {})
        return {"trained": trained, "tokens": {**counts, **packed}, **dependence, **credit.metrics, **learned}

    def _dependence(self, step: int, collected: StepBatch) -> dict[str, float]:
        """How much replies depend on their tasks, in steps in which that is measured."""
        settings = self.config.warnings
        if not settings.template_every or step % settings.template_every:
            return {}
        return task_dependence(
            self.learner,
            self.ranks,
            collected.own,
            tasks=settings.template_tasks,
            max_context=self.config.generation.max_context,
        )

    def _beside(self, step: int) -> LossTerm | None:
        """What is imitated beside acting."""
        if self.demonstrations is None:
            return None
        own, algorithm = self.demonstrations.of_step(step), Imitation()
        batch = make_batch([made for _, made in own])
        experience = self.learner.compute_logprobs(batch, algorithm)
        return LossTerm(
            batch,
            experience,
            algorithm.compute_advantages(experience, self.learner.total),
            algorithm,
            places=[place for place, _ in own],
            weight=self.config.imitation.weight,
            name="sft/",
        )

    def evaluate(self, step: int) -> dict[Manner, list[EpisodeOutcome]]:
        """Play the tasks of evaluations as in training and greedily; what was played before is read back."""
        with self._timed("evaluation"):
            return self.held_out.evaluate(step, lambda: self._playing(step))

    @contextmanager
    def _playing(self, step: int) -> Generator[None]:
        """Whatever the engine does meanwhile, it does with the weights of this step, and for no training."""
        self._load(step)
        self.arena.settle()
        before = self._used()
        yield
        self._rest()
        self._known += self._used() - before

    def _load(self, step: int) -> None:
        """Have the engine sample with the weights of this step. Caches are empty then, as in a run that was resumed."""
        if self._loaded != step:
            with self._timed("load"):
                # An engine that dies while the learner works gets them again.
                weights = self.learner.weights(step, copied=self.config.async_rollout.max_staleness > 0)
                with self.ranks.errors_together():
                    self.rollouts.load(weights)
                if samples_apart(self.config, self.learner.accelerator):
                    before = self._used()
                    self._gap = self._compare(step)
                    # Of what is played at the same time, the probe is a small part, and not to be told from it.
                    if not self.config.async_rollout.max_staleness:
                        self._known += self._used() - before
            self._loaded = step

    def _compare(self, step: int) -> float:
        """How far the engine's log-probabilities are from the learner's."""
        # Before anything was played, any words will do.
        words = self.worlds[0].tasks.train.ids[:PROBES]
        return check_logprobs(
            self.rollouts,
            self.learner,
            last_contexts(self._recent) or [self.chat.open((Message("user", some),)) for some in words],
            ranks=self.ranks,
            temperature=self.config.generation.temperature,
            tolerance=self.config.engine.tolerance,
            seed=seed_of(self.config.seed, step, _PROBE),
        )

    def _rest(self) -> None:
        """Make room for the learner. What caches hold must not show in what is sampled next. An engine that is to work
        while the learner does has its room.
        """
        if not self.config.async_rollout.max_staleness:
            with self.ranks.errors_together():
                self.rollouts.sleep()

    def _used(self) -> NDArray[np.float64]:
        """What the engine has done so far."""
        usage = self.rollouts.engine.usage
        return np.array([usage.prefilled, usage.reused, usage.generated, usage.busy])

    def _save(self, progress: TrainingState) -> None:
        with self._timed("checkpoint"):
            self.checkpoints.save(self.learner, self.chat.tokenizer, progress, self.folder.metrics)

    def _is_due(self, step: int, every: int) -> bool:
        """Whether what is done every so many steps (never, when 0) and after the last one is done after this one."""
        return step == self.config.steps or (every > 0 and step % every == 0)

    @contextmanager
    def _timed(self, phase: str) -> Generator[None]:
        """Count the seconds of a phase, without those of phases within it."""
        began, within = time.perf_counter(), sum(self._seconds.values())
        yield
        within = sum(self._seconds.values()) - within
        self._seconds[phase] += time.perf_counter() - began - within

    def _taken(self) -> dict[str, float]:
        """Seconds of each phase since this was last asked."""
        seconds, self._seconds = self._seconds, defaultdict[str, float](float)
        return dict(seconds)

    def _line(self, progress: TrainingState, collected: StepBatch, metrics: dict[str, Any]) -> dict[str, Any]:
        """The step's line, without what is held out. What the checkpoint took is that of the step before: the step's
        own is still to come.
        """
        stage, seconds = progress.stage, self._taken()
        figures = step_metrics(collected.groups, [world.name for world in self.worlds])
        tokens = figures["tokens"] | collected.tokens | metrics.pop("tokens")
        return {
            "step": progress.step,
            "env_steps": progress.env_steps,
            "horizon": stage.turns,
            "stage": {"number": stage.number, "since": stage.since, "why": stage.reason},
            **figures,
            "staleness": staleness_metrics(
                collected.groups, progress.step - 1, self.config.async_rollout.max_staleness
            ),
            "lengths": length_metrics(collected.groups),
            **({} if self._gap is None else {"logprob_check_gap": self._gap}),
            "tokens": tokens,
            **metrics,
            "seconds": seconds,
            "tokens_per_s": tokens["total"] / sum(seconds.get(name, 0.0) for name in PHASES),
        }


def samples_apart(config: RLConfig, accelerator: Accelerator) -> bool:
    """Whether the engine samples from weights of its own: a module can't train and be sampled from at once."""
    return config.async_rollout.max_staleness > 0 or has_own_weights(config, accelerator)
