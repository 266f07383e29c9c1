"""How token losses are aggregated. Weights are computed over all processes, so splitting a batch changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch, TokenBatch, Total


@dataclass(frozen=True)
class Aggregation:
    """How token losses are averaged."""

    kind: Literal["token", "sequence", "fixed"] = "token"
    """token: mean over all completion tokens (DAPO, arXiv 2503.14476, eq. 8). sequence: mean over episodes of the mean
    over their completion tokens (GRPO, arXiv 2402.03300, eq. 3). fixed: mean over episodes of the sum over their
    completion tokens, divided by `length` (Dr. GRPO, arXiv 2503.20783)."""
    length: int = 1024
    """Only with fixed: the constant that each episode's sum is divided by, in completion tokens."""

    def __post_init__(self) -> None:
        """Check the length.

        Raises:
            ValueError: The length isn't positive.
        """
        if self.length < 1:
            raise ValueError(f"aggregation.length is {self.length}; it must be at least 1 completion token.")

    def weights(self, batch: TokenBatch, chosen_N: Tensor, total: Total) -> Tensor:
        """Loss weight of each completion token, N, float32; 0 where not chosen. `total` is called once."""
        chosen = chosen_N.double()
        length_E = chosen.new_zeros(len(batch.group_E)).index_add(0, batch.episode_N, chosen)
        tokens, episodes = total(chosen.new_tensor([chosen.sum().item(), (length_E > 0).sum().item()])).clamp(min=1)
        if self.kind == "token":
            return (chosen / tokens).float()
        if self.kind == "fixed":
            return (chosen / (episodes * self.length)).float()
        return (chosen / (episodes * length_E.clamp(min=1)[batch.episode_N])).float()

    def shares(self, micro_batch: MicroBatch) -> Tensor:
        """Loss weights normalized to sum to 1 over all micro-batches of an optimizer step and all processes, M."""
        # With `fixed`, weights are equal for all tokens and sum to the mean length divided by `length`.
        return micro_batch.share.expand_as(micro_batch.weight_M) if self.kind == "fixed" else micro_batch.weight_M
