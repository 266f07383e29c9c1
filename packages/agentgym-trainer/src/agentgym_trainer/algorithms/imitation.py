"""Imitation of what was said: maximum likelihood over the said tokens (SFT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Imitation:
    """Mean negative log-likelihood of the said tokens."""

    kl: float = 0.0
    """There is no reference model in imitation."""

    def weights(self, said_BT: Tensor, episode_BT: Tensor) -> Tensor:
        """Every said token counts the same."""
        return said_BT.float()

    def loss(
        self, logp_BT: Tensor, sampled_BT: Tensor, reference_BT: Tensor | None, advantage_BT: Tensor, weight_BT: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The part of the loss that these tokens carry, and the same figure as a metric."""
        loss = -(weight_BT * logp_BT).sum()
        return loss, {"nll": loss.detach()}
