"""Means over tasks with 95% intervals. Knows numbers, one per task, and nothing about where they come from.

Tasks are what is drawn, since the attempts at one task are not independent of each other: an interval says how far the
mean over another draw of as many tasks could lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 5_000
_BLOCK = 1_000_000
_HAIR = 1e-12  # a variance that comes of rounding
_NORMAL = NormalDist()
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_Z = _NORMAL.inv_cdf(_TAILS[1])


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over tasks with its 95% interval.

    The mean is NaN when there was no task to average, and the interval's ends are when there were fewer than two: one
    task says nothing about how far the next would lie from it.
    """

    mean: float
    low: float
    high: float
    tasks: int
    """How many tasks the mean is over."""
    percentiles: tuple[float, float] | None = None
    """Of a share's plain bootstrap over tasks (Efron 1979), where it was asked for: what others report."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; what is NaN here is None there."""
        values = asdict(self)
        ends = values.pop("percentiles")
        known = {name: None if math.isnan(value) else value for name, value in values.items()}
        return known if ends is None else known | {"bootstrap": list(ends)}


def share(values: Sequence[float], rng: np.random.Generator | None = None) -> Interval:
    """Mean of `values` in [0, 1], one per task, and its Wilson interval (1927) at the effective number of tasks.

    Where each value is 0 or 1 that is the number of tasks. Else a task that was tried often tells more than a coin
    thrown once, and it is the number of coins whose mean would vary as much as this one does from task to task:
    n m (1 - m) / s^2 (the design effect of Kish 1965; Wilson's interval with it is what Franco et al. 2019 recommend
    for clustered shares); n where all tasks agree. Since s^2 is estimated, the quantile is then Student's with n - 1
    degrees of freedom. The interval stays in [0, 1] and has a width also at 0 and at 1.

    Args:
        values: One per task.
        rng: Draws resamples for the percentiles of the bootstrap, which are too narrow for few tasks; without it there
            are none.
    """
    if len(values) < 2:
        return _alone(values)
    array = np.asarray(values, dtype=np.float64)
    n, mean, spread = len(array), min(max(float(array.mean()), 0.0), 1.0), float(array.var(ddof=1))
    coin = mean * (1 - mean)
    if bool(np.all((array == 0) | (array == 1))):
        square = _Z**2 / n
    else:
        square = _student(n - 1) ** 2 / (n * coin / spread if spread > _HAIR else n)
    centre = (mean + square / 2) / (1 + square)
    half = math.sqrt(square * coin + square**2 / 4) / (1 + square)
    percentiles = None if rng is None else _percentiles(_resampled(array, rng, RESAMPLES), _TAILS)
    return Interval(mean, max(centre - half, 0.0), min(centre + half, 1.0), n, percentiles)


def bootstrap(
    values: Sequence[float], rng: np.random.Generator, *, skewed: bool = True, resamples: int = RESAMPLES
) -> Interval:
    """Mean of `values`, one per task, and the interval of its bootstrap distribution over tasks.

    The percentiles are those of small samples, in which the bootstrap spreads too little (expanded percentiles:
    Hesterberg 2015), and by default corrected for bias and skewness (BCa: Efron 1987). For means
    without bounds; where every value is in [0, 1], `share` is better. It has no width when all tasks agree.

    Args:
        values: One per task, in a fixed order if the same generator is to give the same interval.
        rng: Draws the resamples.
        skewed: Whether to correct for skewness. What leans to neither side, such as differences, is served better
            without: to estimate it from few tasks costs more than it brings.
        resamples: 5,000 place an end within about a hundredth of the interval's width.
    """
    if len(values) < 2:
        return _alone(values)
    array, n = np.asarray(values, dtype=np.float64), len(values)
    means, mean = _resampled(array, rng, resamples), float(array.mean())
    reach = _student(n - 1) * math.sqrt(n / (n - 1))
    bias, acceleration = _lean(array, means) if skewed and array.std() > 0 else (0.0, 0.0)
    ends = [_NORMAL.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (-reach, reach)]
    return Interval(mean, *_percentiles(means, ends), n)


def _lean(array: NDArray[np.float64], means: NDArray[np.float64]) -> tuple[float, float]:
    """What BCa corrects for: the bias of the resampled means, and the acceleration."""
    off = array - array.mean()
    spread = float(np.sum(off**2))
    hair = 1e-9 * math.sqrt(spread)  # sums of the same numbers in another order differ by less
    below = float(((means < array.mean() - hair).mean() + (means < array.mean() + hair).mean()) / 2)
    bias = _NORMAL.inv_cdf(min(max(below, 1 / len(means)), 1 - 1 / len(means)))
    return bias, float(np.sum(off**3)) / (6 * spread**1.5)


def _percentiles(means: NDArray[np.float64], ends: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(means, ends)
    return float(low), float(high)


def _alone(values: Sequence[float]) -> Interval:
    return Interval(float(values[0]) if len(values) else math.nan, math.nan, math.nan, len(values))


def _resampled(array: NDArray[np.float64], rng: np.random.Generator, resamples: int) -> NDArray[np.float64]:
    """The means of as many resamples of the tasks."""
    means = np.empty(resamples)
    rows = max(1, _BLOCK // len(array))  # keeps the memory bounded whatever the number of tasks
    for start in range(0, resamples, rows):
        block = means[start : start + rows]
        block[:] = array[rng.integers(len(array), size=(len(block), len(array)))].mean(axis=1)
    return means


def _student(freedom: int) -> float:
    """Student's quantile for `LEVEL` (Abramowitz and Stegun 1964, 26.7.5), within 1% from two degrees of freedom on."""
    z, z3, z5, z7, z9 = (_Z**power for power in (1, 3, 5, 7, 9))
    terms = (
        z,
        (z3 + z) / 4,
        (5 * z5 + 16 * z3 + 3 * z) / 96,
        (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / 384,
        (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
