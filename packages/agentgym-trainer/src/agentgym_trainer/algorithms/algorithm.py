"""An algorithm: who gets credit, and a loss of orthogonal choices. Tensors in, tensors out.

It knows neither models nor optimizers nor processes; sums over processes are handed in (`Total`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.advantages.base import AdvantageEstimator
from agentgym_trainer.algorithms.advantages.gae import GAE
from agentgym_trainer.algorithms.advantages.gigpo import StepGroups
from agentgym_trainer.algorithms.advantages.group_relative import GroupRelative
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
}
"""Advantage estimators by the names that the command line takes."""


@dataclass(frozen=True)
class Algorithm:
    """Policy-gradient learning from episodes. The defaults are GRPO's without a reference model."""

    advantages: AdvantageEstimator = field(default_factory=GroupRelative)
    """How rewards become advantages of said tokens."""
    ratio: Level = "token"
    """Whose probability the importance ratio compares: each token's, or the geometric mean over its turn or episode."""
    clip: Clip = field(default_factory=Clip)
    """How ratios are kept near 1."""
    aggregation: Aggregation = field(default_factory=Aggregation)
    """What the loss is a mean of."""
    kl: KL = field(default_factory=KL)
    """Penalty on leaving a reference model."""
    entropy: float = 0.0
    """Weight of the entropy bonus, which is a mean as the loss is."""
    correction: Correction = field(default_factory=Correction)
    """Importance weights between the engine that sampled and the learner."""
    critic: Critic = field(default_factory=Critic)
    """The critic's loss, where the advantages need one."""
    groups: GroupFilter = field(default_factory=GroupFilter)
    """What the loop does with groups that teach little."""

    @property
    def needs_reference(self) -> bool:
        """Whether the experience must have `reference_N`."""
        return self.kl.where != "off"

    @property
    def needs_critic(self) -> bool:
        """Whether the experience must have `value_N`, and scores `value_M`."""
        return self.advantages.needs_critic

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the experience must have `old_N`: without it the correction would find nothing to correct."""
        return self.correction.level != "off"

    @property
    def unit(self) -> Literal["segment", "episode"]:
        """What a part must hold whole: ratios and weights of a sequence need all its said tokens."""
        return "episode" if "sequence" in (self.ratio, self.correction.level) else "segment"

    def compute_advantages(self, experience: TokenBatch, total: Total) -> AdvantageOutput:
        """Advantages of the said tokens and targets for the critic, with their statistics over all processes.

        Raises:
            ValueError: The experience lacks what the algorithm needs, or the estimator returned other shapes.
        """
        penalty_N = self.kl.reward_penalty(experience)
        assigned = self.advantages.estimate(experience, penalty_N, total)
        for name, figure_N in (("advantages_N", assigned.advantages_N), ("value_targets_N", assigned.value_targets_N)):
            shape, tokens = None if figure_N is None else tuple(figure_N.shape), len(experience.episode_N)
            if shape not in (None, (tokens,)):
                raise ValueError(f"{name} has the shape {shape} and not ({tokens},), one for each completion token")
        return_E = experience.rewards_EK.sum(1)
        valued_N = None if assigned.value_mask_N is None else assigned.value_mask_N & experience.loss_mask_N
        metrics = (
            assigned.metrics
            | _statistics("return", return_E, total)
            | _statistics("advantage", assigned.advantages_N, total)
        )
        if penalty_N is not None:
            metrics["penalty"] = _moments(penalty_N, total)[0]
        if experience.values_N is not None and assigned.value_targets_N is not None and valued_N is not None:
            target_X, value_X = assigned.value_targets_N[valued_N], experience.values_N[valued_N]
            variance, left = _moments(target_X, total)[1], _moments(target_X - value_X, total)[1]
            metrics["explained_variance"] = 1 - left / variance if variance > ROUNDING**2 else 0.0
        return AdvantageOutput(assigned.advantages_N, metrics, assigned.value_targets_N, valued_N)

    def is_flat(self, group: TokenBatch) -> bool:
        """Whether this group, the only one in the experience, has nothing for the advantages to tell apart: without KL
        penalties, all are 0 at the tokens in the loss. Where estimators don't compare within groups, all returns are
        the same.
        """
        if not getattr(self.advantages, "compares_groups", False):
            return same(group.rewards_EK.double().sum(1).tolist())
        advantage_N = self.advantages.estimate(group, None, lambda here: here).advantages_N
        return not bool(advantage_N[group.loss_mask_N].any())

    def weights(self, experience: TokenBatch, chosen_N: Tensor, total: Total) -> Tensor:
        """Share in the loss of each said token that was chosen for an optimizer step, N, float32; 0 elsewhere."""
        return self.aggregation.weights(experience, chosen_N, total)

    def critic_weights(self, credit: AdvantageOutput, chosen_N: Tensor, total: Total) -> Tensor | None:
        """Share of each chosen said token in the critic's mean squared error, N, float32; None without a critic."""
        if credit.value_mask_N is None:
            return None
        counted_N = (credit.value_mask_N & chosen_N).double()
        return (counted_N / total(counted_N.sum()).clamp(min=1)).float()

    def loss(self, scores: ModelOutputs, part: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The part of the loss that these tokens carry, and metrics that add up over parts and processes.

        Metrics are means over said tokens, those of the critic over the tokens it is trained at: `ratio` and `clip_fraction`
        (share) of the policy's ratio, `approx_kl` between the engine's policy and this one, `ref_kl` (with a KL
        term), `entropy` in nats, and what `Correction` and `Critic` have to say. `advantage/mean_token` is the mean
        advantage over completion tokens, each with its weight in the loss: below 0, the update makes what was sampled
        less likely on the whole.
        """
        ratio_M = ratios(scores.logprobs_M, part, self.ratio)
        gain_M, clipped_M = self.clip.surrogate(ratio_M, scores.logprobs_M, part.advantages_M)
        trust_M, metrics = self.correction.importance_weights(part)
        objective_M = gain_M if trust_M is None else trust_M * gain_M
        figures = {
            "ratio": ratio_M,
            "clip_fraction": clipped_M,
            "approx_kl": divergence(part.rollout_logprobs_M, scores.logprobs_M, "k3"),
            "entropy": scores.entropy_M,
        }
        if (apart_M := self.kl.loss_term(scores.logprobs_M, part)) is not None:
            figures["ref_kl"] = apart_M
            if self.kl.where == "loss":
                objective_M = objective_M - self.kl.weight * apart_M
        if self.entropy:
            objective_M = objective_M + self.entropy * scores.entropy_M
        loss = -(part.weight_M * objective_M).sum()
        metrics |= {name: part.share * figure_M.sum().detach() for name, figure_M in figures.items()}
        metrics["advantage/mean_token"] = (self.aggregation.shares(part) * part.advantages_M).sum()
        error, of_critic = self.critic.loss(scores, part)
        return loss if error is None else loss + error, metrics | of_critic


def _statistics(name: str, values_X: Tensor, total: Total) -> dict[str, float]:
    mean, variance = _moments(values_X, total)
    return {name: mean, f"{name}_std": variance**0.5}


def _moments(values_X: Tensor, total: Total) -> tuple[float, float]:
    """Mean and variance over all processes, 0 of nothing; two sums, for a difference of squares would lose digits."""
    values_X = values_X.double()
    count, summed = total(values_X.new_tensor([len(values_X), values_X.sum().item()])).tolist()
    mean = summed / max(count, 1)
    return mean, total((values_X - mean).square().sum()).item() / max(count, 1)
