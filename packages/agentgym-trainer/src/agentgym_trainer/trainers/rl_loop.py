"""The training loop of reinforcement learning; `RLLoop.step` is one step of it.

Everything drawn in step t depends on (seed, t) and the checkpoint alone, so a run that was killed resumes from its last
checkpoint exactly as if it had not been. With several processes, all of them draw the same tasks and each plays its
share; metrics and decisions are computed from what all of them played.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from agentgym_envs import EnvFault, Episode, Message, Policy
from agentgym_eval.util.errors import RunStopped
from numpy.typing import NDArray

from agentgym_trainer.algorithms import AdvantageOutput
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import StepOutcome, begun, next_stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.curriculum.task_sampler import remembered
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import EngineError
from agentgym_trainer.learner.finite_checks import listed, without_nonfinite
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.memory import peak_memory
from agentgym_trainer.plugins import PluginError, blaming
from agentgym_trainer.rollout.collector import RolloutCollector
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.failures import FailureLimit, TooManyFailed
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.play import seed_of
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.checkpoint_files import METRICS
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.diagnostics import Monitor
from agentgym_trainer.run.folder import Decoding, RunFolder
from agentgym_trainer.run.metrics import (
    batch_fill,
    cut_while_improving,
    evaluation_metrics,
    selection_means,
    success_by_task,
)
from agentgym_trainer.run.phase_timer import PhaseTimer
from agentgym_trainer.run.rollout_log import RolloutLogger, split_by_episode
from agentgym_trainer.stopping import Stopped
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.demonstrations import Demonstrations
from agentgym_trainer.tokens.trajectory import trajectory
from agentgym_trainer.trainers.auxiliary_loss import sft_term
from agentgym_trainer.trainers.critic_bootstrap import bootstrap_values
from agentgym_trainer.trainers.distillation import Distiller
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.logprob_check import PROBES, check_logprobs, last_contexts
from agentgym_trainer.trainers.metrics_line import metrics_line
from agentgym_trainer.trainers.rl_batch import Rollouts, StepBatch
from agentgym_trainer.trainers.setup import context_limit, engine_has_weights, load_weights, saves_in_background
from agentgym_trainer.trainers.task_dependence import task_dependence

_UPDATE, _PROBE = 1, 3  # parts of seeds; the collector uses 0 and evaluations use 2


class RLLoop:
    """Reinforcement learning from a given model."""

    def __init__(
        self,
        config: RLConfig,
        folder: RunFolder,
        worlds: Sequence[OpenEnvironment],
        learner: Learner,
        chat: Chat,
        console: RunConsole,
        rollouts: RolloutRunner,
        demonstrations: Demonstrations | None = None,
        expert: Policy | None = None,
    ) -> None:
        self.config = config
        self.algorithm = config.async_rollout.corrected(config.algorithm)
        self.folder = folder
        self.worlds = worlds
        self.learner = learner
        self.chat = chat
        self.console = console
        self.rollouts = rollouts
        self.demonstrations = demonstrations
        self.ranks = Ranks()
        self.checkpoints = Checkpoints(
            folder.checkpoints,
            keep=config.keep_checkpoints,
            say=console.say,
            minutes=config.save_minutes,
            background=saves_in_background(config, learner.accelerator),
        )
        self.collector = RolloutCollector(config, worlds, chat, rollouts, self.ranks, expert=expert)
        self.evaluator = Evaluator(config, folder, worlds, chat, console, rollouts)
        self.rollout_logger = RolloutLogger(config, folder, learner, chat, self.ranks)
        self.monitor = Monitor(config.warnings)
        self.distiller = Distiller(config, worlds, learner, chat)
        self._longest = context_limit(config, learner.policy).tokens
        self._failures = FailureLimit(config.max_failed)
        self._synced: int | None = None
        self._gap: float | None = None
        self._recent: list[Episode] = []
        self._counted = self._engine_usage()
        self._timer = PhaseTimer()

    def run(self, stopping: Callable[[], bool]) -> TrainingState:
        """Train from the last checkpoint, if there is one, to the last step.

        Args:
            stopping: Called after every step; if it returns True, the run is saved and ends early.

        Raises:
            EngineError: if the engine can't be brought back, or its log-probabilities disagree with the learner's.
            PluginError: if code of another package can't be used.
            TooManyFailed: if more episodes failed than `max_failed` allows.
            Stopped: if the check of `rollouts` ended the rollout under way. After this and the errors above, the run is
                saved, unless only one of several processes has the error.
            NotFinite: if the weights aren't finite, or too many optimizer steps in a row were skipped. Nothing is
                saved.
            RunStopped: if code of another package in the loss raised during an update. Nothing is saved.
            OSError: if a checkpoint can't be written; in the background, after a later step.
        """
        config, resumed = self.config, self.checkpoints.resume(self.learner)
        with blaming(config.horizon, doing="say how many turns episodes have"):
            state = resumed or TrainingState(stage=begun(config.horizon))
        with self.ranks.errors_together():
            if self.ranks.is_main:
                # The line of an update is written after its evaluation, which may have been interrupted.
                kept = self.checkpoints.at(state.step) / METRICS
                if message := self.folder.rewind(state.step - bool(state.learned), kept, evaluated=state.step):
                    self.console.say(message)
                self.folder.forget_rollouts(state.step)
                self.monitor.resume(self.folder.read_metrics())
        try:
            if not state.step:
                self.evaluate(0)
            stopped = self.ranks.any(stopping())
            while state.learned or (state.step < config.steps and not stopped):
                if not state.learned:
                    state = self.step(state)
                state = self.finish_step(state)
                self.checkpoints.settle()
                # Called once, so that a run never ends early without having been saved.
                stopped = self.ranks.any(stopping())
                is_best = state.best is not None and state.best.step == state.step
                due = state.step == config.steps or state.step % config.save_every == 0
                due = due or self.ranks.broadcast(self.checkpoints.overdue)
                if stopped or is_best or due:
                    self._save(state)
                    resumed = state
            self._finish_saving()
        except (EngineError, EnvFault, PluginError, TooManyFailed, Stopped) as error:
            if self.ranks.all_raised(error):  # else the others wait elsewhere until the launcher ends them
                # No update was under way, so the learner is at `state`.
                if state.step and state != resumed:
                    self._save(state)
                self._finish_saving()
            raise
        finally:
            self.checkpoints.wait()
            self.collector.close()
        return state

    def step(self, state: TrainingState) -> TrainingState:
        """Take one training step; `finish_step` evaluates and logs it."""
        self.sync_weights(state.step)  # the engine samples from the current policy
        rollouts = self.collect(state)  # `group_size` episodes of each of `tasks_per_step` tasks
        batch = self.make_batch(rollouts)  # token ids, loss mask, rollout log-probabilities, rewards
        batch = self.compute_logprobs(batch)  # old and reference log-probabilities, values: what the algorithm needs
        advantages = self.compute_advantages(batch, state.step)  # such as group-relative ones
        metrics = self.update(batch, advantages, rollouts, state.step)  # the clipped loss, in mini-batches
        return self.record_step(state, rollouts, metrics)

    def sync_weights(self, step: int) -> None:
        """Load the weights of this step into the engine, with empty caches, as in a run that was resumed."""
        if self._synced != step:
            with self._timer.phase("load"):
                # With asynchronous rollouts, the update changes them while the engine samples.
                weights = self.learner.weights(step, lasting=not self.config.async_rollout.max_staleness)
                load_weights(self.config, self.rollouts, weights, self.ranks)
                if engine_has_weights(self.config, self.learner.accelerator):
                    before = self._engine_usage()
                    self._gap = self._check_logprobs(step)
                    # In asynchronous rollouts the probe can't be told from the episodes sampled at the same time.
                    if not self.config.async_rollout.max_staleness:
                        self._counted += self._engine_usage() - before
            self._synced = step

    def collect(self, state: TrainingState) -> Rollouts:
        """Play the groups of this step.

        Raises:
            TooManyFailed: if more episodes failed than `max_failed` allows.
        """
        with self._timer.phase("rollout"):
            own, groups = self.collector.collect(state)
            self._sleep()
        self._recent = [episode for group in own for episode in group.episodes] or self._recent
        before, self._counted = self._counted, self._engine_usage()
        *tokens, busy = self._counted - before
        self._timer.add("engine", busy)
        totals = np.sum(self.ranks.gather([tokens]), axis=0).astype(int).tolist()
        usage: dict[str, int] = dict(zip(("prefilled", "reused", "generated"), totals, strict=True))
        doing = f"take note of step {state.step + 1}"
        with self.ranks.errors_together(), blaming(self.config.sampler, doing=doing):
            self._failures.count(episode for group in groups for episode in group.episodes)
            of_stage = [group for group in groups if group.stage == state.stage.number]
            sampler = remembered(self.config.sampler, state.sampler, success_by_task(of_stage))
        return Rollouts(own, groups, usage, sampler)

    def make_batch(self, rollouts: Rollouts) -> StepBatch:
        """The episodes that train, as tensors: all that didn't fail, of groups that are kept."""
        with self._timer.phase("logprobs"):
            kept = [(g, e) for g in rollouts.own if g.treatment == "keep" for e in g.usable]
            trajectories = [group.trajectory(episode, trajectory(episode)) for group, episode in kept]
            batch = make_batch(trajectories)
        return StepBatch(
            episodes=[episode for _, episode in kept],
            # Two groups of the same task, one of which was sampled ahead, remain two groups.
            keys=[(group.number, episode.sample) for group, episode in kept],
            in_loss=[each.in_loss for each in trajectories],
            batch=batch,
            tokens=batch.tokens,
        )

    def compute_logprobs(self, batch: StepBatch) -> StepBatch:
        """Add old and reference log-probabilities and values under the weights before the update, if needed."""
        with self._timer.phase("logprobs"):
            tokens = self.learner.compute_logprobs(batch.batch, self.algorithm)
            if self.config.truncation == "bootstrap":
                budgets = replace(self.config.generation, max_context=self._longest)
                value_E = bootstrap_values(self.learner, self.chat, batch.episodes, budgets)
                tokens = tokens.with_logprobs(bootstrap_E=value_E)
            return replace(batch, tokens=self.distiller.score(tokens, batch.batch))

    def compute_advantages(self, batch: StepBatch, step: int) -> AdvantageOutput:
        """The advantage of every completion token, and value targets where there is a critic."""
        doing = f"estimate advantages of step {step + 1}"
        with self._timer.phase("logprobs"):
            with self.ranks.errors_together(), blaming(self.algorithm, self.algorithm.advantages, doing=doing):
                output = self.algorithm.compute_advantages(batch.tokens, self.ranks.total)
            return self.distiller.advantages(output, batch.tokens, step)

    def update(self, batch: StepBatch, advantages: AdvantageOutput, rollouts: Rollouts, step: int) -> dict[str, Any]:
        """Update the weights. Returns metrics."""
        config = self.config
        with self._timer.phase("logprobs"):
            demonstrated = sft_term(self.demonstrations, self.learner, step, config.imitation.weight)
            labeled, label_metrics = self.distiller.labels(rollouts.own, step)
            dependence = self._task_dependence(step, rollouts)
        self._log_rollouts(batch, advantages, rollouts, step)
        # Labels fill the mini-batches: groups that are dropped keep theirs.
        scaled = config.scale_minibatches and labeled is None
        doing = f"take update {step + 1}; the last checkpoint is from before it"
        with self._timer.phase("update"), blaming(self.algorithm, doing=doing, error=RunStopped):
            metrics = self.learner.update(
                batch.batch,
                batch.tokens,
                advantages,
                self.algorithm,
                epochs=config.epochs,
                minibatches=config.minibatches,
                share=batch_fill(rollouts.groups, config) if scaled else 1.0,
                seed=seed_of(config.seed, step, _UPDATE),
                places=batch.keys,
                auxiliary=[term for term in (demonstrated, labeled) if term],
            )
        if skipped := metrics.get("skipped"):
            self.console.say(
                f"In step {step + 1}, {skipped:.0f} of the optimizer steps were skipped: values in the "
                f"{listed(self.learner.skips.causes)} weren't finite."
            )
        used = ("padding", "shared", "fill", "imbalance", "imbalance_dealt")
        packed = {name: metrics.pop(name) for name in used if name in metrics}
        lengths = zip(batch.batch.episodes, batch.batch.lengths, strict=True)
        read = sum(length for episode, length in lengths if batch.in_loss[episode])
        extra = {name: term for name, term in (("imitated", demonstrated), ("labeled", labeled)) if term}
        own = (sum(batch.in_loss), read, *(len(term.batch.ids_S) for term in extra.values()))
        trained, tokens, *more = np.sum(self.ranks.gather([own]), axis=0).tolist()
        counts = {"trained": tokens} | dict(zip(extra, more, strict=True))
        measured = dependence | advantages.metrics | label_metrics | metrics
        return {"trained": trained, "tokens": {**counts, **packed}, **measured}

    def record_step(self, state: TrainingState, rollouts: Rollouts, metrics: dict[str, Any]) -> TrainingState:
        """The state after an update. `learned` holds its metrics until `finish_step` logs them."""
        groups = rollouts.groups
        after = replace(
            state,
            step=state.step + 1,
            env_steps=state.env_steps + sum(episode.turns for group in groups for episode in group.episodes),
            sampler=rollouts.sampler,
            in_flight=self.collector.in_flight(),
        )
        worlds, seconds = [world.name for world in self.worlds], self._timer.take()
        line = metrics_line(after, rollouts, metrics, self.config, worlds=worlds, seconds=seconds, gap=self._gap)
        learned = {"cut": cut_while_improving(groups, state.stage.number), "line": without_nonfinite(line)}
        return replace(after, learned=learned)

    def finish_step(self, state: TrainingState) -> TrainingState:
        """Evaluate if it is due, log the step, and choose the horizon of the next one."""
        step, learned, settings = state.step, state.learned or {}, self.config.evaluation
        played = self.evaluate(step) if self.evaluator.is_due(step, self.config.steps) else {}
        line = learned["line"] | evaluation_metrics(played, settings)
        for name, metrics in line["worlds"].items():
            metrics |= evaluation_metrics(played, settings, name)
        for phase, seconds in self._timer.take().items():
            line["seconds"][phase] = line["seconds"].get(phase, 0.0) + seconds
        line["memory"] = peak_memory()
        if self.ranks.is_main:
            line["warnings"] = [asdict(warning) for warning in self.monitor.observe(line)]
            self.folder.log(line)
        self.console.step(line, self.config.steps)
        outcome = StepOutcome(selection_means(played["sampled"]) if played else None, learned["cut"])
        doing = f"say how many turns episodes have after step {step}"
        with self.ranks.errors_together(), blaming(self.config.horizon, doing=doing):
            stage = next_stage(self.config.horizon, state.stage, step, outcome)
        sampler = state.sampler if stage.number == state.stage.number else {}
        return replace(state, stage=stage, sampler=sampler, learned=None).evaluated(outcome.mean_success)

    def evaluate(self, step: int) -> dict[Decoding, list[EpisodeOutcome]]:
        """Play the held-out tasks, sampled as in training and greedily; results on disk are read instead."""
        with self._timer.phase("evaluation"):
            return self.evaluator.evaluate(step, lambda: self._evaluating(step))

    @contextmanager
    def _evaluating(self, step: int) -> Generator[None]:
        """Sample with the weights of this step, and don't count the engine's usage as training."""
        self.sync_weights(step)
        self.collector.settle()
        before = self._engine_usage()
        try:
            yield
            self._sleep()
        finally:
            self._counted += self._engine_usage() - before

    def _task_dependence(self, step: int, rollouts: Rollouts) -> dict[str, float]:
        """How much replies depend on their tasks, in the steps that measure it."""
        settings = self.config.warnings
        if not settings.template_every or step % settings.template_every:
            return {}
        tasks, longest = settings.template_tasks, self._longest
        return task_dependence(self.learner, self.ranks, rollouts.own, tasks=tasks, max_context=longest)

    def _log_rollouts(self, batch: StepBatch, advantages: AdvantageOutput, rollouts: Rollouts, step: int) -> None:
        """Write the step's episodes and tokens to the run folder, in the steps that keep them."""
        if self.rollout_logger.is_due(step + 1):
            with self._timer.phase("record"):
                by_episode = split_by_episode(advantages.advantages_N, batch.batch)
                trained = zip(batch.keys, by_episode, batch.in_loss, strict=True)
                kept = {key: values for key, values, in_loss in trained if in_loss}
                self.rollout_logger.record(step + 1, rollouts.own, rollouts.groups, kept)

    def _check_logprobs(self, step: int) -> float:
        """How far the engine's log-probabilities are from the learner's."""
        # Before anything was played, the first task ids serve as text.
        texts = self.worlds[0].tasks.train.ids[:PROBES]
        return check_logprobs(
            self.rollouts,
            self.learner,
            last_contexts(self._recent) or [self.chat.open((Message("user", text),)) for text in texts],
            ranks=self.ranks,
            temperature=self.config.generation.temperature,
            tolerance=self.config.engine.tolerance,
            seed=seed_of(self.config.seed, step, _PROBE),
        )

    def _sleep(self) -> None:
        """Free the engine's memory for the learner, unless the engine samples while the learner works. The contents of
        caches never influence what is sampled next.
        """
        if not self.config.async_rollout.max_staleness:
            self.ranks.gather([0])  # other processes may sample from the same server until here
            with self.ranks.errors_together():
                self._synced = None if self.rollouts.sleep() else self._synced
            self._synced = self.ranks.broadcast(self._synced)

    def _engine_usage(self) -> NDArray[np.float64]:
        """Tokens and seconds of the engine so far."""
        usage = self.rollouts.engine.usage
        return np.array([usage.prefilled, usage.reused, usage.generated, usage.busy])

    def _save(self, state: TrainingState) -> None:
        with self._timer.phase("checkpoint"):
            self.checkpoints.save(self.learner, self.chat.tokenizer, state, self.folder.metrics)

    def _finish_saving(self) -> None:
        with self._timer.phase("checkpoint"):
            self.checkpoints.finish()
