"""Paired comparison of two policies on the same tasks, with intervals and a permutation test.

Tasks are paired because most of the variance between tasks comes from the tasks themselves. This module doesn't depend
on how runs are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, Literal

import numpy as np
from agentgym_envs import Episode
from numpy.typing import NDArray

from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey
from agentgym_eval.metrics.intervals import Interval, agreeing, bootstrap, cluster_sums, detectable, gain
from agentgym_eval.metrics.summary import by_task, cause_shares, cluster_of, score_of, success_of, turns_of

FLIPS = 10_000
"""Number of random sign assignments in the test, if there are too many for an exact test."""
_EXACT = 12
_BLOCK = 1_000_000


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of two policies over the tasks that both attempted."""

    first: float
    second: float
    difference: Interval
    """The second minus the first, with a 95% interval over tasks or clusters of tasks. The interval contains 0 exactly
    if the test doesn't find a difference.
    """
    p: float
    """The p-value: the probability of a difference at least this far from zero under the null hypothesis that the
    results of a task are exchangeable between the two.
    """
    p_adjusted: float
    """p adjusted for the number of comparisons reported together (Holm 1979); equal to p for a single comparison."""
    detectable: float
    """The smallest difference that comparisons like this one detect with p < 0.05 at a power of 0.8."""

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON values, with NaN as None."""
        numbers = {"first": self.first, "second": self.second, "p": self.p}
        numbers |= {"p_adjusted": self.p_adjusted, "detectable": self.detectable}
        shown = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        return shown | {"difference": self.difference.to_dict()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a second policy with a first, over the tasks at which both have an attempt that did not fail."""

    first: str
    """Name of the first policy."""
    second: str
    tasks: int
    """Number of paired tasks."""
    only_first: int
    """Number of tasks at which only the first has an attempt that did not fail; excluded from all metrics."""
    only_second: int
    better: int
    """Number of tasks at which the second succeeded in a larger share of its attempts than the first."""
    worse: int
    success: Difference
    score: Difference
    turns: Difference
    causes: Mapping[str, Difference]
    """Differences of the shares of attempts that failed for a cause, by kind, for the kinds that occurred. Their p is
    adjusted for the number of kinds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        names = ("first", "second", "tasks", "only_first", "only_second", "better", "worse")
        metrics: dict[str, Any] = {name: getattr(self, name) for name in names}
        metrics |= {name: getattr(self, name).to_dict() for name in ("success", "score", "turns")}
        return metrics | {"causes": {kind: at.to_dict() for kind, at in self.causes.items()}}


def compare(
    first: Iterable[Episode],
    second: Iterable[Episode],
    *,
    names: tuple[str, str] = ("first", "second"),
    seed: int = 0,
    distances: tuple[Mapping[EpisodeKey, Distances], Mapping[EpisodeKey, Distances]] = ({}, {}),
) -> Comparison:
    """Compare `second` with `first`, task by task. The attempts at a task are averaged.

    Args:
        first: Episodes in any order; failed ones are ignored.
        second: Episodes of the same tasks. Tasks that occur on only one side are counted and ignored.
        names: Names of the two policies.
        seed: Seed of the bootstrap and the permutations.
        distances: The expert's distances in unsuccessful episodes of the first and of the second.
    """
    ours, theirs = by_task(first), by_task(second)
    both = sorted(ours.keys() & theirs.keys())

    clusters = [cluster_of(ours[task][0]) for task in both]

    def differ(metric: Callable[[Sequence[Episode]], float], *, bounded: bool = True) -> Difference:
        sides = [metric(ours[task]) for task in both], [metric(theirs[task]) for task in both]
        return difference(*sides, clusters, seed, bounded=bounded)

    gains = [success_of(theirs[task]) - success_of(ours[task]) for task in both]
    return Comparison(
        *names,
        tasks=len(both),
        only_first=len(ours) - len(both),
        only_second=len(theirs) - len(both),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        success=differ(success_of),
        score=differ(score_of),
        turns=differ(turns_of, bounded=False),
        causes=compare_causes(
            cause_shares({task: ours[task] for task in both}, distances[0]),
            cause_shares({task: theirs[task] for task in both}, distances[1]),
            clusters,
            seed,
        ),
    )


def compare_causes(
    first: Mapping[str, Sequence[float]],
    second: Mapping[str, Sequence[float]],
    clusters: Sequence[Hashable],
    seed: int = 0,
) -> dict[str, Difference]:
    """Compare the shares of the causes that occurred, with p adjusted for their number.

    Args:
        first: For each kind, the share of attempts that failed for it at each task, as `cause_shares` returns them.
        second: The same of the second policy, for the same tasks in the same order.
        clusters: Cluster of each task.
        seed: Seed of the permutations.
    """
    kinds = [kind for kind in first if any(first[kind]) or any(second[kind])]
    found = {kind: difference(first[kind], second[kind], clusters, seed) for kind in kinds}
    ps = holm({kind: at.p for kind, at in found.items()})
    return {kind: replace(at, p_adjusted=ps[kind]) for kind, at in found.items()}


def difference(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
    *,
    bounded: bool = True,
) -> Difference:
    """Compute the difference of two policies in one metric.

    Args:
        first: One value per task.
        second: Values of the same tasks, in the same order.
        clusters: Cluster of each task; the test flips the signs of whole clusters.
        seed: Seed of the bootstrap and the permutations.
        bounded: Whether the metric is in [0, 1].
    """
    gains = [b - a for a, b in zip(first, second, strict=True)]
    p = sign_flip(cluster_sums(gains, clusters), np.random.default_rng(seed))
    ours, theirs = (fmean(values) if values else math.nan for values in (first, second))
    if bounded:
        interval = gain(gains, clusters, p)
    else:
        interval = agreeing(bootstrap(gains, clusters, np.random.default_rng(seed), skewed=False), p)
    return Difference(ours, theirs, interval, p, p, detectable(gains, clusters, bounded=bounded))


_COMPARED: tuple[Literal["success", "score", "turns"], ...] = ("success", "score", "turns")


def adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with p-values adjusted for their number, for each metric separately."""
    ps = {name: holm({str(i): getattr(at, name).p for i, at in enumerate(comparisons)}) for name in _COMPARED}
    return [
        replace(at, **{name: replace(getattr(at, name), p_adjusted=ps[name][str(i)]) for name in _COMPARED})
        for i, at in enumerate(comparisons)
    ]


def sign_flip(gains: Sequence[float], rng: np.random.Generator) -> float:
    """Return the two-sided p-value of the paired permutation test of a zero mean (Fisher 1935): if the policies were
    equal, the difference at each task could equally well have the opposite sign.

    With up to 12 differing tasks the test enumerates all signs. With more it samples `FLIPS` random sign assignments
    and adds the observed one, so that p is never 0 (Phipson and Smyth 2010). NaN without tasks.
    """
    if not len(gains):
        return math.nan
    differing = np.asarray([gain for gain in gains if gain], dtype=np.float64)
    least = abs(float(differing.sum())) - 1e-9 * float(np.abs(differing).sum())
    if len(differing) <= _EXACT:
        signs = np.array(list(product((-1, 1), repeat=len(differing))), dtype=np.float64)
        return float((np.abs(signs @ differing) >= least).mean())
    return (1 + _count_extreme(differing, least, rng)) / (1 + FLIPS)


def _count_extreme(differing: NDArray[np.float64], least: float, rng: np.random.Generator) -> int:
    """Count how many of `FLIPS` random sign assignments give a sum at least `least` away from zero."""
    found, rows = 0, max(1, _BLOCK // len(differing))  # bounds the memory for any number of tasks
    for start in range(0, FLIPS, rows):
        size = (min(rows, FLIPS - start), len(differing))
        found += int((np.abs((2 * rng.integers(2, size=size) - 1) @ differing) >= least).sum())
    return found


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for multiple comparisons (Holm 1979), which controls the family-wise error rate.

    NaN values stay NaN and don't count.
    """
    adjusted, highest = dict(ps), 0.0
    known = sorted((p, name) for name, p in ps.items() if not math.isnan(p))
    for i, (p, name) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - i)))
        adjusted[name] = highest
    return adjusted
