"""A mixin for TRL's trainers that skips non-finite steps, refuses to save non-finite weights, and disables telemetry.

As in `learner.py`, a step in which a loss or gradient of any process isn't finite is skipped on all of them. TRL's
learning-rate schedule still advances.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from torch.distributed.tensor import DTensor

from agentgym_trainer.config.base import Optimizer
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.learner.finite_checks import GRADIENTS, Skips, check_weights
from agentgym_trainer.learner.optimizer import make_schedule
from agentgym_trainer.run.disk import writing


class GuardedTrainer:
    """A mixin that must precede a TRL trainer among the base classes."""

    accelerator: Any
    lr_scheduler: Any
    optimizer: Any
    args: Any
    state: Any

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.skips = Skips(1)
        """Limit of skipped steps; the caller replaces it with the configured one."""
        self.schedule = Optimizer()
        """Schedule and warmup of the learning rate; the caller replaces it with the configured ones."""
        self.skipped = False
        """Whether the last optimizer step was skipped."""
        self._nonfinite: Any = 0

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the learning rate's schedule, the same as that of reinforcement learning."""
        if self.lr_scheduler is None:
            self.lr_scheduler = make_schedule(optimizer or self.optimizer, self.schedule, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Do nothing: no model card is written to checkpoints."""

    def _send_telemetry(self) -> None:
        """Do nothing: no telemetry is sent."""

    def training_step(self, *args: Any, **more: Any) -> Any:
        """Return the loss of a micro-batch, and count losses that aren't finite."""
        trainer: Any = super()
        loss = trainer.training_step(*args, **more)
        self._nonfinite = self._nonfinite + (~loss.detach().isfinite()).sum()
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the gradient norm of an optimizer step, and clear the gradients if it or a loss isn't finite.

        The optimizer leaves weights without gradients unchanged.
        """
        trainer: Any = super()
        norm = trainer._get_grad_norm(model, grad_norm)
        accelerator: Any = self.accelerator
        losses, self._nonfinite = int(accelerator.reduce(self._nonfinite, "sum")), 0
        size = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        causes = [*(["loss"] if losses else []), *([] if math.isfinite(size) else [GRADIENTS])]
        self.skipped = bool(causes)
        if causes:
            model.zero_grad()
            scaler = accelerator.scaler
            self.skips.skipped(causes, curable=scaler is not None and causes == [GRADIENTS] and scaler.get_scale() > 1)
        else:
            self.skips.applied()
        return norm

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint if the weights are finite; errors on writing become a message for the user.

        It is complete on return: all processes have written their files.
        """
        trainer: Any = super()
        check_weights(model.parameters(), self.accelerator)
        written = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        try:
            with Ranks().errors_together(), writing(written):  # all processes write their random states into it
                trainer._save_checkpoint(model, trial)
        except OSError:
            shutil.rmtree(written, ignore_errors=True)
            raise
