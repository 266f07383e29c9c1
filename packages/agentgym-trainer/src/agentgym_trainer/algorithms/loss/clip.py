"""The policy's gain: importance ratios, and how they are kept near 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.loss.ratio import Level, mean_over, ratio

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch


@dataclass(frozen=True)
class Clip:
    """What happens to a ratio that leaves [1 - low, 1 + high]."""

    kind: Literal["ppo", "cispo", "none"] = "ppo"
    """ppo: no gain beyond (Schulman et al. 2017, arXiv 1707.06347, eq. 7). cispo: the clipped ratio is a constant in
    front of the log-probability, so every token keeps a gradient (MiniMax-M1, arXiv 2506.13585, eq. 4). none: the
    ratio as it is."""
    low: float = 0.2
    """The ratio is clipped below at 1 - low."""
    high: float = 0.2
    """The ratio is clipped above at 1 + high."""
    dual: float = 0.0
    """Not in cispo: where the advantage is negative, no loss beyond so many times it (Ye et al. 2020, arXiv 1912.09729,
    eq. 5: 3). 0 is off."""

    def __post_init__(self) -> None:
        """Refuse bounds that aren't on their sides of 1.

        Raises:
            ValueError: A negative width, or a dual clip that the ordinary one would never reach.
        """
        if min(self.low, self.high) < 0:
            raise ValueError(f"The clip goes from 1 - {self.low} to 1 + {self.high}; neither width may be negative.")
        if self.dual and self.dual <= 1 + self.high:
            raise ValueError(
                f"The dual clip {self.dual} must lie above the upper clip 1 + {self.high}; 3 is usual, 0 is off."
            )

    def surrogate(self, ratio_M: Tensor, logp_M: Tensor, advantage_M: Tensor) -> tuple[Tensor, Tensor]:
        """What is to be maximised at each said token, and where the clip made a difference, bool."""
        free_M = ratio_M * advantage_M
        clipped_M = ratio_M if self.kind == "none" else ratio_M.clamp(1 - self.low, 1 + self.high)
        if self.kind == "cispo":
            return clipped_M.detach() * advantage_M * logp_M, clipped_M != ratio_M
        gain_M = free_M.minimum(clipped_M * advantage_M)
        if self.dual:
            gain_M = gain_M.where(advantage_M >= 0, gain_M.maximum(self.dual * advantage_M))
        return gain_M, gain_M != free_M


def ratios(logp_M: Tensor, part: MicroBatch, level: Level) -> Tensor:
    """Ratio pi / pi_old of each said token, or the geometric mean over its turn's or episode's said tokens.

    The means are those of GSPO (Zheng et al. 2025, arXiv 2507.18071, eq. 7), with the gradient of GSPO-token (eq. 14):
    each token's own log-probability carries the ratio of all. Where a turn's or episode's advantages are all the same
    that is the mean's own gradient (eqs. 10 and 17), and where they differ each token gets its own and not the mean.
    """
    log_ratio_M = logp_M - part.old_logprobs_M
    if level != "token":
        log_ratio_M = mean_over(log_ratio_M.detach(), part, level) + (logp_M - logp_M.detach())
    return ratio(log_ratio_M)
