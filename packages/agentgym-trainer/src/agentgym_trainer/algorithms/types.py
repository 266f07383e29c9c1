"""What algorithms see of a batch, and the legend of shapes for the whole package.

    S  tokens of all segments, one segment after the other, without padding
    N  said tokens: by episode, in it by turn, in it as they were said
    M  said tokens of one micro-batch
    E  episodes                     K  turns of the longest episode

Observations don't exist here. Whatever a critic or a reward would say of their tokens, there is no place to put it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Total = Callable[[Tensor], Tensor]
    """Sums a tensor over all processes; what one process alone has is the sum already."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Episodes as said tokens and turns. Failed episodes are not among them."""

    episode_N: Tensor
    """Episode of each said token, int64, never falling."""
    turn_N: Tensor
    """Turn of its episode that said it, int64, never falling within an episode."""
    rollout_logprobs_N: Tensor
    """Log-probability it was sampled with, by the engine, float32."""
    rewards_EK: Tensor
    """Reward of each turn, float32; 0 behind the last."""
    played_EK: Tensor
    """Whether the turn was played, bool."""
    state_EK: Tensor
    """Number of the simulator's state that the turn began in, int64; equal numbers within a group are equal states. -1
    behind the last turn."""
    group_E: Tensor
    """Number of the group, int64, from 0: episodes of one task, which are compared with each other."""
    observation_EK: Tensor | None = None
    """Number of the observation that the turn answered, int64; equal numbers within a group are equal texts. -1 behind
    the last turn. None where nobody needs it."""
    loss_mask_E: Tensor | None = None
    """Whether the episode's completion tokens are in the loss, bool. One that is out of it still counts in baselines
    and statistics. None: all are."""
    bootstrap_E: Tensor | None = None
    """What the critic expected where a truncated episode would have gone on, float32; 0 for one that ended otherwise.
    None: nothing comes after any episode's last turn."""
    old_logprobs_N: Tensor | None = None
    """Log-probability under the learner's weights before the update, float32. None: the same as `sampled_N`."""
    ref_logprobs_N: Tensor | None = None
    """Log-probability under the reference model, float32; None without a KL term."""
    values_N: Tensor | None = None
    """What the critic expected before the token was said, float32; None without a critic."""

    @property
    def old_or_rollout_logprobs_N(self) -> Tensor:  # noqa: N802 - shapes stand in names
        """Log-probability under the learner's weights before the update."""
        return self.rollout_logprobs_N if self.old_logprobs_N is None else self.old_logprobs_N

    @property
    def loss_mask_N(self) -> Tensor:  # noqa: N802 - shapes stand in names
        """Whether each completion token is in the loss, bool."""
        if self.loss_mask_E is None:
            return self.played_EK.new_ones(len(self.episode_N))
        return self.loss_mask_E[self.episode_N]

    def with_logprobs(self, **figures: Tensor | None) -> TokenBatch:
        """The same with some of `old_N`, `reference_N`, `value_N`, `bootstrap_E` filled in."""
        return replace(self, **figures)


@dataclass(frozen=True, slots=True)
class AdvantageOutput:
    """What an algorithm makes of the rewards."""

    advantages_N: Tensor
    """Advantage of each said token, float32."""
    metrics: dict[str, float]
    """Statistics of returns and advantages."""
    value_targets_N: Tensor | None = None
    """What the critic should have expected at each said token, float32; None without a critic."""
    value_mask_N: Tensor | None = None
    """At which said tokens the critic is trained, bool; None without a critic."""


class ModelOutputs(NamedTuple):
    """What a model says of the said tokens of a micro-batch, with gradients."""

    logprobs_M: Tensor
    """Log-probability at the sampling temperature, float32."""
    entropy_M: Tensor
    """Entropy in nats of the distribution that the token came from, float32."""
    values_M: Tensor | None = None
    """What the critic expects before the token is said, float32; None without a critic."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The said tokens of one micro-batch, as the loss wants them."""

    episode_M: Tensor
    turn_M: Tensor
    rollout_logprobs_M: Tensor
    old_logprobs_M: Tensor
    advantages_M: Tensor
    weight_M: Tensor
    """Share of the token in the loss; over all micro-batches and processes they are what the aggregation says."""
    share: Tensor
    """1 / the number of said tokens in all micro-batches of the optimizer step on all processes, a scalar: what makes a
    sum over tokens a part of their mean, whatever the aggregation."""
    ref_logprobs_M: Tensor | None = None
    values_M: Tensor | None = None
    """The critic's before the update."""
    value_targets_M: Tensor | None = None
    critic_weight_M: Tensor | None = None
    """Share of the token in the critic's loss; they sum to 1 over all micro-batches and processes."""
