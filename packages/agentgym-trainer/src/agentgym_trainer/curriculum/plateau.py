"""A statistical test for a plateau of success over a stage's evaluations, paired by task. Independent of schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean

CONFIDENCE = 0.9
"""Confidence level of the one-sided upper bound on the gain."""
_QUANTILE = NormalDist().inv_cdf(CONFIDENCE)

Means = Sequence[float | None]
"""Mean success of a task at each evaluation, oldest first; None where it wasn't played."""


def has_plateaued(success: Mapping[str, Means], *, fewest: int, gain: float) -> bool:
    """Whether success confidently rises by less than `gain` per evaluation.

    Over the last w evaluations a least-squares slope is fitted to each task, so that differences in difficulty between
    tasks cancel, as in paired differences. The mean slope over tasks is the gain per evaluation; the spread of the
    slopes gives its standard error. There is a plateau if for some w of at least `fewest` the margin of error is at
    most `gain` (enough evidence) and the upper confidence bound is below `gain`. Two pseudo-tasks are added, one that
    gains and one that loses all of its success over the window, as Agresti and Caffo (2000) add a success and a failure
    to each sample, so that a few tasks with constant success don't give false certainty.

    Args:
        success: Means by task, all of the same length. A task with None in a window is left out of that window.
        fewest: Minimum number of evaluations in a window, at least 2.
        gain: A rise of mean success per evaluation, above 0.
    """
    # For each task without None in the window: the sums of x and of k x over the window's evaluations, where x is the
    # k-th from the end. They are updated as the window grows, and give the slope.
    sums = dict.fromkeys(success, (0.0, 0.0))
    for back in range(max(map(len, success.values()), default=0)):
        sums = {
            task: (total + mean, moment + back * mean)
            for task, (total, moment) in sums.items()
            if (mean := success[task][-1 - back]) is not None
        }
        width = back + 1
        if width >= fewest and sums:
            spread = width * (width * width - 1) / 12
            slopes = [(back / 2 * total - moment) / spread for total, moment in sums.values()]
            estimate, error = _mean_and_error([*slopes, 1 / back, -1 / back])
            margin = _QUANTILE * error
            if margin <= gain and estimate + margin < gain:
                return True
    return False


def _mean_and_error(slopes: Sequence[float]) -> tuple[float, float]:
    """Mean of the slopes and its standard error."""
    mean, count = fmean(slopes), len(slopes)
    return mean, math.sqrt(math.fsum((slope - mean) ** 2 for slope in slopes) / (count - 1) / count)
