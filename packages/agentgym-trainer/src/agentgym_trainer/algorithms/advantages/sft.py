"""Maximum likelihood over completion tokens (SFT). Rewards are not used."""

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
    """Mean negative log-likelihood of the completion tokens. It has the interface of an `Algorithm` for the learner."""

    @property
    def needs_reference(self) -> bool:
        """Always False."""
        return False

    @property
    def needs_critic(self) -> bool:
        """Always False."""
        return False

    @property
    def needs_old_logprobs(self) -> bool:
        """Always False, since there is no importance ratio."""
        return False

    @property
    def unit(self) -> Literal["segment"]:
        """Tokens are independent of each other, so episodes may be split into segments."""
        return "segment"

    def compute_advantages(self, batch: TokenBatch, total: Total) -> AdvantageOutput:
        """Give every completion token an advantage of 1."""
        logprobs_N = batch.rollout_logprobs_N
        return AdvantageOutput(advantages_N=logprobs_N.new_ones(len(logprobs_N)), metrics={})

    def weights(self, batch: TokenBatch, chosen_N: Tensor, total: Total) -> Tensor:
        """Weights of a mean over all completion tokens."""
        return Aggregation().weights(batch, chosen_N, total)

    def critic_weights(self, advantages: AdvantageOutput, chosen_N: Tensor, total: Total) -> None:
        """None: there is no critic."""
        return

    def loss(self, outputs: ModelOutputs, micro_batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute this micro-batch's part of the loss, and metrics that add up over micro-batches."""
        loss = -(micro_batch.weight_M * micro_batch.advantages_M * outputs.logprobs_M).sum()
        return loss, {"nll": loss.detach(), "entropy": micro_batch.share * outputs.entropy_M.detach().sum()}
