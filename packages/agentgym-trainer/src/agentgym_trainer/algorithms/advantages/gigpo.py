"""GiGPO (arXiv 2505.10978): advantages relative to the task's other episodes and to other turns at the same anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentgym_trainer.algorithms.advantages.group_relative import Baseline, Scale, relative
from agentgym_trainer.algorithms.advantages.returns import AdvantageEstimate, check_discounts, normalised, turn_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total


@dataclass(frozen=True)
class StepGroups:
    """Advantage of the episode's return plus `step_weight` times that of the turn's discounted return-to-go.

    A step group holds all turns of a group of episodes that have the same anchor, including repeated visits within one
    episode. A turn that is alone in its step group has a step advantage of 0.
    """

    needs_critic: ClassVar[bool] = False
    compares_groups: ClassVar[bool] = True

    step_weight: float = 1.0
    """Weight omega of the step advantage: 0 is GRPO."""
    gamma: float = 0.95
    """Discount from turn to turn in the step returns; the episode's return isn't discounted."""
    anchor: Literal["observation", "state"] = "observation"
    """What the turns of a step group have in common. observation: the text of the last observation, as in the authors'
    code (`anchor_obs`). state: the hash of the simulator's state, which may include what the agent can't observe.
    Either way, plans, reflections and summaries are only compared with their own kind."""
    scale: Scale = "std"
    """F_norm at both levels: the standard deviation (n - 1 in the denominator), or 1."""
    baseline: Baseline = "mean"
    """Baseline at both levels, as in `GroupRelative`; `length` weights a turn by its completion tokens in its step
    group, and an episode by all of its own. The paper's is `mean`, which has the length bias described there."""
    whiten: bool = False
    """Finally normalize over all completion tokens of all processes, as in `GroupRelative`."""

    def __post_init__(self) -> None:
        check_discounts(gamma=self.gamma)

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        """Compute advantages; 0 where neither group carries a signal.

        Metrics, over the turns that have completion tokens: `step_group_size`, the mean number of turns in a step
        group, and `step_grouped`, the share of turns that are not alone in theirs.

        Raises:
            ValueError: The anchor is the observation, and the batch has no observations.
        """
        anchor_EK = batch.state_EK if self.anchor == "state" else batch.observation_EK
        if anchor_EK is None:
            raise ValueError("GiGPO was given no observations to find step groups by; set anchor to 'state'.")
        turns = turn_rewards(batch, penalty_N)
        e_X, k_X = turns.completed_EK.nonzero(as_tuple=True)
        anchors, anchor_X = anchor_EK[e_X, k_X].unique(return_inverse=True)
        anchor_X = batch.group_E[e_X] * len(anchors) + anchor_X
        return_X, tokens_EK = turns.to_go(self.gamma)[e_X, k_X], turns.tokens_EK
        episode_E = relative(turns.returns, batch.group_E, tokens_EK.sum(1), baseline=self.baseline, scale=self.scale)
        step_X = relative(return_X, anchor_X, tokens_EK[e_X, k_X], baseline=self.baseline, scale=self.scale)
        advantage_EK = turns.reward_EK.index_put((e_X, k_X), episode_E[e_X] + self.step_weight * step_X)
        advantage_N = advantage_EK[batch.episode_N, batch.turn_N]
        advantage_N = normalised(advantage_N, total) if self.whiten else advantage_N
        return AdvantageEstimate(advantage_N.float(), metrics=_group_sizes(anchor_X, total))


def _group_sizes(anchor_X: Tensor, total: Total) -> dict[str, float]:
    """Statistics of step-group sizes over all processes; 0 without any."""
    size_G = anchor_X.unique(return_counts=True)[1].double()
    local = size_G.new_tensor([len(size_G), size_G.sum().item(), size_G[size_G > 1].sum().item()])
    groups, turns, grouped = total(local).tolist()
    return {"step_group_size": turns / max(groups, 1), "step_grouped": grouped / max(turns, 1)}
