"""Keeping the policy near a reference: where the penalty acts and how the divergence is estimated.

KL(policy || reference) is an expectation over the policy's own samples; each said token gives one estimate of it
(Schulman, "Approximating KL divergence", 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.loss.ratio import LARGEST

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch, TokenBatch

Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class KL:
    """Penalty on the divergence from the reference model."""

    where: Literal["off", "loss", "reward"] = "off"
    """Nowhere (no reference model is needed), as a term of the loss, or taken from each said token's reward."""
    estimator: Estimator = "k3"
    """k1: log p/q, unbiased; k2: its square, halved; k3: q/p - 1 - log q/p, unbiased and never negative. In the loss k1
    pulls nowhere on average, k2's gradient is that of the divergence, k3's only near the reference."""
    weight: float = 1e-3
    """What the divergence is multiplied with."""
    clamp: float = 0.0
    """Only k3: an estimate larger than this counts as this much and has no gradient, so that one token can't fill the
    whole gradient; verl, SkyRL and AgentGym-RL have 10, which k3 reaches where a token is 2.6 nats less likely than
    under the reference, or 11 nats more likely. 0 is off, as in the paper and in TRL."""

    def __post_init__(self) -> None:
        """Refuse to reward divergence.

        Raises:
            ValueError: The weight or the clamp is negative.
        """
        if self.weight < 0:
            raise ValueError(f"The weight of KL is {self.weight}; it must be 0 or more.")
        if self.clamp < 0:
            raise ValueError(f"kl.clamp is {self.clamp}; it is the largest estimate, 10 is usual and 0 is off.")

    def reward_penalty(self, experience: TokenBatch) -> Tensor | None:
        """What is taken from the reward of each said token, N; None unless the penalty is in the reward."""
        if self.where != "reward":
            return None
        return self.weight * self._estimated(experience.old_or_rollout_logprobs_N, experience.ref_logprobs_N)

    def loss_term(self, logp_M: Tensor, part: MicroBatch) -> Tensor | None:
        """Estimated divergence at each said token, M; None without a KL term."""
        if self.where == "off":
            return None
        return self._estimated(logp_M, part.ref_logprobs_M)

    def _estimated(self, logp: Tensor, reference: Tensor | None) -> Tensor:
        estimate = divergence(logp, _known(reference), self.estimator)
        return estimate.clamp(max=self.clamp) if self.clamp and self.estimator == "k3" else estimate


def divergence(logp: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """Estimates of KL(policy || reference) from tokens that the policy said, any shape."""
    apart = logp - reference
    if estimator == "k1":
        return apart
    if estimator == "k2":
        return apart.square() / 2
    # Further below the reference e^x would overflow; above it the penalty may well grow on.
    apart = apart.clamp(min=-LARGEST)
    return (-apart).expm1() + apart


def _known(reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError(
            "The algorithm has a KL term, but nobody has asked the reference model for its log-probabilities. "
            "Give the learner a reference model, or set the algorithm's kl.where to 'off'."
        )
    return reference
