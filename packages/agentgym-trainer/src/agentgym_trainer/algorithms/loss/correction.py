"""Correction for the engine's numbers being not quite the learner's: truncated or masked importance sampling.

The engine samples with other kernels and precision than the learner trains with. Weighing a token's gain by
pi_learner / pi_engine, both before the update, makes up for that: truncated (TIS; Yao et al. 2025, "Your efficient RL
framework secretly brings you off-policy RL training") or masked (MIS; Liu et al. 2025, "When speed kills stability").
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
    """Each token's own ratio, or the product over all said tokens of the episode. Either costs a pass of the model."""
    mode: Literal["truncate", "mask"] = "truncate"
    """Beyond the bound: weigh with the bound (TIS), or leave out of the policy's loss (MIS)."""
    bound: float = 2.0
    """The largest weight."""

    def __post_init__(self) -> None:
        """Refuse a bound that no weight can keep.

        Raises:
            ValueError: The bound isn't positive.
        """
        if self.bound <= 0:
            raise ValueError(f"The correction's bound is {self.bound}; weights are positive, try 2.")

    def importance_weights(self, part: MicroBatch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Weight of each said token's gain, M, without gradient (None when off), and what there is to say of it.

        The metrics are parts of means over tokens: `rollout_logprob_gap` |log-ratio| of the token, `correction` the weight,
        `corrected` the share of tokens beyond the bound.
        """
        if self.level == "off":
            return None, {}
        log_ratio_M = part.old_logprobs_M - part.rollout_logprobs_M
        ratio_M = ratio(sum_over(log_ratio_M, part, self.level))
        beyond_M = ratio_M > self.bound
        weight_M = ratio_M.masked_fill(beyond_M, self.bound if self.mode == "truncate" else 0.0)
        figures = {"rollout_logprob_gap": log_ratio_M.abs(), "correction": weight_M, "corrected": beyond_M}
        return weight_M, {name: part.share * figure_M.sum() for name, figure_M in figures.items()}
