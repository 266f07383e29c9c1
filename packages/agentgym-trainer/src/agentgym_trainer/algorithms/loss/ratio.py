"""Log-ratios at token, turn or sequence level, and ratios from them. Independent of the algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_trainer.algorithms.types import MicroBatch

Level = Literal["token", "turn", "sequence"]

LARGEST = 20.0
"""Bound on absolute log-ratios: e^20 is far beyond any clip, and products of it still fit into float32."""


def ratio(log_ratio_M: Tensor) -> Tensor:
    """Return exp of the log-ratio clamped to `LARGEST`: finite unless it is NaN, and without gradient beyond that."""
    return log_ratio_M.clamp(-LARGEST, LARGEST).exp()


def mean_over(values_M: Tensor, micro_batch: MicroBatch, level: Level) -> Tensor:
    """At each completion token, the mean over the tokens of its turn or episode that are in the micro-batch."""
    if level == "token":
        return values_M
    sum_M, count_M = _sums(values_M, micro_batch, level)
    return sum_M / count_M


def sum_over(values_M: Tensor, micro_batch: MicroBatch, level: Level) -> Tensor:
    """At each completion token, the sum over the tokens of its turn or episode that are in the micro-batch."""
    return values_M if level == "token" else _sums(values_M, micro_batch, level)[0]


def _sums(values_M: Tensor, micro_batch: MicroBatch, level: Level) -> tuple[Tensor, Tensor]:
    turn_M = micro_batch.turn_M if level == "turn" else micro_batch.turn_M * 0
    # An episode has fewer than 2^32 turns.
    spans, span_M, count_S = ((micro_batch.episode_M << 32) + turn_M).unique(return_inverse=True, return_counts=True)
    sum_S = values_M.new_zeros(len(spans)).index_add(0, span_M, values_M)
    return sum_S[span_M], count_S[span_M].to(values_M.dtype)
