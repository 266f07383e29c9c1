"""The protocol of advantage estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate
    from agentgym_trainer.algorithms.types import TokenBatch, Total


class AdvantageEstimator(Protocol):
    """An advantage estimator turns the rewards of turns into an advantage for every completion token.

    It is a frozen dataclass whose fields are its settings. `Algorithm.advantages` holds one; `ADVANTAGES` has those
    of this package, and those of other packages are named MODULE:NAME. See `types.py` for the shape suffixes.

    An estimator that compares episodes within a group also sets `compares_groups: ClassVar[bool] = True`: a group is
    then flat if all its advantages are 0, and otherwise if all its returns are equal. An estimator that uses
    `bootstrap_E` after the last turn of truncated episodes sets `bootstraps: ClassVar[bool] = True`.
    """

    needs_critic: ClassVar[bool]
    """Whether the batch must have `values_N`. Then `estimate` also returns the critic's targets."""

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Assign the rewards of a batch to its completion tokens. It must not change its arguments.

        Args:
            batch: The episodes that this process trains on, without failed episodes and dropped groups; it may be
                empty. Episodes that `loss_mask_E` keeps out of the loss count in baselines and statistics.
            penalty_N: KL penalty in nats, subtracted from the reward of each completion token, float32; None if KL is
                not part of the reward.
            total: Sums a tensor over all processes. All processes, including those with an empty batch, must call it
                the same number of times.

        Returns:
            The advantage of each completion token, N, float32, finite; with a critic also its targets.
        """
        ...
