"""REINFORCE++ (arXiv 2501.03262): returns from each token on, normalised over the global batch. No critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentgym_trainer.algorithms.advantages.group_relative import relative
from agentgym_trainer.algorithms.advantages.returns import (
    AdvantageEstimate,
    check_discounts,
    discounted,
    normalised,
    token_rewards,
    turn_rewards,
)

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total


@dataclass(frozen=True)
class TokenReturns:
    """What each token still earned, minus the penalties from it on, over the batch's mean and standard deviation.

    The mean and standard deviation (n in the denominator) are those of all said tokens of all processes, as in the
    authors' OpenRLHF.
    """

    needs_critic: ClassVar[bool] = False

    gamma: float = 1.0
    """Discount from said token to said token."""
    baseline: bool = False
    """REINFORCE++ with baseline: first the mean of the group is subtracted from the episode's return, which then counts
    as paid at the last said token, as the paper's only reward is. Turns are not told apart."""

    def __post_init__(self) -> None:
        check_discounts(gamma=self.gamma)

    def estimate(self, experience: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Advantages. The batch's mean moves all groups alike, those that teach nothing too."""
        reward_N = self._centred(experience) if self.baseline else token_rewards(experience)
        if penalty_N is not None:
            reward_N = reward_N - penalty_N.double()
        to_go_N = discounted(reward_N, experience.episode_N, self.gamma)
        return AdvantageEstimate(normalised(to_go_N, total).float())

    def _centred(self, experience: TokenBatch) -> Tensor:
        """The episode's return minus the mean of its group, at its last said token; 0 elsewhere. N, float64."""
        turns = turn_rewards(experience)
        centred_E = relative(turns.returns, experience.group_E, turns.tokens_EK.sum(1))
        episode_N = experience.episode_N
        last_N = episode_N.new_ones(len(episode_N)).bool()
        last_N[:-1] = episode_N[1:] != episode_N[:-1]
        return centred_E[episode_N] * last_N
