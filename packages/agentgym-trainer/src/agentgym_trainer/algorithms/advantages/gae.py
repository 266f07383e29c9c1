"""Generalized advantage estimation (arXiv 1506.02438, eq. 16) with a critic, as in PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentgym_trainer.algorithms.advantages.returns import (
    AdvantageEstimate,
    check_discounts,
    discounted,
    normalised,
    token_rewards,
)

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total


@dataclass(frozen=True)
class GAE:
    """Discounted sum of temporal-difference errors, over completion tokens or over turns.

    An action is one completion token, or all completion tokens of a turn. The state before an action is read at its
    first token; the critic is evaluated and trained only there. The next state is that of the episode's next action,
    however many observation tokens lie in between. After the last action, the next value is `TokenBatch.bootstrap_E`,
    the critic's value of the state after a truncated episode (partial-episode bootstrapping, Pardo et al. 2018, arXiv
    1712.00378); without it, it is 0, for truncated episodes too.
    """

    needs_critic: ClassVar[bool] = True
    bootstraps: ClassVar[bool] = True

    level: Literal["token", "turn"] = "token"
    """What counts as an action. turn: one critic value and one advantage per turn (arXiv 2512.17008)."""
    gamma: float = 1.0
    """Discount from action to action."""
    lam: float = 1.0
    """Weight of later errors: 1 gives the return minus the value, 0 the one-step error."""
    whiten: bool = True
    """Normalize advantages by their mean and standard deviation over the actions of all processes."""

    def __post_init__(self) -> None:
        check_discounts(gamma=self.gamma, lam=self.lam)

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Compute advantages, critic targets (advantage + value, before whitening) and the mask of first tokens.

        Raises:
            ValueError: The batch has no critic values.
        """
        if batch.values_N is None:
            raise ValueError("GAE needs critic values, but the batch has none; choose a critic, or other advantages.")
        first_N = self._first(batch)
        action_N = first_N.cumsum(0) - 1
        reward_N = token_rewards(batch, penalty_N)
        value_X, episode_X = batch.values_N.double()[first_N], batch.episode_N[first_N]
        reward_X = value_X.new_zeros(len(value_X)).index_add(0, action_N, reward_N)
        next_X = value_X.new_zeros(len(value_X))
        if batch.bootstrap_E is not None:
            next_X = batch.bootstrap_E.double()[episode_X]
        next_X[:-1] = value_X[1:].where(episode_X[1:] == episode_X[:-1], next_X[:-1])
        error_X = reward_X + self.gamma * next_X - value_X
        advantage_X = discounted(error_X, episode_X, self.gamma * self.lam)
        target_X = advantage_X + value_X
        if self.whiten:
            advantage_X = normalised(advantage_X, total)
        return AdvantageEstimate(advantage_X[action_N].float(), target_X[action_N].float(), first_N)

    def _first(self, batch: TokenBatch) -> Tensor:
        """Mask of completion tokens that begin an action, N, bool."""
        first_N = batch.played_EK.new_ones(len(batch.turn_N))
        if self.level == "turn":
            episode_N, turn_N = batch.episode_N, batch.turn_N
            first_N[1:] = (episode_N[1:] != episode_N[:-1]) | (turn_N[1:] != turn_N[:-1])
        return first_N
