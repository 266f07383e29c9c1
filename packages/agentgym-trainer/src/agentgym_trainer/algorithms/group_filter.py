"""What becomes of groups that teach little: some episode failed, one is left, or all returns are the same.

The training loop asks before it makes a batch; estimators see what trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["ok", "has_failures", "single", "zero_variance"]
Treatment = Literal["keep", "drop", "resample"]

ROUNDING = 1e-6
"""Differences up to this are rounding. Scores are within [0, 1] by contract, and rewards are kept as float32, whose
error of 6e-8 adds up over the turns; where returns are larger than 1, it is a share of the largest."""


@dataclass(frozen=True)
class GroupFilter:
    """What the loop does with a group, all of it: train on it, leave it out, or play another task's in its place."""

    has_failures: Treatment = "keep"
    """Some episode failed. Failed ones never train; keep trains on the rest."""
    single: Treatment = "drop"
    """Fewer than two episodes are left: there is nobody to compare with."""
    zero_variance: Treatment = "drop"
    """Whatever the advantages compare within the group is the same for all its episodes, such as their returns or, with
    a discount, their discounted returns; KL penalties aside. Where nothing is compared within groups (PPO,
    REINFORCE++): all episodes' returns are the same."""
    rounds: int = 3
    """Rollouts that a step may add to resample; what is still bad then is left out."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"groups.rounds must be at least 1, not {self.rounds}; to resample nothing, drop.")

    def classify(self, left: int, *, zero_variance: bool, failed: int = 0) -> tuple[GroupKind, Treatment]:
        """Which kind of group this is, and what is done with it.

        Args:
            left: Number of episodes that did not fail.
            zero_variance: Whether nothing tells them apart, see `Algorithm.is_flat`.
            failed: How many did fail. A broken group that is kept is judged by what is left of it.
        """
        if failed and self.has_failures != "keep":
            return "has_failures", self.has_failures
        if left < 2:
            return "single", self.single
        if zero_variance:
            return "zero_variance", self.zero_variance
        return ("has_failures" if failed else "ok"), "keep"


def same(returns: Sequence[float]) -> bool:
    """Whether these returns differ by no more than rounding."""
    if not returns:
        return True
    return max(returns) - min(returns) <= ROUNDING * max(1.0, *map(abs, returns))
