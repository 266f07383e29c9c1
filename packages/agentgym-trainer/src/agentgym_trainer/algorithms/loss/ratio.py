"""Log-ratios: over which said tokens they are taken together, and how they become ratios. It knows no algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch

Level = Literal["token", "turn", "sequence"]

LARGEST = 20.0
"""Log-ratios end here on both sides: e^20 is far beyond any bound, and its products still fit into float32."""


def ratio(log_ratio_M: Tensor) -> Tensor:
    """exp, finite for whatever is finite or infinite; without gradient where the log-ratio is beyond `LARGEST`."""
    return log_ratio_M.clamp(-LARGEST, LARGEST).exp()


def mean_over(values_M: Tensor, part: MicroBatch, level: Level) -> Tensor:
    """At every said token the mean over the said tokens of its turn or episode, as far as they are in the part."""
    if level == "token":
        return values_M
    sum_M, count_M = _sums(values_M, part, level)
    return sum_M / count_M


def sum_over(values_M: Tensor, part: MicroBatch, level: Level) -> Tensor:
    """At every said token the sum over the said tokens of its turn or episode, as far as they are in the part."""
    return values_M if level == "token" else _sums(values_M, part, level)[0]


def _sums(values_M: Tensor, part: MicroBatch, level: Level) -> tuple[Tensor, Tensor]:
    turn_M = part.turn_M if level == "turn" else part.turn_M * 0
    # Turns are fewer than 2^32.
    spans, span_M, count_S = ((part.episode_M << 32) + turn_M).unique(return_inverse=True, return_counts=True)
    sum_S = values_M.new_zeros(len(spans)).index_add(0, span_M, values_M)
    return sum_S[span_M], count_S[span_M].to(values_M.dtype)
