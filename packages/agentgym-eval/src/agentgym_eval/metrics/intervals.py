"""Means over tasks with 95% confidence intervals, computed from one number per task.

Attempts at the same task are not independent, so the sampling unit of an interval is the task: the interval describes
how far the mean over another sample of as many tasks could be. If tasks form clusters, such as the instances of a
template, the unit is the cluster, because a policy that solves one of its tasks often solves the others, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv, stdtrit

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
"""Power of a comparison, as used for planning."""
RESAMPLES = 5_000
_BLOCK = 1_000_000
_TINY = 1e-12  # below this, a variance is rounding error
FEWEST = 10
"""Minimum number of clusters for which clusters are the sampling unit. Fewer clusters are treated as fixed, with tasks
sampled within them: so few don't allow estimating the variance between clusters (Cameron, Gelbach and Miller 2008), and
someone who chooses four levels asks about these four."""
_FEW = 3
"""Number of differing tasks at which the empirical variance of gains gets the same weight as the prior one."""
_NORMAL = NormalDist()
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
Z = _NORMAL.inv_cdf(_TAILS[1])
"""Number of standard errors from the middle of a normal interval to its ends."""
NEEDED = Z + _NORMAL.inv_cdf(POWER)
"""Number of standard errors that a difference must measure to be detected with probability `POWER`."""
FEWEST_DIFFERING = 6
"""Minimum number of differing tasks for p < 0.05: with n of them, permutations of signs give at least 2 / 2^n."""
_FEWEST_RESAMPLED = 8
"""Minimum number of tasks for the bootstrap: the means of resamples of fewer don't reach far enough."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over tasks with its 95% interval.

    The mean is NaN without tasks. The bounds are NaN with fewer than two tasks, because one task gives no estimate of
    the variance.
    """

    mean: float
    low: float
    high: float
    tasks: int
    """Number of tasks in the mean."""
    clusters: int | None = None
    """Number of clusters, if the interval is over clusters."""
    percentiles: tuple[float, float] | None = None
    """Bounds of the plain percentile bootstrap of a share over tasks (Efron 1979), if requested, for comparison with
    other reports."""

    def __str__(self) -> str:
        """Return the mean and the bounds, such as `0.530 (0.432 to 0.626)`; the mean alone without bounds."""
        return f"{self.mean:.3f}" + ("" if math.isnan(self.low) else f" ({self.low:.3f} to {self.high:.3f})")

    def to_dict(self) -> dict[str, Any]:
        """Return the interval as JSON values, with NaN as None."""
        values = asdict(self)
        ends = values.pop("percentiles")
        if self.clusters is None:
            del values["clusters"]
        known = {name: None if math.isnan(value) else value for name, value in values.items()}
        return known if ends is None else known | {"bootstrap": list(ends)}


def share(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, rng: np.random.Generator | None = None
) -> Interval:
    """Return the mean of `values` in [0, 1], one per task, and its Wilson interval (1927) at the effective number of
    tasks.

    The effective number is the number of independent coin flips whose mean has the same variance: m (1 - m) / v, where
    v is the estimated variance of the mean between clusters (the design effect of Kish 1965; Franco et al. 2019
    recommend Wilson's interval with it for clustered shares). If each task is a cluster of its own and each value is 0
    or 1, it is the number of tasks.

    Near 0 and 1 hardly any cluster differs from the others, so v is barely estimable. It is therefore shrunk towards
    its value if the tasks of a cluster always had the same result; the shrinkage is the stronger, the fewer successes
    or failures there are (see `_shrunk`). The quantile is Student's at the degrees of freedom of that estimate
    (Satterthwaite 1946). The interval stays in [0, 1], has a positive width at 0 and 1, and is continuous there.

    Args:
        values: One value per task.
        clusters: Cluster of each task, in the same order. If None, or with fewer than `FEWEST` clusters, every task is
            a cluster of its own.
        rng: Generator for the percentile bootstrap, which is too narrow for few tasks; without it, `percentiles` is
            None.
    """
    if len(values) < 2:
        return _without_bounds(values)
    array = np.asarray(values, dtype=np.float64)
    mean = min(max(float(array.mean()), 0.0), 1.0)
    clusters = _sampled_clusters(clusters)
    sums, sizes = _by_cluster(array - mean, clusters)
    coin = mean * (1 - mean)
    coins, freedom = _shrunk(sums, sizes, coin, certain=clusters is None and bool(np.all(array == array**2)))
    square = float(stdtrit(freedom, _TAILS[1])) ** 2 / coins
    centre = (mean + square / 2) / (1 + square)
    half = math.sqrt(square * coin + square**2 / 4) / (1 + square)
    percentiles = None if rng is None else _percentiles(_resampled(array, clusters, rng, RESAMPLES), _TAILS)
    # By rounding, an end could be an ulp on the wrong side of the mean.
    low, high = min(max(centre - half, 0.0), mean), max(min(centre + half, 1.0), mean)
    return Interval(mean, low, high, len(array), _count(clusters), percentiles)


def _shrunk(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], coin: float, *, certain: bool
) -> tuple[float, float]:
    """Return the effective number of coin flips, and the degrees of freedom of its estimate.

    The prior is one flip per cluster. The estimate from the sums of deviations is weighted against it by the square of
    the expected number of clusters that would differ from the others if each were one flip.
    """
    count, tasks = len(sums), float(sizes.sum())
    alike = float(np.sum(sizes**2)) / tasks**2  # in variances of one flip, if each cluster is one
    weight = 0.0 if certain else (count * coin) ** 2
    if weight == 0:
        return 1 / alike, math.inf
    estimated = weight * count / (count - 1) * float(np.sum(sums**2)) / tasks**2 / coin
    total = estimated + alike
    return (weight + 1) / total, (count - 1) * (total / max(estimated, _TINY)) ** 2


def bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None,
    rng: np.random.Generator,
    *,
    skewed: bool = True,
    least: float = -math.inf,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the mean of `values`, one per task, and a bootstrap interval over tasks or clusters of tasks.

    The percentiles are expanded, because the bootstrap underestimates the spread of small samples (Hesterberg 2015),
    and by default corrected for bias and skewness (BCa: Efron 1987). For unbounded means; for values in [0, 1], `share`
    is better. With fewer than eight tasks, the interval is Student's. It has zero width if all tasks agree.

    Args:
        values: One value per task, in a fixed order if the same generator is to give the same interval.
        clusters: As in `share`.
        rng: Generator of the resamples.
        skewed: Whether to correct for skewness. Symmetric quantities such as differences are better served without,
            because estimating skewness from few tasks costs more than it gains.
        least: The smallest value that is possible, where the interval ends.
        resamples: Number of resamples; 5,000 determine a bound to about a hundredth of the interval's width.
    """
    if len(values) < 2:
        return _without_bounds(values)
    array, clusters = np.asarray(values, dtype=np.float64), _sampled_clusters(clusters)
    mean = float(array.mean())
    sums, sizes = _by_cluster(array - mean, clusters)
    n = len(sums)
    if n < _FEWEST_RESAMPLED:
        half = float(stdtrit(n - 1, _TAILS[1])) * _mean_and_error(sums, sizes)[1]
        return Interval(mean, max(mean - half, least), mean + half, len(array))
    means = _resampled(array, clusters, rng, resamples)
    reach = float(stdtrit(n - 1, _TAILS[1])) * math.sqrt(n / (n - 1))
    bias, acceleration = _bca(mean, sums, means) if skewed else (0.0, 0.0)
    ends = [_NORMAL.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (-reach, reach)]
    return Interval(mean, *_percentiles(means, ends), len(array), _count(clusters))


def gain(gains: Sequence[float], clusters: Sequence[Hashable] | None, p: float) -> Interval:
    """Return the mean of `gains` in [-1, 1], one per task, and an interval that agrees with the p-value of their test.

    If nearly all tasks have a gain of 0, or all of 1 or of -1, the variance of the gains is barely estimable; then one
    lost and one won task are added (Agresti and Min 2005, for matched pairs). The more tasks have another gain, the
    closer the interval is to Student's (see `_centre`). Finally it is adjusted to agree with the test (see `agreeing`).

    Args:
        gains: One gain per task.
        clusters: As in `share`; the added observations are then clusters of mean size.
        p: The p-value of the test that the mean is 0, such as `comparison.sign_flip`.
    """
    if len(gains) < 2:
        return _without_bounds(gains)
    array, clusters = np.asarray(gains, dtype=np.float64), _sampled_clusters(clusters)
    mean, (middle, error, freedom) = float(array.mean()), _centre(*_by_cluster(array, clusters))
    half = float(stdtrit(freedom, _TAILS[1])) * error
    low, high = max(min(middle - half, mean), -1.0), min(max(middle + half, mean), 1.0)
    return agreeing(Interval(mean, low, high, len(array), _count(clusters)), p)


def _centre(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the centre of an interval of gains, its standard error, and the error's degrees of freedom (Satterthwaite
    1946).

    Centre and error are weighted averages of the estimates from the gains alone and from the gains with two more
    clusters of mean size, one lost and one won. The weight of the former is the square of the number of clusters that
    differ from a gain of -1, 0 or 1, whichever fewest differ from, relative to `_FEW`.
    """
    size = float(sizes.mean())
    mean, plain = _mean_and_error(sums, sizes)
    drawn, added = _mean_and_error(np.append(sums, (-size, size)), np.append(sizes, (size, size)))
    differing = min(int(np.count_nonzero(np.abs(sums - same * sizes) > _TINY)) for same in (-1, 0, 1))
    weight = (differing / _FEW) ** 2
    known, total = weight * plain**2, weight * plain**2 + added**2
    freedom = (len(sums) - 1) / max(known / total, _TINY) ** 2
    return (weight * mean + drawn) / (weight + 1), math.sqrt(total / (weight + 1)), freedom


def agreeing(interval: Interval, p: float) -> Interval:
    """Adjust the interval of a difference to agree with its test: if p < 0.05, a bound beyond 0 is moved to just
    exclude 0; otherwise, bounds are extended to include 0.

    The coverage of 95% is preserved: the test decides about a true difference of 0 alone, with an error of at most 5%,
    and about those beyond 0 with half of it.
    """
    mean, low, high = interval.mean, interval.low, interval.high
    if math.isnan(low):
        return interval
    if not p < ALPHA:
        low, high = min(low, 0.0), max(high, 0.0)
    elif mean > 0:
        low = max(low, _TINY)
    else:
        high = min(high, -_TINY)
    return replace(interval, low=low, high=high)


def detectable(gains: Sequence[float], clusters: Sequence[Hashable] | None, *, bounded: bool = True) -> float:
    """Return the smallest difference that this number of tasks, with gains of this variance, detects with p < 0.05 at a
    power of 0.8. NaN if there is none.

    The variance of `bounded` gains, in [-1, 1], is that of `gain`, with the part that is due to their mean replaced by
    that of the detectable difference. This comes from some tasks that gain as much as differing tasks do now, or all
    there is if none differ. With a probability of 0.8, so many of them gain that a sign test against the tasks that
    differ now has p < 0.05.
    """
    if len(gains) < 2:
        return math.nan
    sums, sizes = _by_cluster(np.asarray(gains, dtype=np.float64), _sampled_clusters(clusters))
    count = len(sums)
    if not bounded:
        return _standard_errors(count - 1) * _mean_and_error(sums, sizes)[1]
    gaining = _gaining(min(int(np.sum(sums > _TINY)), int(np.sum(sums < -_TINY))))
    if count < gaining:
        return math.nan
    _, error, freedom = _centre(sums, sizes)
    moved = (sums / sizes)[np.abs(sums) > _TINY]
    each = math.sqrt(float(np.mean(moved**2))) if len(moved) else 1.0
    now = abs(_mean_and_error(sums, sizes)[0])
    rest = max(error**2 - now * (each - now) / count, 0.0)  # without what is due to today's difference
    # The solution of d^2 = s^2 (rest + d (each - d) / count) in d.
    square = _standard_errors(freedom) ** 2
    linear, quadratic = square * each / count, 1 + square / count
    least = (linear + math.sqrt(linear**2 + 4 * quadratic * square * rest)) / (2 * quadratic)
    fewest = each * float(betaincinv(gaining, count - gaining + 1, POWER))
    return max(least, fewest) if max(least, fewest) <= 1 else math.nan


def _gaining(tasks: int) -> int:
    """Return how many tasks must gain for p < 0.05 in a sign test, if as many as `tasks` gain and as many lose now."""
    return next(more for more in itertools.count() if 2 * bdtr(tasks, 2 * tasks + more, 0.5) < ALPHA)


def _standard_errors(freedom: float) -> float:
    """Return `NEEDED` by Student's quantiles."""
    return float(stdtrit(freedom, _TAILS[1]) + stdtrit(freedom, POWER))


def cluster_sums(values: Sequence[float], clusters: Sequence[Hashable] | None) -> list[float]:
    """Return the sum of the values of each cluster, or of each task if tasks are the sampling unit (see `share`)."""
    sums, _ = _by_cluster(np.asarray(values, dtype=np.float64), _sampled_clusters(clusters))
    return sums.tolist()


def icc(values: Sequence[float], clusters: Sequence[Hashable] | None) -> float:
    """Return the intra-class correlation of `values`, one per task: the fraction of their variance between clusters, by
    the analysis of variance of unequal groups (Donner 1986). It can be negative by chance. NaN if tasks have no
    clusters or a single one, if there are fewer than `FEWEST` more tasks than clusters, which leaves too few degrees of
    freedom within clusters, or if all values are equal.
    """
    if clusters is None or not 1 < len(set(clusters)) <= len(clusters) - FEWEST:
        return math.nan
    array = np.asarray(values, dtype=np.float64)
    sums, sizes = _by_cluster(array, clusters)
    tasks, count = len(array), len(sums)
    means = sums / sizes
    between = float(np.sum(sizes * (means - array.mean()) ** 2)) / (count - 1)
    within = (float(np.sum(array**2)) - float(np.sum(sizes * means**2))) / (tasks - count)
    usual = (tasks - float(np.sum(sizes**2)) / tasks) / (count - 1)
    total = between + (usual - 1) * within
    return (between - within) / total if total > _TINY else math.nan


def _mean_and_error(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean over all tasks and its standard error, as a ratio estimator over cluster sums (Cochran 1977,
    6.3).
    """
    mean, count = float(sums.sum() / sizes.sum()), len(sums)
    off = sums - mean * sizes
    return mean, math.sqrt(count / (count - 1) * float(np.sum(off**2))) / float(sizes.sum())


def _sampled_clusters(clusters: Sequence[Hashable] | None) -> Sequence[Hashable] | None:
    """Return the clusters, or None if tasks are the sampling unit: every task is a cluster of its own, or there are
    fewer than `FEWEST` clusters.
    """
    return clusters if clusters is not None and FEWEST <= len(set(clusters)) < len(clusters) else None


def _count(clusters: Sequence[Hashable] | None) -> int | None:
    return None if clusters is None else len(set(clusters))


def _by_cluster(
    array: NDArray[np.float64], clusters: Sequence[Hashable] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sum and the number of tasks of each cluster."""
    if clusters is None:
        return array, np.ones(len(array))
    places = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    index = [places[cluster] for cluster in clusters]
    return np.bincount(index, weights=array).astype(np.float64), np.bincount(index).astype(np.float64)


def _bca(mean: float, sums: NDArray[np.float64], means: NDArray[np.float64]) -> tuple[float, float]:
    """Return BCa's bias correction and acceleration, the latter from each cluster's sum of deviations; both are 0 if
    all clusters agree.
    """
    spread = float(np.sum(sums**2))
    if spread**1.5 == 0:
        return 0.0, 0.0
    tolerance = 1e-9 * math.sqrt(spread)  # tolerance for the rounding of sums in different orders
    below = float(((means < mean - tolerance).mean() + (means < mean + tolerance).mean()) / 2)
    bias = _NORMAL.inv_cdf(min(max(below, 1 / len(means)), 1 - 1 / len(means)))
    return bias, float(np.sum(sums**3)) / (6 * spread**1.5)


def _percentiles(means: NDArray[np.float64], ends: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(means, ends)
    return float(low), float(high)


def _without_bounds(values: Sequence[float]) -> Interval:
    return Interval(float(values[0]) if len(values) else math.nan, math.nan, math.nan, len(values))


def _resampled(
    array: NDArray[np.float64], clusters: Sequence[Hashable] | None, rng: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """Return the means of bootstrap resamples of the tasks, or of whole clusters."""
    sums, sizes = _by_cluster(array, clusters)
    means = np.empty(resamples)
    rows = max(1, _BLOCK // len(sums))  # bounds the memory for any number of tasks
    for start in range(0, resamples, rows):
        block = means[start : start + rows]
        drawn = rng.integers(len(sums), size=(len(block), len(sums)))
        block[:] = sums[drawn].mean(axis=1) if clusters is None else sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return means
