"""HGPO (arXiv 2602.22817): advantages relative to turns at the same anchor with ever longer equal histories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentgym_trainer.algorithms.advantages.anchors import (
    Anchor,
    anchors,
    group_sizes,
    split_groups,
    token_advantages,
)
from agentgym_trainer.algorithms.advantages.group_relative import Baseline, Scale, relative, rounding
from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate, check_discounts, turn_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total


@dataclass(frozen=True)
class NestedStepGroups:
    """Weighted mean of a turn's advantages in nested step groups.

    The group of level k holds the turns of a group of episodes that have the same anchor, and the same k anchors before
    it. Its advantage compares discounted returns-to-go. The mean is over the levels from 0 to `history` at which the
    return differs from the baseline by more than rounding, with weights (k + 1)^`weight_power`. A turn without such a
    level has the advantage 0.
    """

    needs_critic: ClassVar[bool] = False
    compares_groups: ClassVar[bool] = True

    history: int = 2
    """Number of earlier anchors at the highest level: 0 has the step groups of GiGPO only."""
    weight_power: float = 1.0
    """Exponent alpha of the weights: 0 weights all levels equally."""
    gamma: float = 0.95
    """Discount from turn to turn."""
    anchor: Anchor = "observation"
    """What the turns of a step group have in common, as in `StepGroups`."""
    scale: Scale = "std"
    """Divide by the standard deviation of the step group's returns (n - 1 in the denominator), or don't divide."""
    baseline: Baseline = "mean"
    """Baseline of a step group, as in `GroupRelative`; `length` weights a turn by its completion tokens."""
    whiten: bool = False
    """Finally normalize over all completion tokens of all processes, as in `GroupRelative`."""

    def __post_init__(self) -> None:
        check_discounts(gamma=self.gamma)
        if self.history < 0:
            raise ValueError(f"advantages.history is {self.history}; it must be at least 0, where 0 compares states.")

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Compute advantages; 0 where no group carries a signal.

        Metrics, over the turns that have completion tokens: those of `group_sizes` at level 0.

        Raises:
            ValueError: The anchor is the observation, and the batch has no observations.
        """
        anchor_EK, turns = anchors(batch, self.anchor), turn_rewards(batch, penalty_N)
        e_X, k_X = turns.completed_EK.nonzero(as_tuple=True)
        return_X, length_X = turns.to_go(self.gamma)[e_X, k_X], turns.tokens_EK[e_X, k_X]
        group_X = split_groups(batch.group_E[e_X], anchor_EK[e_X, k_X])
        metrics = group_sizes(group_X, total)
        weighted_X, weights_X = return_X.new_zeros(len(return_X)), return_X.new_zeros(len(return_X))
        for level in range(self.history + 1):
            if level:
                # Anchors are from 0, so turns with a shorter history share groups with each other only.
                earlier_X = anchor_EK[e_X, (k_X - level).clamp(min=0)].where(k_X >= level, -1)
                group_X = split_groups(group_X, earlier_X)
            difference_X = relative(return_X, group_X, length_X, baseline=self.baseline)
            advantage_X = relative(return_X, group_X, length_X, baseline=self.baseline, scale=self.scale)
            differs_X = difference_X.abs() > rounding(return_X, group_X)
            weight_X = (level + 1) ** self.weight_power * (differs_X & (k_X >= level)).double()
            weighted_X, weights_X = weighted_X + weight_X * advantage_X, weights_X + weight_X
        advantage_X = (weighted_X / weights_X).where(weights_X > 0, 0.0)
        advantage_EK = turns.reward_EK.new_zeros(turns.reward_EK.shape).index_put((e_X, k_X), advantage_X)
        advantage_N = token_advantages(batch, advantage_EK, whiten=self.whiten, total=total)
        return AdvantageEstimate(advantage_N, metrics=metrics)
