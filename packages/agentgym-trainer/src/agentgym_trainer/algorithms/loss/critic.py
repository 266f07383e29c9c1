"""What the critic is trained on. Where it lives, in the policy's trunk or apart, is none of this module's business."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch, ModelOutputs


@dataclass(frozen=True)
class Critic:
    """Squared error of the values; no knob acts where the advantages need no critic."""

    weight: float = 0.5
    """Weight of the error in the loss (PPO, arXiv 1707.06347, eq. 9: c1)."""
    clip: float = 0.2
    """No gain from moving a value further than this from what it was before the update, in units of the return; 0 is
    off (OpenAI Baselines' PPO2; the paper has none)."""

    def __post_init__(self) -> None:
        """Refuse to train the critic away from its targets.

        Raises:
            ValueError: A negative weight or width.
        """
        if min(self.weight, self.clip) < 0:
            raise ValueError(f"The critic's weight is {self.weight} and its clip {self.clip}; both must be 0 or more.")

    def loss(self, scores: ModelOutputs, part: MicroBatch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The weighted part of the loss that these tokens carry, None without a critic, and metrics that add up.

        Raises:
            ValueError: The algorithm set targets, but the model has no critic.
        """
        if part.value_targets_M is None or part.critic_weight_M is None or part.values_M is None:
            return None, {}
        if scores.values_M is None:
            raise ValueError(
                "The algorithm trains a critic, but the model has none. "
                "Set the configuration's critic to 'head' or 'separate', or choose an algorithm without a critic."
            )
        moved_M, width = scores.values_M - part.values_M, self.clip or inf
        free_M = (scores.values_M - part.value_targets_M).square()
        held_M = (part.values_M + moved_M.clamp(-width, width) - part.value_targets_M).square()
        # Within the width both are the same, but for rounding.
        clipped_M = (moved_M.abs() > width) & (held_M > free_M)
        error_M = held_M.where(clipped_M, free_M)
        error = (part.critic_weight_M * error_M).sum()
        figures = {"value": scores.values_M, "value_loss": error_M, "value_clipped": clipped_M}
        return self.weight * error, {
            name: (part.critic_weight_M * figure_M).sum().detach() for name, figure_M in figures.items()
        }
