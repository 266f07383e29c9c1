"""Comparison of two training methods over their seeds: the variation from one training run to the next.

An interval over tasks doesn't include this variation, because it treats the two trained models as fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentgym_eval.metrics.comparison import Comparison, Difference
from agentgym_eval.metrics.intervals import LEVEL, POWER, Interval

_SAME = 1e-9
"""Standard error of differences that are equal but for rounding, relative to their mean."""


@dataclass(frozen=True, slots=True)
class AcrossSeeds:
    """Comparison of two training methods, with the runs of each seed paired. All differences are the second minus the
    first.
    """

    first: str
    second: str
    seeds: int
    success: Difference
    score: Difference
    turns: Difference

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values, with NaN as None."""
        metrics = {name: getattr(self, name).to_dict() for name in ("success", "score", "turns")}
        return {"first": self.first, "second": self.second, "seeds": self.seeds} | metrics


def across_seeds(pairs: Sequence[Comparison]) -> AcrossSeeds:
    """Combine the comparisons of each seed's two runs into one over seeds."""

    def differ(name: str) -> Difference:
        found: list[Difference] = [getattr(pair, name) for pair in pairs]
        return over_seeds([at.first for at in found], [at.second for at in found], tasks=min(p.tasks for p in pairs))

    more = f" and {len(pairs) - 1} more"
    metrics = map(differ, ("success", "score", "turns"))
    return AcrossSeeds(pairs[0].first + more, pairs[0].second + more, len(pairs), *metrics)


def over_seeds(first: Sequence[float], second: Sequence[float], *, tasks: int = 0) -> Difference:
    """Compare one metric of two training methods by Student's paired test over seeds (Student 1908).

    Args:
        first: One value per seed.
        second: Values of the same seeds, in the same order.
        tasks: Number of tasks behind each value.

    Returns:
        The difference with its 95% t-interval. Interval, p-value and detectable difference are NaN for one seed, and
        if all seeds have the same difference other than 0: their variation can't be estimated then.
    """
    from scipy import stats

    gains = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    mean, freedom = float(gains.mean()), len(gains) - 1
    low = high = p = least = math.nan
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if freedom else 0.0
    if error > _SAME * abs(mean) or (freedom and not mean):
        reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom))
        low, high, least = mean - reach * error, mean + reach * error, (reach + stats.t.ppf(POWER, freedom)) * error
        p = float(2 * stats.t.sf(abs(mean) / error, freedom)) if error else 1.0
    interval = Interval(mean, low, high, tasks)
    return Difference(float(np.mean(first)), float(np.mean(second)), interval, p, p, float(least))
