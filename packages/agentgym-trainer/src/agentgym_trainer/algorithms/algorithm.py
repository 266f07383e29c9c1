"""An algorithm combines an advantage estimator with a loss made of orthogonal options. Tensors in, tensors out.

It does not depend on models, optimizers or processes; sums over processes are passed in as `Total`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.advantages.base import AdvantageEstimator
from agentgym_trainer.algorithms.advantages.gae import GAE
from agentgym_trainer.algorithms.advantages.gigpo import StepGroups
from agentgym_trainer.algorithms.advantages.graphgpo import GoalDistance
from agentgym_trainer.algorithms.advantages.group_relative import GroupRelative
from agentgym_trainer.algorithms.advantages.hgpo import NestedStepGroups
from agentgym_trainer.algorithms.advantages.reinforce_pp import TokenReturns
from agentgym_trainer.algorithms.group_filter import ROUNDING, GroupFilter, same
from agentgym_trainer.algorithms.loss.aggregation import Aggregation
from agentgym_trainer.algorithms.loss.clip import Clip, ratios
from agentgym_trainer.algorithms.loss.correction import Correction
from agentgym_trainer.algorithms.loss.critic import Critic
from agentgym_trainer.algorithms.loss.kl import KL, divergence
from agentgym_trainer.algorithms.loss.ratio import Level
from agentgym_trainer.algorithms.types import AdvantageOutput

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch, ModelOutputs, TokenBatch, Total

ADVANTAGES: dict[str, AdvantageEstimator] = {
    "group-relative": GroupRelative(),
    "token-returns": TokenReturns(),
    "gae": GAE(),
    "step-groups": StepGroups(),
    "nested-step-groups": NestedStepGroups(),
    "goal-distance": GoalDistance(),
}
"""Advantage estimators by command-line name."""


@dataclass(frozen=True)
class Algorithm:
    """Policy-gradient learning from episodes. The defaults are GRPO without a reference model."""

    advantages: AdvantageEstimator = field(default_factory=GroupRelative)
    """How rewards become advantages of completion tokens."""
    ratio: Level = "token"
    """Level of the importance ratio: per token, or the geometric mean over the tokens of a turn or episode."""
    clip: Clip = field(default_factory=Clip)
    """How ratios are kept close to 1."""
    aggregation: Aggregation = field(default_factory=Aggregation)
    """How the loss is averaged over tokens."""
    kl: KL = field(default_factory=KL)
    """Penalty on the divergence from a reference model."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus, which is averaged like the loss."""
    correction: Correction = field(default_factory=Correction)
    """Importance weights that correct for the mismatch between the engine that sampled and the learner."""
    critic: Critic = field(default_factory=Critic)
    """The critic's loss, if the advantages need a critic."""
    groups: GroupFilter = field(default_factory=GroupFilter)
    """What to do with groups that carry little or no learning signal."""

    @property
    def needs_reference(self) -> bool:
        """Whether the batch must have `ref_logprobs_N`."""
        return self.kl.where != "off"

    @property
    def needs_critic(self) -> bool:
        """Whether the batch must have `values_N`, and model outputs `values_M`."""
        return self.advantages.needs_critic

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the batch must have `old_logprobs_N`; without it the correction would have nothing to correct."""
        return self.correction.level != "off"

    @property
    def unit(self) -> Literal["segment", "episode"]:
        """The unit that micro-batches must not split: sequence-level ratios and weights need whole episodes."""
        return "episode" if "sequence" in (self.ratio, self.correction.level) else "segment"

    def compute_advantages(self, batch: TokenBatch, total: Total) -> AdvantageOutput:
        """Compute advantages and critic targets, with statistics over all processes.

        Raises:
            ValueError: The batch lacks what the algorithm needs, or the estimator returned tensors of the wrong shape.
        """
        penalty_N = self.kl.reward_penalty(batch)
        estimate = self.advantages.estimate(batch, penalty_N, total)
        for name, values_N in (("advantages_N", estimate.advantages_N), ("value_targets_N", estimate.value_targets_N)):
            shape, tokens = None if values_N is None else tuple(values_N.shape), len(batch.episode_N)
            if shape not in (None, (tokens,)):
                raise ValueError(f"{name} has the shape {shape} and not ({tokens},), one for each completion token")
        return_E = batch.rewards_EK.sum(1)
        value_mask_N = None if estimate.value_mask_N is None else estimate.value_mask_N & batch.loss_mask_N
        metrics = (
            estimate.metrics
            | statistics("return", return_E, total)
            | statistics("advantage", estimate.advantages_N, total)
        )
        if penalty_N is not None:
            metrics["penalty"] = _moments(penalty_N, total)[0]
        if batch.values_N is not None and estimate.value_targets_N is not None and value_mask_N is not None:
            target_X, value_X = estimate.value_targets_N[value_mask_N], batch.values_N[value_mask_N]
            variance, left = _moments(target_X, total)[1], _moments(target_X - value_X, total)[1]
            metrics["explained_variance"] = 1 - left / variance if variance > ROUNDING**2 else 0.0
        return AdvantageOutput(estimate.advantages_N, metrics, estimate.value_targets_N, value_mask_N)

    def is_flat(self, group: TokenBatch) -> bool:
        """Whether this group, the only one in the batch, carries no learning signal: without KL penalties, the
        advantages of all tokens in the loss are 0. For estimators that don't compare within groups, a group is flat if
        all its returns are equal.
        """
        if not getattr(self.advantages, "compares_groups", False):
            return same(group.rewards_EK.double().sum(1).tolist())
        advantage_N = self.advantages.estimate(group, None, lambda local: local).advantages_N
        return not bool(advantage_N[group.loss_mask_N].any())

    def weights(self, batch: TokenBatch, chosen_N: Tensor, total: Total) -> Tensor:
        """Loss weight of each completion token that was chosen for an optimizer step, N, float32; 0 for the others."""
        return self.aggregation.weights(batch, chosen_N, total)

    def critic_weights(self, advantages: AdvantageOutput, chosen_N: Tensor, total: Total) -> Tensor | None:
        """Weight of each chosen completion token in the critic's mean squared error, N, float32; None without a
        critic.
        """
        if advantages.value_mask_N is None:
            return None
        counted_N = (advantages.value_mask_N & chosen_N).double()
        return (counted_N / total(counted_N.sum()).clamp(min=1)).float()

    def loss(self, outputs: ModelOutputs, micro_batch: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute this micro-batch's part of the loss, and metrics that add up over micro-batches and processes.

        Metrics are means over completion tokens, those of the critic over the tokens that it is trained at: `ratio` and
        `clip_fraction` of the policy ratio, `approx_kl` between the engine's policy and this one, `ref_kl` (with a KL
        term), `entropy` in nats, and those of `Correction` and `Critic`. `advantage/mean_token` is the mean advantage
        over completion tokens, each with its weight in the loss: below 0, the update makes the sampled tokens less
        likely on average.
        """
        ratio_M = ratios(outputs.logprobs_M, micro_batch, self.ratio)
        objective_M, clipped_M = self.clip.surrogate(ratio_M, outputs.logprobs_M, micro_batch.advantages_M)
        weight_M, metrics = self.correction.importance_weights(micro_batch)
        if weight_M is not None:
            objective_M = weight_M * objective_M
        token_metrics = {
            "ratio": ratio_M,
            "clip_fraction": clipped_M,
            "approx_kl": divergence(micro_batch.rollout_logprobs_M, outputs.logprobs_M, "k3"),
            "entropy": outputs.entropy_M,
        }
        if (kl_M := self.kl.loss_term(outputs.logprobs_M, micro_batch)) is not None:
            token_metrics["ref_kl"] = kl_M
            if self.kl.where == "loss":
                objective_M = objective_M - self.kl.weight * kl_M
        if self.entropy:
            objective_M = objective_M + self.entropy * outputs.entropy_M
        loss = -(micro_batch.weight_M * objective_M).sum()
        metrics |= {name: micro_batch.share * values_M.sum().detach() for name, values_M in token_metrics.items()}
        metrics["advantage/mean_token"] = (self.aggregation.shares(micro_batch) * micro_batch.advantages_M).sum()
        critic_loss, critic_metrics = self.critic.loss(outputs, micro_batch)
        return loss if critic_loss is None else loss + critic_loss, metrics | critic_metrics


def statistics(name: str, values_X: Tensor, total: Total) -> dict[str, float]:
    """Return mean and standard deviation of values over all processes, as the metrics `NAME` and `NAME_std`."""
    mean, variance = _moments(values_X, total)
    return {name: mean, f"{name}_std": variance**0.5}


def _moments(values_X: Tensor, total: Total) -> tuple[float, float]:
    """Mean and variance over all processes, both 0 without values. Two passes, since E[x^2] - E[x]^2 loses digits."""
    values_X = values_X.double()
    count, summed = total(values_X.new_tensor([len(values_X), values_X.sum().item()])).tolist()
    mean = summed / max(count, 1)
    return mean, total((values_X - mean).square().sum()).item() / max(count, 1)
