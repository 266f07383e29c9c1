"""Imitation of what was said: maximum likelihood over the said tokens (SFT). It looks at no reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.loss.aggregation import Aggregation
from agentgym_trainer.algorithms.types import AdvantageOutput

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch, ModelOutputs, TokenBatch, Total


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
    def needs_old_logprobs(self) -> bool:
        """Never: there is no ratio."""
        return False

    @property
    def unit(self) -> Literal["segment"]:
        """Every token stands for itself."""
        return "segment"

    def compute_advantages(self, experience: TokenBatch, total: Total) -> AdvantageOutput:
        """Every said token is as good as any other."""
        return AdvantageOutput(
            advantages_N=experience.rollout_logprobs_N.new_ones(len(experience.rollout_logprobs_N)), metrics={}
        )

    def weights(self, experience: TokenBatch, chosen_N: Tensor, total: Total) -> Tensor:
        """The mean over all said tokens."""
        return Aggregation().weights(experience, chosen_N, total)

    def critic_weights(self, credit: AdvantageOutput, chosen_N: Tensor, total: Total) -> None:
        """There is no critic."""
        return

    def loss(self, scores: ModelOutputs, part: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The part of the loss that these tokens carry, and metrics that add up over parts."""
        loss = -(part.weight_M * part.advantages_M * scores.logprobs_M).sum()
        return loss, {"nll": loss.detach(), "entropy": part.share * scores.entropy_M.detach().sum()}
