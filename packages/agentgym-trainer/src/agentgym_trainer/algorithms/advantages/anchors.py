"""Anchors: what the turns of a step group have in common, and what estimators with step groups share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentgym_trainer.algorithms.advantages.returns import normalised

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import TokenBatch, Total

Anchor = Literal["observation", "state"]


def anchors(batch: TokenBatch, anchor: Anchor) -> Tensor:
    """Return the anchor of each turn, EK, int64; within a group, equal indices are equal anchors.

    Raises:
        ValueError: The anchor is the observation, and the batch has no observations.
    """
    anchor_EK = batch.state_EK if anchor == "state" else batch.observation_EK
    if anchor_EK is None:
        raise ValueError("The advantages were given no observations to find step groups by; set anchor to 'state'.")
    return anchor_EK


def split_groups(group_X: Tensor, by_X: Tensor) -> Tensor:
    """Return the index of the group of each value after groups are split by `by_X`, X, int64, from 0."""
    different, by_X = by_X.unique(return_inverse=True)
    return (group_X * len(different) + by_X).unique(return_inverse=True)[1]


def token_advantages(batch: TokenBatch, turn_EK: Tensor, *, whiten: bool, total: Total) -> Tensor:
    """Return the advantage of each completion token, N, float32, from those of turns."""
    advantage_N = turn_EK[batch.episode_N, batch.turn_N]
    return (normalised(advantage_N, total) if whiten else advantage_N).float()


def group_sizes(group_X: Tensor, total: Total) -> dict[str, float]:
    """Return statistics of step-group sizes over all processes; 0 without any.

    `step_group_size` is the mean number of turns in a step group, and `step_grouped` the share of turns that aren't
    alone in theirs.
    """
    size_G = group_X.unique(return_counts=True)[1].double()
    local = size_G.new_tensor([len(size_G), size_G.sum().item(), size_G[size_G > 1].sum().item()])
    groups, turns, grouped = total(local).tolist()
    return {"step_group_size": turns / max(groups, 1), "step_grouped": grouped / max(turns, 1)}
