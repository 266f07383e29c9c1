"""Two players on the same tasks: what sets them apart, with intervals and a paired test.

Tasks are paired, since most of what differs from task to task is the task. Knows nothing about runs on disk.
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

from agentgym_eval.metrics.intervals import Interval, agreeing, bootstrap, cluster_sums, detectable, gain
from agentgym_eval.metrics.summary import by_task, cluster_of, score_of, success_of, turns_of

FLIPS = 10_000
"""Draws of signs, where there are too many to try them all."""
_EXACT = 12
_BLOCK = 1_000_000


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two players over the tasks that both played."""

    first: float
    second: float
    difference: Interval
    """The second's less the first's, with a 95% interval over tasks or clusters of tasks that holds 0 exactly where the
    test doesn't tell the two apart.
    """
    p: float
    """How likely a difference at least as far from zero is where it is chance which of the two a result belongs to."""
    p_adjusted: float
    """The same for the number of comparisons that are shown together (Holm 1979); p where it is one."""
    detectable: float
    """The smallest difference that four of five such comparisons would have shown with p < 0.05."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; what is NaN here is None there."""
        numbers = {"first": self.first, "second": self.second, "p": self.p}
        numbers |= {"p_adjusted": self.p_adjusted, "detectable": self.detectable}
        shown = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        return shown | {"difference": self.difference.to_dict()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A second player against a first, over the tasks that both have an attempt at that did not fail."""

    first: str
    """Its name."""
    second: str
    tasks: int
    """How many are paired."""
    only_first: int
    """Tasks that the second has no attempt at, or none that did not fail; they are in no figure."""
    only_second: int
    better: int
    """Tasks at which the second succeeded in a larger share of its attempts than the first."""
    worse: int
    success: Difference
    score: Difference
    turns: Difference

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        names = ("first", "second", "tasks", "only_first", "only_second", "better", "worse")
        figures: dict[str, Any] = {name: getattr(self, name) for name in names}
        return figures | {name: getattr(self, name).to_dict() for name in ("success", "score", "turns")}


def compare(
    first: Iterable[Episode], second: Iterable[Episode], *, names: tuple[str, str] = ("first", "second"), seed: int = 0
) -> Comparison:
    """Compare `second` with `first`, task by task; the attempts at a task count as their mean.

    Args:
        first: Episodes in any order; failed ones are left out.
        second: Of the same tasks; those that are only in one are counted and left out.
        names: Of the two.
        seed: Of the bootstrap and the permutations.
    """
    ours, theirs = by_task(first), by_task(second)
    both = sorted(ours.keys() & theirs.keys())

    clusters = [cluster_of(ours[task][0]) for task in both]

    def differ(figure: Callable[[Sequence[Episode]], float], *, bounded: bool = True) -> Difference:
        sides = [figure(ours[task]) for task in both], [figure(theirs[task]) for task in both]
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
    )


def difference(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
    *,
    bounded: bool = True,
) -> Difference:
    """What sets two players apart in one figure.

    Args:
        first: One per task.
        second: Of the same tasks, in the same order.
        clusters: Of the tasks; whole clusters change sides in the test.
        seed: Of the bootstrap and the permutations.
        bounded: Whether the figure is in [0, 1].
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
    """The comparisons with p-values that are adjusted for their number, each figure by itself."""
    ps = {name: holm({str(i): getattr(at, name).p for i, at in enumerate(comparisons)}) for name in _COMPARED}
    return [
        replace(at, **{name: replace(getattr(at, name), p_adjusted=ps[name][str(i)]) for name in _COMPARED})
        for i, at in enumerate(comparisons)
    ]


def sign_flip(gains: Sequence[float], rng: np.random.Generator) -> float:
    """The two-sided p-value of the paired permutation test of a mean of zero (Fisher 1935): were the two players alike,
    each task's difference could as well have the other sign.

    All signs are tried up to 12 tasks that differ, and `FLIPS` random ones above, to which the signs as they are belong
    as well, so that p is never 0 (Phipson and Smyth 2010). NaN without a task.
    """
    if not len(gains):
        return math.nan
    differing = np.asarray([gain for gain in gains if gain], dtype=np.float64)
    least = abs(float(differing.sum())) - 1e-9 * float(np.abs(differing).sum())
    if len(differing) <= _EXACT:
        signs = np.array(list(product((-1, 1), repeat=len(differing))), dtype=np.float64)
        return float((np.abs(signs @ differing) >= least).mean())
    return (1 + _as_far(differing, least, rng)) / (1 + FLIPS)


def _as_far(differing: NDArray[np.float64], least: float, rng: np.random.Generator) -> int:
    """How many of `FLIPS` random signs bring the sum at least so far from zero."""
    found, rows = 0, max(1, _BLOCK // len(differing))  # keeps the memory bounded whatever the number of tasks
    for start in range(0, FLIPS, rows):
        size = (min(rows, FLIPS - start), len(differing))
        found += int((np.abs((2 * rng.integers(2, size=size) - 1) @ differing) >= least).sum())
    return found


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """The p-values adjusted for their number (Holm 1979): the chance that any of them is as low by chance.

    A NaN stays one and counts for nothing.
    """
    adjusted, highest = dict(ps), 0.0
    known = sorted((p, name) for name, p in ps.items() if not math.isnan(p))
    for i, (p, name) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - i)))
        adjusted[name] = highest
    return adjusted
