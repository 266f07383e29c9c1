"""Truncated or masked importance sampling against the mismatch between the engine and the learner.

The engine samples with other kernels and another precision than the learner trains with. Weighting a token's objective
with pi_learner / pi_engine, both before the update, corrects for that: truncated (TIS; Yao et al. 2025, "Your efficient
RL framework secretly brings you off-policy RL training") or masked (MIS; Liu et al. 2025, "When speed kills
stability").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.loss.ratio import ratio, sum_over

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch


@dataclass(frozen=True)
class Correction:
    """Importance weights between engine and learner."""

    level: Literal["off", "token", "sequence"] = "off"
    """Use each token's own ratio, or the product over all completion tokens of the episode. Both cost an extra forward
    pass of the model."""
    mode: Literal["truncate", "mask"] = "truncate"
    """What to do with weights above the bound: truncate to the bound (TIS), or mask the tokens in the policy loss
    (MIS)."""
    bound: float = 2.0
    """The largest weight."""

    def __post_init__(self) -> None:
        """Check the bound.

        Raises:
            ValueError: The bound isn't positive.
        """
        if self.bound <= 0:
            raise ValueError(f"correction.bound is {self.bound}, but weights are positive; try 2.")

    def importance_weights(self, micro_batch: MicroBatch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return the weight of each completion token's objective, M, without gradient (None when off), and metrics.

        The metrics are parts of means over tokens: `rollout_logprob_gap` is the token's |log-ratio|, `correction` the
        weight, `corrected` the share of tokens above the bound.
        """
        if self.level == "off":
            return None, {}
        log_ratio_M = micro_batch.old_logprobs_M - micro_batch.rollout_logprobs_M
        ratio_M = ratio(sum_over(log_ratio_M, micro_batch, self.level))
        above_M = ratio_M > self.bound
        weight_M = ratio_M.masked_fill(above_M, self.bound if self.mode == "truncate" else 0.0)
        token_metrics = {"rollout_logprob_gap": log_ratio_M.abs(), "correction": weight_M, "corrected": above_M}
        return weight_M, {name: micro_batch.share * values_M.sum() for name, values_M in token_metrics.items()}
