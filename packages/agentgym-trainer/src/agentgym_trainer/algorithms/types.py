"""The tensors that algorithms take and return, and the shape suffixes used throughout the package.

    S  tokens of all segments, concatenated without padding
    N  completion tokens, ordered by episode, turn and position
    M  completion tokens of one micro-batch
    E  episodes                     K  turns of the longest episode

Observation tokens have no place in these types, so neither a critic nor a reward can refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Total = Callable[[Tensor], Tensor]
    """Sums a tensor over all processes; with a single process it is the identity."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A batch of episodes as completion tokens and turns. Failed episodes are not included."""

    episode_N: Tensor
    """Episode of each completion token, int64, non-decreasing."""
    turn_N: Tensor
    """Turn of each completion token within its episode, int64, non-decreasing within an episode."""
    rollout_logprobs_N: Tensor
    """Log-probability under the engine's policy that sampled the token, float32."""
    rewards_EK: Tensor
    """Reward of each turn, float32; 0 after the last turn."""
    played_EK: Tensor
    """Whether the turn was played, bool."""
    state_EK: Tensor
    """Index of the simulator state at the start of the turn, int64; within a group, equal indices are equal states. -1
    after the last turn."""
    group_E: Tensor
    """Index of the group, int64, from 0. A group holds the episodes of one task, which are compared with each other."""
    observation_EK: Tensor | None = None
    """Index of the observation that the turn replied to, int64; within a group, equal indices are equal texts. -1 after
    the last turn. None where no estimator needs it."""
    loss_mask_E: Tensor | None = None
    """Whether the episode's completion tokens are in the loss, bool. Masked episodes still count in baselines and
    statistics. None: all are in the loss."""
    score_E: Tensor | None = None
    """Final score by the environment, float32, without shaping and penalties of the rewards. None: the sum of the
    rewards."""
    bootstrap_E: Tensor | None = None
    """Critic value of the state after the last turn of a truncated episode, float32; 0 for episodes that ended
    otherwise. None: every episode has value 0 after its last turn."""
    old_logprobs_N: Tensor | None = None
    """Log-probability under the learner's weights before the update, float32. None: the same as
    `rollout_logprobs_N`."""
    ref_logprobs_N: Tensor | None = None
    """Log-probability under the reference model, float32; None without a KL term."""
    teacher_logprobs_N: Tensor | None = None
    """Log-probability under the teacher of on-policy distillation, float32; None without one."""
    values_N: Tensor | None = None
    """Critic value of the state before the token, float32; None without a critic."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that aren't None, by name. The suffix of a name is the shape."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def old_or_rollout_logprobs_N(self) -> Tensor:  # noqa: N802 - the suffix is the shape
        """Log-probability under the learner's weights before the update, or the engine's if that was not computed."""
        return self.rollout_logprobs_N if self.old_logprobs_N is None else self.old_logprobs_N

    @property
    def loss_mask_N(self) -> Tensor:  # noqa: N802 - the suffix is the shape
        """Whether each completion token is in the loss, bool."""
        if self.loss_mask_E is None:
            return self.played_EK.new_ones(len(self.episode_N))
        return self.loss_mask_E[self.episode_N]

    def with_logprobs(self, **tensors: Tensor | None) -> TokenBatch:
        """Return a copy with some of the log-probabilities, `values_N` and `bootstrap_E` filled in."""
        return replace(self, **tensors)


@dataclass(frozen=True, slots=True)
class AdvantageOutput:
    """The advantages of a batch, with critic targets and metrics."""

    advantages_N: Tensor
    """Advantage of each completion token, float32."""
    metrics: dict[str, float]
    """Statistics of returns and advantages."""
    value_targets_N: Tensor | None = None
    """Regression target of the critic at each completion token, float32; None without a critic."""
    value_mask_N: Tensor | None = None
    """Completion tokens at which the critic is trained, bool; None without a critic."""


class ModelOutputs(NamedTuple):
    """The outputs of a model for the completion tokens of a micro-batch, with gradients."""

    logprobs_M: Tensor
    """Log-probability at the sampling temperature, float32."""
    entropy_M: Tensor
    """Entropy in nats of the distribution that the token was sampled from, float32."""
    values_M: Tensor | None = None
    """Critic value of the state before the token, float32; None without a critic."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The completion tokens of one micro-batch, with everything that the loss needs."""

    episode_M: Tensor
    turn_M: Tensor
    rollout_logprobs_M: Tensor
    old_logprobs_M: Tensor
    advantages_M: Tensor
    weight_M: Tensor
    """Weight of the token in the loss, as the aggregation computed it over all micro-batches and processes."""
    share: Tensor
    """Scalar 1 / number of completion tokens in the optimizer step, over all micro-batches and processes. It turns a
    sum over tokens into this micro-batch's part of the token mean, independent of the aggregation."""
    ref_logprobs_M: Tensor | None = None
    values_M: Tensor | None = None
    """Critic values before the update."""
    value_targets_M: Tensor | None = None
    critic_weight_M: Tensor | None = None
    """Weight of the token in the critic loss; the weights sum to 1 over all micro-batches and processes."""
