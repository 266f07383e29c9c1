"""Whether success has stopped rising, judged task by task over the evaluations of a stage. Knows no schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean

CONFIDENCE = 0.9
"""Of the one-sided upper bound on the gain."""
_QUANTILE = NormalDist().inv_cdf(CONFIDENCE)

Means = Sequence[float | None]
"""Mean success of a task at each evaluation, oldest first; None where all of its episodes failed."""


def has_plateaued(success: Mapping[str, Means], *, fewest: int, gain: float) -> bool:
    """Whether success surely rises by less than `gain` from one evaluation to the next.

    Over the last w evaluations each task has a slope of its own (least squares), so that what makes one task easier
    than another cancels, as it does in paired differences. The tasks' mean slope is the gain per evaluation, and what
    the slopes differ by gives its standard error. There is a plateau when for some w of at least `fewest` the margin of
    the estimate is at most `gain`, which is enough evidence, and the upper confidence bound is below `gain`. Two tasks
    are counted in that gain and lose all of their success over the window, as Agresti and Caffo (2000) add a success
    and a failure to each sample, so that a few tasks that all stay the same are no certainty.

    Args:
        success: By task; all with as many evaluations. A task with None in a window is left out of it.
        fewest: Evaluations of a window, at least 2.
        gain: A rise of mean success per evaluation, above 0.
    """
    # For each task that is known back to the window's first evaluation: the sums of x and of k x over its last
    # evaluations x, the k-th from the end. They grow with the window, and give its slope.
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
    """Their mean, and its standard error."""
    mean, count = fmean(slopes), len(slopes)
    return mean, math.sqrt(math.fsum((slope - mean) ** 2 for slope in slopes) / (count - 1) / count)
