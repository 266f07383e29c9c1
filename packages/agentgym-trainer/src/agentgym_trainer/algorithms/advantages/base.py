"""What an advantage estimator is, whoever wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate
    from agentgym_trainer.algorithms.types import TokenBatch, Total


class AdvantageEstimator(Protocol):
    """An advantage estimator: from the rewards of turns to the advantage of every completion token.

    It is a frozen dataclass whose fields are its settings. `Algorithm.advantages` holds one; `ADVANTAGES` has those
    of this package, and those of other packages are named MODULE:NAME. Shapes are those of `experience.py`.

    Where an advantage is a comparison within one group, it also has `compares_groups: ClassVar[bool] = True`: a group
    is then flat when all its advantages are 0, and otherwise when all returns are the same. Where an estimator goes on
    from `bootstrap_E` behind the last turn of truncated episodes, it has `bootstraps: ClassVar[bool] = True`.
    """

    needs_critic: ClassVar[bool]
    """Whether the experience must have `value_N`. Then `assign` also says what the critic should have predicted."""

    def estimate(self, experience: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Assign the rewards of a batch to its completion tokens. It must change none of its arguments.

        Args:
            experience: The episodes that this process trains on: neither failed ones nor those of groups that are left
                out. There may be none. What `loss_mask_E` keeps out of the loss counts in baselines and statistics.
            penalty_N: In nats, what a KL penalty subtracts from the reward of each completion token, float32; None
                where KL is no part of the reward.
            total: Sums a tensor over all processes. Each must call it equally often, also one without episodes.

        Returns:
            The advantage of each completion token, N, float32, finite; with a critic also its targets.
        """
        ...
