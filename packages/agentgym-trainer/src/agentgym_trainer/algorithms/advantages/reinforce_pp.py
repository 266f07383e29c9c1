"""REINFORCE++ (arXiv 2501.03262): per-token returns-to-go, normalized over the global batch. No critic."""

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
    """The return-to-go of each token minus the penalties from it on, normalized over the batch.

    The mean and standard deviation (n in the denominator) are those of all completion tokens of all processes, as in
    the authors' OpenRLHF.
    """

    needs_critic: ClassVar[bool] = False

    gamma: float = 1.0
    """Discount from completion token to completion token."""
    baseline: bool = False
    """REINFORCE++ with baseline: first subtract the mean of the group from the episode's return, and assign the result
    to the episode's last completion token, like the paper's single reward. Turns are not distinguished."""

    def __post_init__(self) -> None:
        check_discounts(gamma=self.gamma)

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Compute advantages. The mean of the batch shifts all groups alike, including those without a signal."""
        reward_N = self._centred(batch) if self.baseline else token_rewards(batch)
        if penalty_N is not None:
            reward_N = reward_N - penalty_N.double()
        to_go_N = discounted(reward_N, batch.episode_N, self.gamma)
        return AdvantageEstimate(normalised(to_go_N, total).float())

    def _centred(self, batch: TokenBatch) -> Tensor:
        """The episode's return minus the group mean, at its last completion token; 0 elsewhere. N, float64."""
        turns = turn_rewards(batch)
        centred_E = relative(turns.returns, batch.group_E, turns.tokens_EK.sum(1))
        episode_N = batch.episode_N
        last_N = episode_N.new_ones(len(episode_N)).bool()
        last_N[:-1] = episode_N[1:] != episode_N[:-1]
        return centred_E[episode_N] * last_N
