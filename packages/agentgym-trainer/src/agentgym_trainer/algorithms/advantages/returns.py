"""Rewards of completion tokens and turns, and discounted returns.

A turn without completion tokens made no decision: its reward is assigned to the nearest earlier completion token of
its episode, or to the next one if there is none earlier. So every reward is assigned, except in episodes without any
completion tokens, which still count as members of their group.

The value after an episode's last turn is 0: where the horizon truncated it, the horizon is part of the task that is
being trained. Only `GAE`, which has a critic, can bootstrap from a value. Sums run in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentgym_trainer.algorithms.group_filter import ROUNDING

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """The result of an advantage estimator."""

    advantages_N: Tensor
    """Advantage of each completion token, float32."""
    value_targets_N: Tensor | None = None
    """Regression target of the critic at each completion token, float32; None without a critic."""
    value_mask_N: Tensor | None = None
    """Completion tokens at which the critic is trained, bool; None without a critic."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of the estimator, over all processes."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Rewards and sizes of turns; 0 for turns without completion tokens and after the last turn."""

    reward_EK: Tensor
    """Reward of each turn minus the penalties of its tokens, float64. Episodes without completion tokens keep their
    rewards where they are."""
    tokens_EK: Tensor
    """Number of completion tokens of each turn, int64."""

    @property
    def completed_EK(self) -> Tensor:  # noqa: N802 - the suffix is the shape
        """Whether the turn has completion tokens, bool."""
        return self.tokens_EK > 0

    @property
    def returns(self) -> Tensor:
        """Undiscounted return of each episode, minus penalties, E, float64."""
        return self.reward_EK.sum(1)

    def to_go(self, gamma: float) -> Tensor:
        """Discounted return-to-go of each turn, EK, float64."""
        episode_X = self.tokens_EK.new_ones(self.tokens_EK.shape).nonzero(as_tuple=True)[0]
        return discounted(self.reward_EK.flatten(), episode_X, gamma).view_as(self.reward_EK)


def token_rewards(batch: TokenBatch, penalty_N: Tensor | None = None) -> Tensor:
    """Return the reward of each completion token, N, float64.

    A turn's reward is assigned to its last completion token; penalties stay at their own tokens.

    Args:
        batch: Completion tokens and the rewards of turns.
        penalty_N: Subtracted from the reward of each completion token; None is 0.
    """
    tokens_EK = _token_counts(batch)
    end_EK = tokens_EK.flatten().cumsum(0).view_as(tokens_EK)
    start_E1 = end_EK[:, :1] - tokens_EK[:, :1]
    last_EK = (end_EK - 1).maximum(start_E1)
    assigned_EK = batch.played_EK & (tokens_EK.sum(1, keepdim=True) > 0)
    reward_N = batch.rewards_EK.new_zeros(len(batch.turn_N)).double()
    reward_N = reward_N.index_add(0, last_EK[assigned_EK], batch.rewards_EK[assigned_EK].double())
    return reward_N if penalty_N is None else reward_N - penalty_N.double()


def turn_rewards(batch: TokenBatch, penalty_N: Tensor | None = None) -> Turns:
    """Return the reward of each turn, which is the sum over its tokens (see `token_rewards`)."""
    tokens_EK = _token_counts(batch)
    empty_E1 = tokens_EK.sum(1, keepdim=True) == 0
    kept_EK = batch.rewards_EK.double() * (batch.played_EK & empty_E1)
    indices = (batch.episode_N, batch.turn_N)
    reward_EK = kept_EK.index_put(indices, token_rewards(batch, penalty_N), accumulate=True)
    return Turns(reward_EK, tokens_EK)


def discounted(value_X: Tensor, episode_X: Tensor, gamma: float) -> Tensor:
    """Return discounted sums: the sum over i >= 0 of gamma^i * value[x + i] within the episode of x.

    The summed window doubles in each round, so the number of rounds is logarithmic in the length of the longest
    episode.

    Args:
        value_X: Values in temporal order.
        episode_X: Episode of each value; the values of an episode are contiguous.
        gamma: Discount from one value to the next.
    """
    reach, sum_X = 1, value_X.clone()
    while bool((same_X := episode_X[reach:] == episode_X[:-reach]).any()):
        ahead_X = sum_X[reach:].where(same_X, 0.0)
        sum_X[:-reach] += gamma**reach * ahead_X
        reach *= 2
    return sum_X


def normalised(value_X: Tensor, total: Total) -> Tensor:
    """Return (value - mean) / std over all processes, n in the denominator; 0 if all are equal up to rounding."""
    count = total(value_X.new_full((), len(value_X))).clamp(min=1)
    mean = total(value_X.sum()) / count
    centred_X = value_X - mean
    std = (total(centred_X.square().sum()) / count).sqrt()
    return (centred_X / std).where(std > ROUNDING * mean.abs().clamp(min=1), 0.0)


def check_discounts(**discounts: float) -> None:
    """Check that discounts are within [0, 1].

    Raises:
        ValueError: A discount isn't from 0 to 1.
    """
    for name, value in discounts.items():
        if not 0 <= value <= 1:
            raise ValueError(f"advantages.{name} is {value}; it must be from 0 to 1, where 1 means no discount.")


def _token_counts(batch: TokenBatch) -> Tensor:
    """Number of completion tokens of each turn, EK, int64."""
    zeros_EK = batch.turn_N.new_zeros(batch.played_EK.shape)
    indices = (batch.episode_N, batch.turn_N)
    return zeros_EK.index_put(indices, batch.turn_N.new_ones(()), accumulate=True)
