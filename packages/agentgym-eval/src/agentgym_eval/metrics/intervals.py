"""Means over tasks with 95% intervals. Knows numbers, one per task, and nothing about where they come from.

The attempts at one task are not independent of each other, so the unit of an interval is the task: it says how far the
mean over another draw of as many tasks could lie. Where tasks come in clusters, such as the instances of a template,
the unit is the cluster, since a player who solves one of its tasks often solves the others, too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
"""Of comparisons that show a difference, as planning has it."""
RESAMPLES = 5_000
_BLOCK = 1_000_000
_HAIR = 1e-12  # a variance that comes of rounding
FEWEST = 10
"""Fewer clusters are taken as given, and tasks as drawn from each: how far clusters differ can't be told from so few
(Cameron, Gelbach and Miller 2008), and who chooses four levels asks about these four."""
_FEW = 3
"""Of so many tasks that differ, the variance of gains tells about as much as what is assumed without them."""
_NORMAL = NormalDist()
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_Z = _NORMAL.inv_cdf(_TAILS[1])
NEEDED = _Z + _NORMAL.inv_cdf(POWER)
"""How many standard errors a difference has to be wide, to be shown in `POWER` of comparisons."""


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
    clusters: int | None = None
    """How many clusters they fall into, where the interval is over clusters."""
    percentiles: tuple[float, float] | None = None
    """Of a share's plain bootstrap over tasks (Efron 1979), where it was asked for: what others report."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; what is NaN here is None there."""
        values = asdict(self)
        ends = values.pop("percentiles")
        if self.clusters is None:
            del values["clusters"]
        known = {name: None if math.isnan(value) else value for name, value in values.items()}
        return known if ends is None else known | {"bootstrap": list(ends)}


def share(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, rng: np.random.Generator | None = None
) -> Interval:
    """Mean of `values` in [0, 1], one per task, and its Wilson interval (1927) at the effective number of tasks.

    That is the number of coins, thrown once each, whose mean would vary as much as this one does: m (1 - m) / v, with v
    the estimated variance of the mean between clusters (the design effect of Kish 1965; Wilson's interval with it is
    what Franco et al. 2019 recommend for clustered shares). Where each task is a cluster of its own and each value is 0
    or 1, it is the number of tasks.

    Near 0 and 1 hardly any cluster differs from the others, and v tells next to nothing. So it is shrunk towards what
    it would be if the tasks of a cluster always came out alike, the more the fewer successes or failures there are
    (see `_shrunk`); the quantile is Student's at the degrees of freedom of that estimate (Satterthwaite 1946). The
    interval stays in [0, 1], has a width also at 0 and at 1, and is continuous there.

    Args:
        values: One per task.
        clusters: Of each task, in the same order. None, or fewer than `FEWEST`: every task is a cluster of its own.
        rng: Draws resamples for the percentiles of the bootstrap, which are too narrow for few tasks; without it there
            are none.
    """
    if len(values) < 2:
        return _alone(values)
    array = np.asarray(values, dtype=np.float64)
    mean = min(max(float(array.mean()), 0.0), 1.0)
    clusters = _several(clusters)
    sums, sizes = _by_cluster(array - mean, clusters)
    coin = mean * (1 - mean)
    coins, freedom = _shrunk(sums, sizes, coin, certain=clusters is None and bool(np.all(array == array**2)))
    square = float(stdtrit(freedom, _TAILS[1])) ** 2 / coins
    centre = (mean + square / 2) / (1 + square)
    half = math.sqrt(square * coin + square**2 / 4) / (1 + square)
    percentiles = None if rng is None else _percentiles(_resampled(array, clusters, rng, RESAMPLES), _TAILS)
    low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    return Interval(mean, low, high, len(array), _count(clusters), percentiles)


def _shrunk(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], coin: float, *, certain: bool
) -> tuple[float, float]:
    """The effective number of coins, and the degrees of freedom of its estimate.

    A priori each cluster is one coin. The estimate from the sums of deviations counts against that with the square of
    the number of clusters that would differ from the others if each were a coin.
    """
    count, tasks = len(sums), float(sizes.sum())
    alike = float(np.sum(sizes**2)) / tasks**2  # of the variance of one coin, if each cluster is one
    weight = 0.0 if certain else (count * coin) ** 2
    if weight == 0:
        return 1 / alike, math.inf
    estimated = weight * count / (count - 1) * float(np.sum(sums**2)) / tasks**2 / coin
    total = estimated + alike
    return (weight + 1) / total, (count - 1) * (total / max(estimated, _HAIR)) ** 2


def bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None,
    rng: np.random.Generator,
    *,
    skewed: bool = True,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean of `values`, one per task, and the interval of its bootstrap distribution over tasks or clusters of tasks.

    The percentiles are those of small samples, in which the bootstrap spreads too little (expanded percentiles:
    Hesterberg 2015), and by default corrected for bias and skewness (BCa: Efron 1987). For means
    without bounds; where every value is in [0, 1], `share` is better. It has no width when all tasks agree.

    Args:
        values: One per task, in a fixed order if the same generator is to give the same interval.
        clusters: As in `share`.
        rng: Draws the resamples.
        skewed: Whether to correct for skewness. What leans to neither side, such as differences, is served better
            without: to estimate it from few tasks costs more than it brings.
        resamples: 5,000 place an end within about a hundredth of the interval's width.
    """
    if len(values) < 2:
        return _alone(values)
    array, clusters = np.asarray(values, dtype=np.float64), _several(clusters)
    means, mean = _resampled(array, clusters, rng, resamples), float(array.mean())
    sums, _ = _by_cluster(array - mean, clusters)
    n = len(sums)
    reach = float(stdtrit(n - 1, _TAILS[1])) * math.sqrt(n / (n - 1))
    bias, acceleration = _lean(mean, sums, means) if skewed and array.std() > 0 else (0.0, 0.0)
    ends = [_NORMAL.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (-reach, reach)]
    return Interval(mean, *_percentiles(means, ends), len(array), _count(clusters))


def gain(gains: Sequence[float], clusters: Sequence[Hashable] | None, p: float) -> Interval:
    """Mean of `gains` in [-1, 1], one per task, and an interval that says the same as the p-value of their test.

    Where hardly a task sets the two apart, their variance tells next to nothing: then one task that was lost and one
    that was won are added (Agresti and Min 2005, for matched pairs). The more tasks differ, the more the interval is
    Student's (see `_centre`). At last it is made to agree with the test (see `agreeing`).

    Args:
        gains: One per task.
        clusters: As in `share`; what is added are then clusters of mean size.
        p: Of the test that the mean is 0, such as `comparison.sign_flip`.
    """
    if len(gains) < 2:
        return _alone(gains)
    array, clusters = np.asarray(gains, dtype=np.float64), _several(clusters)
    mean, (middle, error, freedom) = float(array.mean()), _centre(*_by_cluster(array, clusters))
    half = float(stdtrit(freedom, _TAILS[1])) * error
    low, high = max(min(middle - half, mean), -1.0), min(max(middle + half, mean), 1.0)
    return agreeing(Interval(mean, low, high, len(array), _count(clusters)), p)


def _centre(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float, float]:
    """The centre of an interval of gains, its standard error, and the degrees of freedom of that (Satterthwaite 1946).

    Both are weighed between those of the gains and those with two more clusters of mean size, one lost and one won;
    the gains count with the square of the number of clusters that differ, and as much as the others at `_FEW`.
    """
    size = float(sizes.mean())
    mean, plain = _mean_and_error(sums, sizes)
    drawn, careful = _mean_and_error(np.append(sums, (-size, size)), np.append(sizes, (size, size)))
    weight = (np.count_nonzero(np.abs(sums) > _HAIR) / _FEW) ** 2
    known, total = weight * plain**2, weight * plain**2 + careful**2
    freedom = (len(sums) - 1) / max(known / total, _HAIR) ** 2
    return (weight * mean + drawn) / (weight + 1), math.sqrt(total / (weight + 1)), freedom


def agreeing(interval: Interval, p: float) -> Interval:
    """The interval of a difference, with what the test says about 0: where p < 0.05 an end beyond 0 moves there, so
    that 0 is not within, and else one that stops short of 0 moves there, so that it is.

    What covers the truth still does in 95 of 100 cases: of all differences, 0 alone is judged by the test, which is
    wrong in at most 5 of 100, and those beyond 0 by half of it.
    """
    mean, low, high = interval.mean, interval.low, interval.high
    if math.isnan(low):
        return interval
    if not p < ALPHA:
        low, high = min(low, 0.0), max(high, 0.0)
    elif mean > 0:
        low = max(low, _HAIR)
    else:
        high = min(high, -_HAIR)
    return replace(interval, low=low, high=high)


def detectable(gains: Sequence[float], clusters: Sequence[Hashable] | None, *, bounded: bool = True) -> float:
    """The smallest difference that as many tasks, of which gains vary as these do, show with p < 0.05 in four of five
    comparisons. NaN for fewer than two tasks. `bounded` gains, in [-1, 1], vary as `gain` has it.
    """
    if len(gains) < 2:
        return math.nan
    drawn = _by_cluster(np.asarray(gains, dtype=np.float64), _several(clusters))
    return NEEDED * (_centre(*drawn)[1] if bounded else _mean_and_error(*drawn)[1])


def cluster_sums(values: Sequence[float], clusters: Sequence[Hashable] | None) -> list[float]:
    """The sum of the values of each cluster; of each task where that is what is drawn (see `share`)."""
    sums, _ = _by_cluster(np.asarray(values, dtype=np.float64), _several(clusters))
    return sums.tolist()


def icc(values: Sequence[float], clusters: Sequence[Hashable] | None) -> float:
    """The intra-class correlation of `values`, one per task: what part of their variance lies between clusters, by the
    analysis of variance of unequal groups (Donner 1986). Chance alone makes it negative now and then. NaN where tasks
    have no clusters, or none of them has two, or all values are the same.
    """
    if clusters is None or not 1 < len(set(clusters)) < len(clusters):
        return math.nan
    array = np.asarray(values, dtype=np.float64)
    sums, sizes = _by_cluster(array, clusters)
    tasks, count = len(array), len(sums)
    means = sums / sizes
    between = float(np.sum(sizes * (means - array.mean()) ** 2)) / (count - 1)
    within = (float(np.sum(array**2)) - float(np.sum(sizes * means**2))) / (tasks - count)
    usual = (tasks - float(np.sum(sizes**2)) / tasks) / (count - 1)
    total = between + (usual - 1) * within
    return (between - within) / total if total > _HAIR else math.nan


def _mean_and_error(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """The mean over all tasks, and its standard error as a ratio of what clusters sum to (Cochran 1977, 6.3)."""
    mean, count = float(sums.sum() / sizes.sum()), len(sums)
    off = sums - mean * sizes
    return mean, math.sqrt(count / (count - 1) * float(np.sum(off**2))) / float(sizes.sum())


def _several(clusters: Sequence[Hashable] | None) -> Sequence[Hashable] | None:
    """None where each task is a cluster of its own, or there are fewer than `FEWEST`: then tasks are what is drawn."""
    return clusters if clusters is not None and FEWEST <= len(set(clusters)) < len(clusters) else None


def _count(clusters: Sequence[Hashable] | None) -> int | None:
    return None if clusters is None else len(set(clusters))


def _by_cluster(
    array: NDArray[np.float64], clusters: Sequence[Hashable] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sum of each cluster, and its number of tasks."""
    if clusters is None:
        return array, np.ones(len(array))
    places = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    index = [places[cluster] for cluster in clusters]
    return np.bincount(index, weights=array).astype(np.float64), np.bincount(index).astype(np.float64)


def _lean(mean: float, sums: NDArray[np.float64], means: NDArray[np.float64]) -> tuple[float, float]:
    """What BCa corrects for: the bias of the resampled means, and the acceleration; from each cluster's sum of
    deviations.
    """
    spread = float(np.sum(sums**2))
    hair = 1e-9 * math.sqrt(spread)  # sums of the same numbers in another order differ by less
    below = float(((means < mean - hair).mean() + (means < mean + hair).mean()) / 2)
    bias = _NORMAL.inv_cdf(min(max(below, 1 / len(means)), 1 - 1 / len(means)))
    return bias, float(np.sum(sums**3)) / (6 * spread**1.5)


def _percentiles(means: NDArray[np.float64], ends: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(means, ends)
    return float(low), float(high)


def _alone(values: Sequence[float]) -> Interval:
    return Interval(float(values[0]) if len(values) else math.nan, math.nan, math.nan, len(values))


def _resampled(
    array: NDArray[np.float64], clusters: Sequence[Hashable] | None, rng: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """The means of as many resamples of the tasks, or of whole clusters of them."""
    sums, sizes = _by_cluster(array, clusters)
    means = np.empty(resamples)
    rows = max(1, _BLOCK // len(sums))  # keeps the memory bounded whatever the number of tasks
    for start in range(0, resamples, rows):
        block = means[start : start + rows]
        drawn = rng.integers(len(sums), size=(len(block), len(sums)))
        block[:] = sums[drawn].mean(axis=1) if clusters is None else sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return means
