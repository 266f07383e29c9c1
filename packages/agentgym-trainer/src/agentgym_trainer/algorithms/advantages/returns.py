"""Rewards where they were earned: at said tokens and at turns; and what is still to come from there.

A turn that said nothing decided nothing: its reward stands at the nearest earlier said token of its episode, else at
the next one. So everything that was paid is assigned, unless a whole episode is mute; that one still counts as a member
of its group.

An episode is worth nothing beyond its last turn: where the horizon truncated it, that is a part of the task that is
being trained. `GAE` alone, which has a critic, can be given a value to go on with. Sums run in float64.
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
    """What an estimator makes of an experience."""

    advantages_N: Tensor
    """Advantage of each said token, float32."""
    value_targets_N: Tensor | None = None
    """What the critic should have expected at each said token, float32; None without a critic."""
    value_mask_N: Tensor | None = None
    """At which said tokens the critic is trained, bool; None without a critic."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """What the estimator has to say, over all processes."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What each turn is worth. Turns that said nothing and those behind the last one hold 0."""

    reward_EK: Tensor
    """Reward of each turn minus the penalties of its tokens, float64. Mute episodes keep theirs."""
    tokens_EK: Tensor
    """Number of completion tokens of each turn, int64."""

    @property
    def said_EK(self) -> Tensor:  # noqa: N802 - shapes stand in names
        """Whether the turn said a token, bool."""
        return self.tokens_EK > 0

    @property
    def returns(self) -> Tensor:
        """What each episode was paid in all, minus penalties, E, float64."""
        return self.reward_EK.sum(1)

    def to_go(self, gamma: float) -> Tensor:
        """Discounted return from each turn on, EK, float64."""
        episode_X = self.tokens_EK.new_ones(self.tokens_EK.shape).nonzero(as_tuple=True)[0]
        return discounted(self.reward_EK.flatten(), episode_X, gamma).view_as(self.reward_EK)


def token_rewards(experience: TokenBatch, penalty_N: Tensor | None = None) -> Tensor:
    """Reward of each said token, N, float64: a turn's reward is at the last token it said, penalties where they arise.

    Args:
        experience: What was said and paid.
        penalty_N: Subtracted from each said token's reward; None is 0.
    """
    tokens_EK = _tokens(experience)
    end_EK = tokens_EK.flatten().cumsum(0).view_as(tokens_EK)
    start_E1 = end_EK[:, :1] - tokens_EK[:, :1]
    last_EK = (end_EK - 1).maximum(start_E1)
    paid_EK = experience.played_EK & (tokens_EK.sum(1, keepdim=True) > 0)
    reward_N = experience.rewards_EK.new_zeros(len(experience.turn_N)).double()
    reward_N = reward_N.index_add(0, last_EK[paid_EK], experience.rewards_EK[paid_EK].double())
    return reward_N if penalty_N is None else reward_N - penalty_N.double()


def turn_rewards(experience: TokenBatch, penalty_N: Tensor | None = None) -> Turns:
    """Reward of each turn: the sum of its tokens' (see `token_rewards`)."""
    tokens_EK = _tokens(experience)
    mute_E1 = tokens_EK.sum(1, keepdim=True) == 0
    kept_EK = experience.rewards_EK.double() * (experience.played_EK & mute_E1)
    where = (experience.episode_N, experience.turn_N)
    reward_EK = kept_EK.index_put(where, token_rewards(experience, penalty_N), accumulate=True)
    return Turns(reward_EK, tokens_EK)


def discounted(value_X: Tensor, episode_X: Tensor, gamma: float) -> Tensor:
    """Sum of what is still to come: sum over i >= 0 of gamma^i * value[x + i], as far as the episode goes.

    Doubles the reach in each round, so it takes as many rounds as the longest episode has binary digits.

    Args:
        value_X: In the order of time.
        episode_X: Episode of each, those of one episode side by side.
        gamma: Discount from one to the next.
    """
    reach, sum_X = 1, value_X.clone()
    while bool((same_X := episode_X[reach:] == episode_X[:-reach]).any()):
        ahead_X = sum_X[reach:].where(same_X, 0.0)
        sum_X[:-reach] += gamma**reach * ahead_X
        reach *= 2
    return sum_X


def normalised(value_X: Tensor, total: Total) -> Tensor:
    """(value - mean) / std over all processes, n in the denominator; 0 where all are the same up to rounding."""
    count = total(value_X.new_full((), len(value_X))).clamp(min=1)
    mean = total(value_X.sum()) / count
    centred_X = value_X - mean
    std = (total(centred_X.square().sum()) / count).sqrt()
    return (centred_X / std).where(std > ROUNDING * mean.abs().clamp(min=1), 0.0)


def check_discounts(**knobs: float) -> None:
    """Refuse discounts with which sums over time would grow without end.

    Raises:
        ValueError: One isn't from 0 to 1.
    """
    for name, value in knobs.items():
        if not 0 <= value <= 1:
            raise ValueError(f"advantages.{name} is {value}; it is a number from 0 to 1, and 1 discounts nothing.")


def _tokens(experience: TokenBatch) -> Tensor:
    """Number of tokens that each turn said, EK, int64."""
    none_EK = experience.turn_N.new_zeros(experience.played_EK.shape)
    where = (experience.episode_N, experience.turn_N)
    return none_EK.index_put(where, experience.turn_N.new_ones(()), accumulate=True)
