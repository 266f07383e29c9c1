"""GraphGPO (arXiv 2605.26684): advantages from distances to the goal in the graph of a group's transitions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentgym_trainer.algorithms.advantages.anchors import (
    Anchor,
    anchors,
    group_sizes,
    split_groups,
    token_advantages,
)
from agentgym_trainer.algorithms.advantages.group_relative import Baseline, Scale, relative
from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate, turn_rewards
from agentgym_trainer.algorithms.group_filter import ROUNDING

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total


@dataclass(frozen=True)
class GoalDistance:
    """Advantage of the episode's return plus `step_weight` times that of the distance to the goal after the turn.

    The turns of a group of episodes are the edges of a graph whose nodes are anchors. The distance of a node is the
    number of turns on the shortest path to the end of an episode that reached the goal; nodes without a path are one
    turn farther than the farthest node that has one. A turn that leads to distance d is worth `omega`^d, compared with
    the other turns that begin at the same node. A turn that is alone there has a step advantage of 0, and so have all
    turns of a group in which no episode reached the goal.
    """

    needs_critic: ClassVar[bool] = False
    compares_groups: ClassVar[bool] = True

    step_weight: float = 1.0
    """Weight of the step advantage: 0 is GRPO."""
    omega: float = 0.1
    """Discount of distances, between 0 and 1."""
    goal: float = 1.0
    """Score by the environment from which an episode counts as having reached the goal, however its rewards are
    shaped."""
    anchor: Anchor = "observation"
    """What the turns at a node have in common, as in `StepGroups`. The graph assumes that equal anchors have equal
    futures."""
    scale: Scale = "std"
    """Divide by the standard deviation at both levels (n - 1 in the denominator), or don't divide."""
    baseline: Baseline = "mean"
    """Baseline at both levels, as in `StepGroups`."""
    whiten: bool = False
    """Finally normalize over all completion tokens of all processes, as in `GroupRelative`."""

    def __post_init__(self) -> None:
        if not 0 < self.omega < 1:
            raise ValueError(f"advantages.omega is {self.omega}; it must be between 0 and 1.")

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Compute advantages; 0 where neither group carries a signal.

        Metrics, over the turns that have completion tokens: those of `group_sizes`, for the turns that begin at the
        same node.

        Raises:
            ValueError: The anchor is the observation, and the batch has no observations.
        """
        turns, anchor_EK = turn_rewards(batch, penalty_N), anchors(batch, self.anchor)
        node_EK, distance_EK = self._distances(batch, anchor_EK)
        e_X, k_X = turns.completed_EK.nonzero(as_tuple=True)
        node_X, distance_X, tokens_EK = node_EK[e_X, k_X], distance_EK[e_X, k_X], turns.tokens_EK
        # Relative to the best turn at the node, whatever the distance: omega^d alone would vanish far from the goal.
        best_V = distance_X.new_full((_count(node_X),), math.inf).scatter_reduce(0, node_X, distance_X, "amin")
        worth_X = self.omega ** (distance_X - best_V[node_X])
        episode_E = relative(turns.returns, batch.group_E, tokens_EK.sum(1), baseline=self.baseline, scale=self.scale)
        step_X = relative(worth_X, node_X, tokens_EK[e_X, k_X], baseline=self.baseline, scale=self.scale)
        advantage_EK = turns.reward_EK.index_put((e_X, k_X), episode_E[e_X] + self.step_weight * step_X)
        advantage_N = token_advantages(batch, advantage_EK, whiten=self.whiten, total=total)
        return AdvantageEstimate(advantage_N, metrics=group_sizes(node_X, total))

    def _distances(self, batch: TokenBatch, anchor_EK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the node at which each turn begins, and the distance to the goal after it, float64; both EK."""
        e_X, k_X = batch.played_EK.nonzero(as_tuple=True)
        group_X, zero_X = batch.group_E[e_X], batch.rewards_EK.new_zeros(len(e_X)).double()
        node_X = split_groups(group_X, anchor_EK[e_X, k_X])
        node_EK = anchor_EK.new_full(anchor_EK.shape, -1).index_put((e_X, k_X), node_X)
        next_X, last_X = node_EK.roll(-1, 1)[e_X, k_X], k_X == batch.played_EK.sum(1)[e_X] - 1
        score_E = (batch.rewards_EK * batch.played_EK).sum(1) if batch.score_E is None else batch.score_E
        reached_E = score_E.double() >= self.goal - ROUNDING
        end_X = zero_X.where(reached_E[e_X], math.inf)
        shorter_V, distance_V = zero_X.new_full((_count(node_X),), math.inf), None
        while distance_V is None or bool((shorter_V < distance_V).any()):  # Paths grow by a turn in each round.
            distance_V = shorter_V
            after_X = end_X.where(last_X, distance_V[next_X])
            shorter_V = distance_V.scatter_reduce(0, node_X, after_X + 1, "amin")
        finite_X = distance_V[node_X].where(distance_V[node_X] < math.inf, 0.0)
        farthest_G = zero_X.new_zeros(_count(group_X)).scatter_reduce(0, group_X, finite_X, "amax")
        after_X = end_X.where(last_X, distance_V[next_X])
        after_X = after_X.where(after_X < math.inf, farthest_G[group_X] + 1)
        return node_EK, zero_X.new_zeros(anchor_EK.shape).index_put((e_X, k_X), after_X)


def _count(index_X: Tensor) -> int:
    """Number of indices from 0 to the largest."""
    return int(index_X.max()) + 1 if len(index_X) else 0
