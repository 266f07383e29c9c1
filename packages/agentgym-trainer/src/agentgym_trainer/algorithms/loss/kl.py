"""Penalties on the divergence of the policy from a reference model.

KL(policy || reference) is an expectation over the policy's own samples; each completion token gives one estimate of it
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
    """off: no penalty, no reference model. loss: a term of the loss. reward: subtracted from the reward of each
    completion token."""
    estimator: Estimator = "k3"
    """k1: log p/q, unbiased; k2: its square, halved; k3: q/p - 1 - log q/p, unbiased and never negative. In the loss,
    k1's gradient is 0 in expectation, k2's is that of the divergence, k3's is so only near the reference."""
    weight: float = 1e-3
    """Coefficient of the divergence."""
    clamp: float = 0.0
    """Only with k3: clamp estimates at this value, without a gradient above it, so that a single token can't dominate
    the gradient. verl, SkyRL and AgentGym-RL use 10, which k3 reaches for a token that is 2.6 nats less likely than
    under the reference, or 11 nats more likely. 0 turns it off, as in the paper and in TRL."""

    def __post_init__(self) -> None:
        """Check weight and clamp.

        Raises:
            ValueError: The weight or the clamp is negative.
        """
        if self.weight < 0:
            raise ValueError(f"The weight of KL is {self.weight}; it must be 0 or more.")
        if self.clamp < 0:
            raise ValueError(f"kl.clamp is {self.clamp}; it is the largest estimate, 10 is usual and 0 turns it off.")

    def reward_penalty(self, batch: TokenBatch) -> Tensor | None:
        """Return the penalty on the reward of each completion token, N; None unless `where` is reward."""
        if self.where != "reward":
            return None
        return self.weight * self._estimate(batch.old_or_rollout_logprobs_N, batch.ref_logprobs_N)

    def loss_term(self, logp_M: Tensor, micro_batch: MicroBatch) -> Tensor | None:
        """Return the estimated divergence at each completion token, M; None without a KL term."""
        if self.where == "off":
            return None
        return self._estimate(logp_M, micro_batch.ref_logprobs_M)

    def _estimate(self, logp: Tensor, reference: Tensor | None) -> Tensor:
        estimate = divergence(logp, _require(reference), self.estimator)
        return estimate.clamp(max=self.clamp) if self.clamp and self.estimator == "k3" else estimate


def divergence(logp: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """Estimate KL(policy || reference) at tokens that the policy sampled, any shape."""
    log_ratio = logp - reference
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    # exp would overflow for very negative log-ratios; positive ones need no bound.
    log_ratio = log_ratio.clamp(min=-LARGEST)
    return (-log_ratio).expm1() + log_ratio


def _require(reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError(
            "The algorithm has a KL term, but the batch has no log-probabilities of the reference model. "
            "Give the learner a reference model, or set the algorithm's kl.where to 'off'."
        )
    return reference
