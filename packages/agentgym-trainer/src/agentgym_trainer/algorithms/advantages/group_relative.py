"""Advantages relative to the other episodes of the same task: GRPO, Dr. GRPO, RLOO. They need no critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate, check_discounts, normalised, turn_rewards
from agentgym_trainer.algorithms.group_filter import ROUNDING

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total

Baseline = Literal["mean", "leave_one_out", "length"]
Scale = Literal["std", "none"]


@dataclass(frozen=True)
class GroupRelative:
    """(return - baseline of the group) / scale.

    GRPO (arXiv 2402.03300, section 4.1.2): mean and std. Dr. GRPO (arXiv 2503.20783, section 3.2): mean, no scale.
    RLOO (arXiv 2402.14740, eq. 8): leave_one_out, no scale. OPO (arXiv 2505.23585): length, no scale.

    Length bias: with `mean` and `leave_one_out`, the advantages of a group's episodes sum to 0, each counted once. A
    loss that is a mean over tokens counts each episode as often as it has completion tokens. Where failed episodes are
    longer than successful ones, the weighted sum is then below 0, and the update makes the group's tokens less likely
    on average. `length` and `whiten` remove that, and so does a loss that is a mean over episodes (`Aggregation`).
    """

    needs_critic: ClassVar[bool] = False
    compares_groups: ClassVar[bool] = True

    baseline: Baseline = "mean"
    """What is subtracted from a return. mean: the mean of the group. leave_one_out: the mean of the group's other
    episodes. length: the mean of the group weighted by completion tokens, sum(tokens * return) / sum(tokens), as in
    OPO."""
    scale: Scale = "std"
    """Divide by the standard deviation of the group's returns (around their plain mean, n - 1 in the denominator, as in
    TRL, verl and SkyRL, but without their epsilon: groups that are flat up to rounding get 0), or don't divide."""
    returns: Literal["episode", "turn"] = "episode"
    """episode: every token gets the advantage of its episode's return. turn: the tokens of a turn get the advantage of
    the turn's return-to-go, compared with the group's episodes that have completion tokens in the turn of the same
    index. Turns may differ where whole episodes don't, so keep flat groups."""
    gamma: float = 1.0
    """Discount from turn to turn."""
    whiten: bool = False
    """Finally subtract the mean of the advantages of all completion tokens of all processes and divide by their
    standard deviation (n in the denominator): the global normalization of arXiv 2501.03262."""

    def __post_init__(self) -> None:
        check_discounts(gamma=self.gamma)

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Compute advantages; 0 for groups without a signal."""
        turns = turn_rewards(batch, penalty_N)
        to_go_EK, tokens_EK = turns.to_go(self.gamma), turns.tokens_EK
        if self.returns == "episode":
            # A slice, since K is 0 if there are no episodes.
            return_E, length_E = to_go_EK[:, :1].sum(1), tokens_EK.sum(1)
            advantage_E = relative(return_E, batch.group_E, length_E, baseline=self.baseline, scale=self.scale)
            advantage_N = advantage_E[batch.episode_N]
        else:
            e_X, k_X = turns.completed_EK.nonzero(as_tuple=True)
            group_X = batch.group_E[e_X] * to_go_EK.shape[1] + k_X
            return_X, length_X = to_go_EK[e_X, k_X], tokens_EK[e_X, k_X]
            advantage_X = relative(return_X, group_X, length_X, baseline=self.baseline, scale=self.scale)
            advantage_EK = to_go_EK.index_put((e_X, k_X), advantage_X)
            advantage_N = advantage_EK[batch.episode_N, batch.turn_N]
        return AdvantageEstimate((normalised(advantage_N, total) if self.whiten else advantage_N).float())


def relative(
    value_X: Tensor, group_X: Tensor, length_X: Tensor, *, baseline: Baseline = "mean", scale: Scale = "none"
) -> Tensor:
    """Compare each value with those of its group.

    Args:
        value_X: Values, float64.
        group_X: Group of each value, any integers.
        length_X: Number of completion tokens that get the advantage: the weight of a value in the baseline `length`.
        baseline: What is subtracted.
        scale: What the difference is divided by.

    Returns:
        X, float64; 0 for groups of one, and for groups whose values are equal up to rounding.
    """
    group_X, size_G = group_X.unique(return_inverse=True, return_counts=True)[1:]
    size_X, zero_G = size_G.double()[group_X], value_X.new_zeros(len(size_G))

    def group_sum(number_X: Tensor) -> Tensor:
        return zero_G.index_add(0, group_X, number_X)[group_X]

    def group_max(number_X: Tensor) -> Tensor:
        return zero_G.scatter_reduce(0, group_X, number_X, "amax", include_self=False)[group_X]

    spread_X = group_max(value_X) + group_max(-value_X)
    centred_X = value_X - group_sum(value_X) / size_X
    unbiased_X = size_X / (size_X - 1)
    match baseline:
        case "mean":
            advantage_X = centred_X
        case "leave_one_out":
            advantage_X = centred_X * unbiased_X
        case "length":
            # Sums around the plain mean are small and lose no digits. The clamp is for groups without any tokens.
            weight_X = length_X.double()
            advantage_X = centred_X - group_sum(weight_X * centred_X) / group_sum(weight_X).clamp(min=1)
    if scale == "std":
        advantage_X = advantage_X / (group_sum(centred_X.square()) / size_X * unbiased_X).sqrt()
    # Replaces the results of divisions by 0 in groups without a signal.
    return advantage_X.where(spread_X > rounding(value_X, group_X), 0.0)


def rounding(value_X: Tensor, group_X: Tensor) -> Tensor:
    """Return the largest difference within the group of each value that counts as a rounding error, X, float64.

    Args:
        value_X: Values, float64.
        group_X: Group of each value, from 0.
    """
    groups = int(group_X.max()) + 1 if len(group_X) else 0
    largest_G = value_X.new_zeros(groups).scatter_reduce(0, group_X, value_X.abs(), "amax")
    return ROUNDING * largest_G[group_X].clamp(min=1)
