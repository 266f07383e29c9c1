"""What happens to groups with little learning signal: some episode failed, one is left, or all returns are equal.

The training loop applies the filter before it builds a batch; estimators only see the groups that train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["ok", "has_failures", "single", "zero_variance"]
Treatment = Literal["keep", "drop", "resample"]

ROUNDING = 1e-6
"""Differences up to this count as rounding errors. Scores are within [0, 1] by contract, and rewards are float32, whose
error of 6e-8 adds up over the turns. For returns larger than 1, it is relative to the largest."""


@dataclass(frozen=True)
class GroupFilter:
    """What to do with a whole group: keep (train on it), drop, or resample (replace it by another task's group)."""

    has_failures: Treatment = "keep"
    """Groups in which an episode failed. Failed episodes never train; keep trains on the rest."""
    single: Treatment = "drop"
    """Groups with fewer than two episodes left, so that there is nothing to compare."""
    zero_variance: Treatment = "drop"
    """Groups in which everything that the advantages compare is equal for all episodes, such as returns or, with a
    discount, discounted returns (KL penalties aside). For advantages that don't compare within groups (PPO,
    REINFORCE++): groups in which all returns are equal."""
    rounds: int = 3
    """Extra rollouts that a step may use to resample; groups that are still bad after them are dropped."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"groups.rounds must be at least 1, not {self.rounds}; to disable resampling, use drop.")

    def classify(self, left: int, *, zero_variance: bool, failed: int = 0) -> tuple[GroupKind, Treatment]:
        """Return the kind of a group and its treatment.

        Args:
            left: Number of episodes that did not fail.
            zero_variance: Whether the group is flat, see `Algorithm.is_flat`.
            failed: Number of failed episodes. A group with failures that is kept is classified by its other episodes.
        """
        if failed and self.has_failures != "keep":
            return "has_failures", self.has_failures
        if left < 2:
            return "single", self.single
        if zero_variance:
            return "zero_variance", self.zero_variance
        return ("has_failures" if failed else "ok"), "keep"


def same(returns: Sequence[float]) -> bool:
    """Whether these returns are equal up to rounding."""
    if not returns:
        return True
    return max(returns) - min(returns) <= ROUNDING * max(1.0, *map(abs, returns))
