"""Means with bootstrap intervals. Knows numbers, one per task, and nothing about where they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 5_000
_BLOCK = 1_000_000


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


def bootstrap(values: Sequence[float], rng: np.random.Generator, *, resamples: int = RESAMPLES) -> Interval:
    """Mean of `values`, one per task, and the percentile interval of its bootstrap distribution (Efron 1979).

    Tasks are what is resampled, since the attempts at one task are not independent of each other. The interval says how
    far another draw of as many tasks would move the mean. It has no width when all tasks agree, and below some 20 tasks
    it is too narrow: then read it as a lower bound of the uncertainty.

    Args:
        values: One per task, in a fixed order if the same generator is to give the same interval.
        rng: Draws the resamples.
        resamples: 5,000 place an end within about a hundredth of the interval's width.
    """
    if len(values) < 2:
        return Interval(values[0] if values else math.nan, math.nan, math.nan, len(values))
    array = np.asarray(values, dtype=np.float64)
    means = np.empty(resamples)
    rows = max(1, _BLOCK // len(array))  # keeps the memory bounded whatever the number of tasks
    for start in range(0, resamples, rows):
        block = means[start : start + rows]
        block[:] = array[rng.integers(len(array), size=(len(block), len(array)))].mean(axis=1)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return Interval(float(array.mean()), float(low), float(high), len(array))
