"""The critic's loss. It does not depend on whether the critic shares the policy's trunk."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch, ModelOutputs


@dataclass(frozen=True)
class Critic:
    """Squared error of the critic's values. Has no effect if the advantages need no critic."""

    weight: float = 0.5
    """Coefficient of the critic's loss (PPO, arXiv 1707.06347, eq. 9: c1)."""
    clip: float = 0.2
    """Value clipping: no gain from moving a value further than this from its value before the update, in units of the
    return; 0 turns it off (OpenAI Baselines' PPO2; the paper has none)."""

    def __post_init__(self) -> None:
        """Check weight and clip.

        Raises:
            ValueError: The weight or the clip is negative.
        """
        if min(self.weight, self.clip) < 0:
            raise ValueError(f"The critic's weight is {self.weight} and its clip {self.clip}; both must be 0 or more.")

    def loss(self, outputs: ModelOutputs, micro_batch: MicroBatch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Compute this micro-batch's part of the weighted loss, None without a critic, and metrics that add up.

        Raises:
            ValueError: The algorithm set targets, but the model has no critic.
        """
        old_M, target_M = micro_batch.values_M, micro_batch.value_targets_M
        if target_M is None or micro_batch.critic_weight_M is None or old_M is None:
            return None, {}
        if outputs.values_M is None:
            raise ValueError(
                "The algorithm trains a critic, but the model has none. "
                "Set the configuration's critic to 'head' or 'separate', or choose an algorithm without a critic."
            )
        change_M, width = outputs.values_M - old_M, self.clip or inf
        unclipped_M = (outputs.values_M - target_M).square()
        bounded_M = (old_M + change_M.clamp(-width, width) - target_M).square()
        # Within the width both are equal, except for rounding.
        clipped_M = (change_M.abs() > width) & (bounded_M > unclipped_M)
        error_M = bounded_M.where(clipped_M, unclipped_M)
        loss = (micro_batch.critic_weight_M * error_M).sum()
        token_metrics = {"value": outputs.values_M, "value_loss": error_M, "value_clipped": clipped_M}
        return self.weight * loss, {
            name: (micro_batch.critic_weight_M * values_M).sum().detach() for name, values_M in token_metrics.items()
        }
