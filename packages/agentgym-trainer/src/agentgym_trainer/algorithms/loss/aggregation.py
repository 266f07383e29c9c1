"""How said tokens add up to one loss. Weights are counted over all processes, so splitting a batch changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch, TokenBatch, Total


@dataclass(frozen=True)
class Aggregation:
    """What the loss is a mean of."""

    kind: Literal["token", "sequence", "fixed"] = "token"
    """token: mean over all said tokens (DAPO, arXiv 2503.14476, eq. 8). sequence: mean over episodes of the mean over
    their said tokens (GRPO, arXiv 2402.03300, eq. 3). fixed: mean over episodes of the sum over their said tokens,
    divided by `length` (Dr. GRPO, arXiv 2503.20783)."""
    length: int = 1024
    """Only fixed: what each episode's sum is divided by, in said tokens; the same for long and short episodes."""

    def __post_init__(self) -> None:
        """Refuse a length that nothing can be divided by.

        Raises:
            ValueError: The length isn't positive.
        """
        if self.length < 1:
            raise ValueError(f"The fixed length to divide by is {self.length}; it must be 1 said token or more.")

    def weights(self, experience: TokenBatch, chosen_N: Tensor, total: Total) -> Tensor:
        """Share of each said token in the loss, N, float32; 0 where not chosen. `total` is called once."""
        chosen = chosen_N.double()
        length_E = chosen.new_zeros(len(experience.group_E)).index_add(0, experience.episode_N, chosen)
        tokens, episodes = total(chosen.new_tensor([chosen.sum().item(), (length_E > 0).sum().item()])).clamp(min=1)
        if self.kind == "token":
            return (chosen / tokens).float()
        if self.kind == "fixed":
            return (chosen / (episodes * self.length)).float()
        return (chosen / (episodes * length_E.clamp(min=1)[experience.episode_N])).float()

    def shares(self, part: MicroBatch) -> Tensor:
        """Share of each completion token in what the loss is a mean of, M; over all parts of an optimizer step and all
        processes they sum to 1.
        """
        # With `fixed`, weights are the same everywhere and sum to the mean length over `length`.
        return part.share.expand_as(part.weight_M) if self.kind == "fixed" else part.weight_M
