"""Runs that train on data with one of TRL's trainers (SFT, DPO).

TRL's trainer updates the weights. This module adds evaluations before, during and after training, checkpoints that
survive a killed process, metrics, and the export of the final model.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from agentgym_envs import EnvFault, Episode
from agentgym_eval.util.errors import UsageError
from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentgym_trainer.config import OfflineConfig
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import Best, Reached, TrainingState
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.base import EngineError
from agentgym_trainer.learner.finite_checks import Skips, check_weights, listed
from agentgym_trainer.models.load import check_model, load_model, with_lora
from agentgym_trainer.models.memory import peak_memory
from agentgym_trainer.models.weights import weights_of
from agentgym_trainer.planning.engine_support import check_engine_model
from agentgym_trainer.planning.report import check_memory
from agentgym_trainer.planning.sharding import check_sharding
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.failures import TooManyFailed
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.checkpoint_files import METRICS
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.metrics import evaluation_metrics, selection_success
from agentgym_trainer.stopping import Stopped, Stopping
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.model_setup import export_model, make_start, makes_start, policy_dtype
from agentgym_trainer.trainers.setup import (
    has_own_weights,
    is_sharded,
    load_weights,
    open_accelerator,
    open_engine,
    refusing,
    resolve_gradient_checkpointing,
    resolve_precision,
    runs_on_cpu,
)
from agentgym_trainer.trainers.training_data import gather_episodes


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The model to train and its data."""

    model: Any
    """A Hugging Face causal language model, or a PEFT model of one when an adapter trains."""
    chat: Chat
    episodes: Sequence[Episode]


MakeTrainer = Callable[[TrainingSetup], Any]
"""Creates one of TRL's trainers, with `GuardedTrainer` mixed in and the `trainer_arguments` of the run."""


Play = Callable[[Evaluator], list[Episode]]
"""Plays the episodes that a run trains on. All processes must call it; all get the same episodes."""


def train_on_data(
    config: OfflineConfig,
    folder: RunFolder,
    tracker: RunConsole,
    stopping: Stopping,
    make_trainer: MakeTrainer,
    *,
    play: Play | None = None,
) -> Reached:
    """Start or resume a run until it ends or `stopping` is set. All processes of the run must call this.

    Args:
        config: The configuration of the run.
        folder: The folder of the run.
        tracker: Shows the progress.
        stopping: Called after every step; True ends the run early.
        make_trainer: Creates the trainer.
        play: Plays the training episodes with the initial model; None: they come from the source in `config.data`.

    Raises:
        UsageError: when the model, an environment, a file or an option doesn't exist, the engine can't be started, or
            the launcher shards weights.
        EngineError: when the engine can't be recovered.
        Stopped: when the run must end immediately. The progress is saved.
    """
    torch.set_num_threads(config.threads)
    accelerator, ranks = open_accelerator(config), Ranks()
    check_sharding(config, sharded=is_sharded(accelerator))
    check_engine_model(config)
    check_memory(config, accelerator, tracker.say)
    with open_environments(config) as worlds, tracker.showing(), _no_progress_bars():
        if config.model != "scratch" and not folder.start.exists():
            check_model(config.model)
        episodes = [] if play else gather_episodes(config, config.data, worlds, folder, tracker, stopping)
        made_here = makes_start(config)
        with ranks.errors_together():
            if made_here and ranks.is_main and not folder.start.exists():
                make_start(config, folder, worlds, episodes)
        name = str(folder.start) if made_here else config.model
        model, chat = load_model(name, dtype=policy_dtype(config), device=accelerator.device)
        model = with_lora(model, config.lora, seed=config.seed) if config.lora.rank else model
        own_copy = has_own_weights(config, accelerator)
        engine = open_engine(config, name, model, chat, accelerator, folder.path, tracker.say, own_copy=own_copy)
        with ranks.errors_together():
            if ranks.is_main:
                with writing(folder.checkpoints):  # TRL's trainer would create it without a message for the user
                    folder.checkpoints.mkdir(exist_ok=True)
        with RolloutRunner(engine, stopping.check) as rollouts:
            held_out = Evaluator(config, folder, worlds, chat, tracker, rollouts)
            if play:
                check_weights(model.parameters(), accelerator)
                with Ranks().errors_together():
                    rollouts.load(weights_of(model.eval(), 0))
                episodes = play(held_out)
            with refusing(config):
                trainer = make_trainer(TrainingSetup(model, chat, episodes))
            run = TRLRunCallback(config, trainer, held_out, stopping)
            reached = run.run()
        if reached.done and ranks.is_main:
            export_model(run.checkpoints.at(reached.model_step), folder.model)
    return reached


@contextmanager
def _no_progress_bars() -> Generator[None]:
    """Hide the progress bars of datasets, which would break those of the run."""
    hidden = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars()


def trainer_arguments(config: OfflineConfig, folder: RunFolder, *, longest: int) -> dict[str, Any]:
    """Return the arguments that all of TRL's trainers have in common.

    Args:
        config: The configuration of the run.
        folder: The folder of the run, where checkpoints are written.
        longest: Number of tokens of the longest example, which determines the micro-batch size.

    Raises:
        UsageError: when the batch isn't divisible by the number of processes.
    """
    optimizer, ranks = config.optimizer, Ranks()
    if config.batch % ranks.count:
        raise UsageError(
            f"A batch of {config.batch} can't be divided evenly among {ranks.count} processes; choose a multiple of "
            f"{ranks.count}."
        )
    share, fits = config.batch // ranks.count, max(1, optimizer.micro_tokens // longest)
    micro_batch = max(count for count in range(1, min(share, fits) + 1) if share % count == 0)
    return {
        "output_dir": str(folder.checkpoints),
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": share // micro_batch,
        "num_train_epochs": config.epochs,
        "learning_rate": optimizer.lr,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip_norm,
        "gradient_checkpointing": resolve_gradient_checkpointing(config),
        "use_cpu": runs_on_cpu(config),
        "bf16": resolve_precision(config) == "bf16",
        "fp16": resolve_precision(config) == "fp16",
        "seed": config.seed,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": config.save_every,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


_Arguments = TypeVar("_Arguments", bound=TrainingArguments)


def on_one_gpu(arguments: _Arguments) -> _Arguments:
    """Let a process that no launcher started use the first of several GPUs: TRL refuses torch's DataParallel."""
    counted: Any = arguments
    counted._n_gpu = min(arguments.n_gpu, 1)
    return arguments


class TRLRunCallback(TrainerCallback):
    """One run: evaluations, checkpoints and metrics, as a callback of its trainer."""

    def __init__(self, config: OfflineConfig, trainer: Any, held_out: Evaluator, stopping: Stopping) -> None:
        """Prepare a run of `trainer`; when `stopping` returns True after a step, the run is saved and ends early."""
        self.config = config
        self.trainer = trainer
        self.trainer.skips, self.trainer.schedule = Skips(config.optimizer.max_skips), config.optimizer
        self.held_out = held_out
        self.folder = held_out.folder
        self.tracker = held_out.tracker
        minutes, say = config.save_minutes, self.tracker.say
        self.checkpoints = Checkpoints(self.folder.checkpoints, keep=config.keep_checkpoints, minutes=minutes, say=say)
        self.ranks = Ranks()
        self._stopping = stopping
        self._tested: dict[str, Any] = {}
        self._cut_short: EngineError | EnvFault | TooManyFailed | Stopped | None = None
        self._best: Best | None = None
        self._success: float | None = None
        self._evaluating = 0.0
        self._since = time.perf_counter()

    def run(self) -> Reached:
        """Train from the last checkpoint, if there is one, until the end or an early stop.

        Raises:
            UsageError: when all checkpoints are damaged.
            OSError: when a checkpoint can't be written.
            TooManyFailed, EngineError, EnvFault, Stopped: when an evaluation raised it. The progress is saved.
            NotFinite: when the weights aren't finite, or too many consecutive optimizer steps were skipped.
        """
        found, best = None, None
        with self.ranks.errors_together():
            if self.ranks.is_main:
                found = self.checkpoints.latest()
                self._tidy(self.checkpoints.step_of(found) if found else 0, found)
                best = self._best_so_far()
        latest, self._best = self.ranks.broadcast((found, best))
        if not latest:
            self._evaluate(0)
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(self)
        with self.ranks.errors_together():
            self.held_out.rollouts.sleep()  # an engine without evaluations so far is still awake
        self._since = time.perf_counter()
        with self.checkpoints.naming_last():
            self.trainer.train(resume_from_checkpoint=str(latest) if latest else None)
        if self._cut_short:
            raise self._cut_short
        state = self.trainer.state
        best = self._best if self.config.evaluation.load_best_model_at_end else None
        return Reached(state.global_step, of=state.max_steps, best=best)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Repeat an evaluation that was interrupted in the previous session, after its step was saved."""
        step = state.global_step
        if step and self.held_out.is_due(step, state.max_steps) and not self.ranks.broadcast(self._is_evaluated(step)):
            self._test(state)
            if self.ranks.is_main:
                self.folder.amend(step, self._tested)
                self.checkpoints.tidy(step, self._best)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluate if it is due, save if that is overdue, and stop if requested."""
        self._tested = {}
        if self.held_out.is_due(state.global_step, state.max_steps):
            try:
                self._test(state)
            except (EngineError, EnvFault, TooManyFailed, Stopped) as error:
                if not self.ranks.all_raised(error):
                    raise  # one process alone can't save
                self._cut_short = error
                control.should_save = control.should_training_stop = True
                return
            control.should_save |= self._best is not None and self._best.step == state.global_step
        control.should_save |= self.ranks.broadcast(self.checkpoints.overdue)
        if self.ranks.any(self._stopping()):
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Write the line of metrics of a step."""
        logs: dict[str, Any] = given["logs"]
        if "loss" not in logs:  # the trainer's summary at the end
            return
        now = time.perf_counter()
        seconds = {"update": now - self._since - self._evaluating, "evaluation": self._evaluating}
        self._since, self._evaluating = now, 0.0
        metrics = {name: value for name, value in logs.items() if name not in ("num_tokens", "total_flos")}
        metrics |= {"skipped": float(self.trainer.skipped)}
        if self.trainer.skipped:  # TRL then logs the mean of earlier losses
            del metrics["loss"], metrics["grad_norm"]
            causes = listed(self.trainer.skips.causes)
            self.tracker.say(f"Step {state.global_step} was skipped: values in the {causes} weren't finite.")
        if self.ranks.is_main:
            taken = {"seconds": seconds, "memory": peak_memory()}
            self.folder.log({"step": state.global_step, **metrics, **self._tested, **taken})
        self.tracker.trl_step(state.global_step, state.max_steps, metrics)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Convert the folder that the trainer has written into one of our checkpoints."""
        with self.ranks.errors_together():
            if self.ranks.is_main:
                written = self.folder.checkpoints / f"checkpoint-{state.global_step}"
                self.checkpoints.adopt(written, state.global_step, self._best, self.folder.metrics)

    def _test(self, state: TrainerState) -> None:
        """Evaluate, and update the best step."""
        began = time.perf_counter()
        self._tested = self._evaluate(state.global_step)
        self._evaluating = time.perf_counter() - began
        self._best = _better(self._best, state.global_step, self._success)

    def _is_evaluated(self, step: int) -> bool:
        """Whether the line of this step contains its evaluation."""
        split = self.config.evaluation.split
        return any(split in line for line in self.folder.read_metrics() if line["step"] == step)

    def _evaluate(self, step: int) -> dict[str, Any]:
        """Return the success on evaluation tasks, over all environments and for each."""
        played, settings = self.held_out.evaluate(step, lambda: self._playing(step)), self.config.evaluation
        self._success = selection_success(played["sampled"])
        names = [world.name for world in self.held_out.worlds]
        worlds = {name: evaluation_metrics(played, settings, name) for name in names}
        return {**evaluation_metrics(played, settings), "worlds": worlds}

    @contextmanager
    def _playing(self, step: int) -> Generator[None]:
        """Have the engine sample with the weights of this step, without affecting the training's random state."""
        model, rollouts, accelerator = self.trainer.model, self.held_out.rollouts, self.trainer.accelerator
        was_training, cuda = model.training, [model.device] if model.device.type == "cuda" else []
        model.eval()
        check_weights(model.parameters(), accelerator)
        weights = weights_of(accelerator.unwrap_model(model), step, precision=accelerator.mixed_precision)
        try:
            with torch.random.fork_rng(cuda):
                load_weights(self.config, rollouts, weights, self.ranks)
                yield
                self.ranks.gather([0])  # other processes may sample from the same server until here
                with self.ranks.errors_together():
                    rollouts.sleep()
        finally:
            model.train(was_training)

    def _best_so_far(self) -> Best | None:
        """Return the best step among the saved evaluations, except the one before the first update."""
        best = None
        for step in self.folder.evaluated_steps("sampled"):
            if damage := self.folder.evaluation_damage(step, "sampled"):
                self.tracker.say(f"The evaluation after {step} steps doesn't count for the best checkpoint: {damage}.")
                continue
            outcomes = map(EpisodeOutcome.of, self.folder.read_evaluation(step, "sampled") or [])
            best = _better(best, step, selection_success(outcomes))
        return best

    def _tidy(self, step: int, latest: Path | None) -> None:
        """Remove what a killed process has written after the checkpoint from which the run resumes."""
        if message := self.folder.rewind(step, latest and latest / METRICS):
            self.tracker.say(message)
        for leftover in self.folder.checkpoints.glob("checkpoint-*"):
            shutil.rmtree(leftover)


def _better(best: Best | None, step: int, success: float | None) -> Best | None:
    """Return the better of two checkpoints, the first if they are equal. `success` is None without an evaluation."""
    known = TrainingState(Stage(1), step, best=best).evaluated(success)
    return known.best
