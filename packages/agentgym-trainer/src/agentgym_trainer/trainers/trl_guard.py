"""What is mixed into TRL's trainers: they skip what isn't finite, save nothing of the kind, and keep quiet.

As in `learner.py`, a step in which a loss or a gradient isn't finite, on whichever process, is skipped on all of them.
TRL's learning-rate schedule goes on meanwhile.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from torch.distributed.tensor import DTensor

from agentgym_trainer.learner.finite_checks import GRADIENTS, Skips, check_weights
from agentgym_trainer.run.disk import writing


class GuardedTrainer:
    """Comes before a trainer of TRL's among the bases of a class."""

    accelerator: Any
    args: Any
    state: Any

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.skips = Skips(1)
        """Whoever runs the trainer says how many it bears."""
        self.skipped = False
        """Whether the last optimizer step was skipped."""
        self._sick: Any = 0

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write no model card beside the checkpoints."""

    def _send_telemetry(self) -> None:
        """Say no word of the run to anyone."""

    def training_step(self, *args: Any, **more: Any) -> Any:
        """The loss of a micro-batch, which is remembered where it isn't finite."""
        trainer: Any = super()
        loss = trainer.training_step(*args, **more)
        self._sick = self._sick + (~loss.detach().isfinite()).sum()
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The norm of an optimizer step's gradients, which are dropped where it or a loss isn't finite: an optimizer
        leaves weights that have none as they are.
        """
        trainer: Any = super()
        norm = trainer._get_grad_norm(model, grad_norm)
        accelerator: Any = self.accelerator
        losses, self._sick = int(accelerator.reduce(self._sick, "sum")), 0
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
        """Write a checkpoint of weights that are finite, or tell in a sentence why it can't be written."""
        trainer: Any = super()
        check_weights(model.parameters(), self.accelerator)
        written = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        try:
            with writing(written):
                trainer._save_checkpoint(model, trial)
        except OSError:
            shutil.rmtree(written, ignore_errors=True)
            raise
