"""GiGPO (arXiv 2505.10978): advantages relative to the task's other episodes and to other turns at the same anchor."""

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
from agentgym_trainer.algorithms.advantages.group_relative import Baseline, Scale, relative
from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate, check_discounts, turn_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total


@dataclass(frozen=True)
class StepGroups:
    """Advantage of the episode's return plus `step_weight` times that of the turn's discounted return-to-go.

    A step group holds all turns of a group of episodes that have the same anchor, including repeated visits within one
    episode. A turn that is alone in its step group has a step advantage of 0.
    """

    needs_critic: ClassVar[bool] = False
    compares_groups: ClassVar[bool] = True

    step_weight: float = 1.0
    """Weight omega of the step advantage: 0 is GRPO."""
    gamma: float = 0.95
    """Discount from turn to turn in the step returns; the episode's return isn't discounted."""
    anchor: Anchor = "observation"
    """What the turns of a step group have in common. observation: the text of the last observation, as in the authors'
    code (`anchor_obs`). state: the hash of the simulator's state, which may include what the agent can't observe.
    Either way, plans, reflections and summaries are only compared with their own kind."""
    scale: Scale = "std"
    """F_norm at both levels: the standard deviation (n - 1 in the denominator), or 1."""
    baseline: Baseline = "mean"
    """Baseline at both levels, as in `GroupRelative`; `length` weights a turn by its completion tokens in its step
    group, and an episode by all of its own. The paper's is `mean`, which has the length bias described there."""
    whiten: bool = False
    """Finally normalize over all completion tokens of all processes, as in `GroupRelative`."""

    def __post_init__(self) -> None:
        check_discounts(gamma=self.gamma)

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Compute advantages; 0 where neither group carries a signal.

        Metrics, over the turns that have completion tokens: those of `group_sizes`.

        Raises:
            ValueError: The anchor is the observation, and the batch has no observations.
        """
        anchor_EK, turns = anchors(batch, self.anchor), turn_rewards(batch, penalty_N)
        e_X, k_X = turns.completed_EK.nonzero(as_tuple=True)
        group_X = split_groups(batch.group_E[e_X], anchor_EK[e_X, k_X])
        return_X, tokens_EK = turns.to_go(self.gamma)[e_X, k_X], turns.tokens_EK
        episode_E = relative(turns.returns, batch.group_E, tokens_EK.sum(1), baseline=self.baseline, scale=self.scale)
        step_X = relative(return_X, group_X, tokens_EK[e_X, k_X], baseline=self.baseline, scale=self.scale)
        advantage_EK = turns.reward_EK.index_put((e_X, k_X), episode_E[e_X] + self.step_weight * step_X)
        advantage_N = token_advantages(batch, advantage_EK, whiten=self.whiten, total=total)
        return AdvantageEstimate(advantage_N, metrics=group_sizes(group_X, total))
