"""The surrogate objective of the policy: importance ratios and their clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.loss.ratio import Level, mean_over, ratio

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch


@dataclass(frozen=True)
class Clip:
    """How ratios outside [1 - low, 1 + high] are treated."""

    kind: Literal["ppo", "cispo", "none"] = "ppo"
    """ppo: no gain outside the range (Schulman et al. 2017, arXiv 1707.06347, eq. 7). cispo: the clipped ratio is a
    constant factor of the log-probability, so every token keeps a gradient (MiniMax-M1, arXiv 2506.13585, eq. 4). none:
    ratios are not clipped."""
    low: float = 0.2
    """Ratios are clipped from below at 1 - low."""
    high: float = 0.2
    """Ratios are clipped from above at 1 + high."""
    dual: float = 0.0
    """Dual clip, not with cispo: for negative advantages, bound the loss at this multiple of the advantage (Ye et al.
    2020, arXiv 1912.09729, eq. 5: 3). 0 turns it off."""

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: A width is negative, or the dual clip is below the upper clip and so has no effect.
        """
        if min(self.low, self.high) < 0:
            raise ValueError(
                f"The clip range is from 1 - {self.low} to 1 + {self.high}; neither width may be negative."
            )
        if self.dual and self.dual <= 1 + self.high:
            raise ValueError(
                f"The dual clip {self.dual} must be above the upper clip 1 + {self.high}; 3 is usual, 0 turns it off."
            )

    def surrogate(self, ratio_M: Tensor, logp_M: Tensor, advantage_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective to maximize at each completion token, and where clipping changed it, bool."""
        unclipped_M = ratio_M * advantage_M
        clipped_M = ratio_M if self.kind == "none" else ratio_M.clamp(1 - self.low, 1 + self.high)
        if self.kind == "cispo":
            return clipped_M.detach() * advantage_M * logp_M, clipped_M != ratio_M
        objective_M = unclipped_M.minimum(clipped_M * advantage_M)
        if self.dual:
            objective_M = objective_M.where(advantage_M >= 0, objective_M.maximum(self.dual * advantage_M))
        return objective_M, objective_M != unclipped_M


def ratios(logp_M: Tensor, micro_batch: MicroBatch, level: Level) -> Tensor:
    """Return the ratio pi / pi_old of each completion token, or the geometric mean over its turn or episode.

    The means are those of GSPO (Zheng et al. 2025, arXiv 2507.18071, eq. 7), with the gradient of GSPO-token (eq. 14):
    the gradient flows through each token's own log-probability. Where the advantages of a turn or episode are all equal
    this is the gradient of the mean (eqs. 10 and 17); where they differ, each token gets its own.
    """
    log_ratio_M = logp_M - micro_batch.old_logprobs_M
    if level != "token":
        log_ratio_M = mean_over(log_ratio_M.detach(), micro_batch, level) + (logp_M - logp_M.detach())
    return ratio(log_ratio_M)
