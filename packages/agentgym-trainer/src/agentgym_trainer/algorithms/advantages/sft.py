"""Imitation of what was said: maximum likelihood over the said tokens (SFT). It looks at no reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.loss.aggregation import Aggregation
from agentgym_trainer.algorithms.types import Credit

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import Experience, Part, Scores, Total


@dataclass(frozen=True)
class Imitation:
    """Mean negative log-likelihood of the said tokens. A learner treats it as it treats an `Algorithm`."""

    @property
    def needs_reference(self) -> bool:
        """Never."""
        return False

    @property
    def needs_critic(self) -> bool:
        """Never."""
        return False

    @property
    def needs_old(self) -> bool:
        """Never: there is no ratio."""
        return False

    @property
    def unit(self) -> Literal["segment"]:
        """Every token stands for itself."""
        return "segment"

    def credit(self, experience: Experience, total: Total) -> Credit:
        """Every said token is as good as any other."""
        return Credit(advantage_N=experience.sampled_N.new_ones(len(experience.sampled_N)), metrics={})

    def weights(self, experience: Experience, chosen_N: Tensor, total: Total) -> Tensor:
        """The mean over all said tokens."""
        return Aggregation().weights(experience, chosen_N, total)

    def critic_weights(self, credit: Credit, chosen_N: Tensor, total: Total) -> None:
        """There is no critic."""
        return

    def loss(self, scores: Scores, part: Part) -> tuple[Tensor, dict[str, Tensor]]:
        """The part of the loss that these tokens carry, and metrics that add up over parts."""
        loss = -(part.weight_M * part.advantage_M * scores.logp_M).sum()
        return loss, {"nll": loss.detach(), "entropy": part.share * scores.entropy_M.detach().sum()}
