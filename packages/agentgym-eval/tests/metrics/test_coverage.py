"""Tests of the coverage of 95% intervals in simulated evaluations.

Tasks with different success rates are drawn and attempted a few times. The interval should contain the mean over the
whole task distribution in 93% to 97% of the evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import lgamma

import numpy as np
import pytest
from agentgym_eval.metrics.comparison import sign_flip
from agentgym_eval.metrics.intervals import Interval, bootstrap, gain, share
from agentgym_eval.metrics.pass_at_k import pass_at_k, pass_hat_k
from numpy.typing import NDArray

LOW, HIGH = 0.93, 0.97


@dataclass(frozen=True)
class Design:
    tasks: int
    attempts: int
    mean: float
    """Mean success rate of the tasks."""
    concentration: float
    """Sum of the parameters of the rates' Beta distribution. At 0.5 most tasks always fail or always succeed; at 20 all
    tasks are about equally hard."""

    def __str__(self) -> str:
        return f"{self.tasks}x{self.attempts}, {self.mean:g}, {self.concentration:g}"

    def draw(self, rng: np.random.Generator, evaluations: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw the mean of each evaluation and its successes per task.

        The means vary slightly, because the coverage of intervals for discrete counts oscillates with the rate
        (Brown, Cai and DasGupta 2001).
        """
        means = self.mean + rng.uniform(-0.03, 0.03, evaluations)
        a = (means * self.concentration)[:, None]
        rates = rng.beta(a, self.concentration - a, size=(evaluations, self.tasks))
        return means, rng.binomial(self.attempts, rates)

    def true_pass_hat(self, means: NDArray[np.float64], k: int) -> NDArray[np.float64]:
        """Return the true pass^k, which is the k-th moment of the rates."""
        return np.array(
            [np.exp(_log_rising(m * self.concentration, k) - _log_rising(self.concentration, k)) for m in means]
        )


def _log_rising(a: float, k: int) -> float:
    return lgamma(a + k) - lgamma(a)


def coverage_by_metric(design: Design, evaluations: int) -> Iterator[tuple[str, float]]:
    """Yield the coverage of `share` intervals for each metric whose true value is between about 0.1 and 0.9."""
    means, successes = design.draw(np.random.default_rng(5), evaluations)
    for k in (1, 2, 4, 8)[: design.attempts.bit_length()]:
        all_succeed = design.true_pass_hat(means, k)
        all_fail = design.__class__(design.tasks, design.attempts, 1 - design.mean, design.concentration).true_pass_hat(
            1 - means, k
        )
        for name, truth, estimate in ((f"pass@{k}", 1 - all_fail, pass_at_k), (f"pass^{k}", all_succeed, pass_hat_k)):
            if 0.09 <= truth.mean() <= 0.91:
                yield name, coverage(successes, truth, np.array(by_count(design.attempts, k, estimate)))


def by_count(attempts: int, k: int, estimate: Callable[[int, int, int], float]) -> list[float]:
    return [estimate(attempts, successes, k) for successes in range(attempts + 1)]


def coverage(successes: NDArray[np.int64], truth: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    intervals = [share(row) for row in values[successes]]  # type: ignore[arg-type]
    return float(np.mean([at.low <= true <= at.high for at, true in zip(intervals, truth, strict=True)]))


FEW = (
    Design(30, 1, 0.1, 2),
    Design(30, 1, 0.5, 2),
    Design(30, 4, 0.3, 0.5),
    Design(60, 8, 0.9, 2),
    Design(100, 4, 0.1, 20),
    Design(300, 8, 0.5, 0.5),
)
ALL = [Design(*values) for values in product((30, 100, 300), (1, 4, 8), (0.1, 0.3, 0.5, 0.7, 0.9), (0.5, 2, 20))]


@pytest.mark.parametrize("design", FEW, ids=str)
def test_share_intervals_cover_the_truth_in_93_to_97_percent(design: Design) -> None:
    rates = dict(coverage_by_metric(design, 1000))
    assert rates
    assert {name: rate for name, rate in rates.items() if not LOW <= rate <= HIGH} == {}


@pytest.mark.long
def test_share_intervals_cover_the_truth_in_all_designs() -> None:
    rates = {(str(design), name): rate for design in ALL for name, rate in coverage_by_metric(design, 500)}
    noise = 3 * (0.05 * 0.95 / 500) ** 0.5  # three standard errors of the coverage over 500 evaluations
    assert len(rates) > 300
    assert {key: rate for key, rate in rates.items() if not LOW - noise <= rate <= HIGH + noise} == {}
    assert LOW + 0.01 <= np.mean(list(rates.values())) <= HIGH - 0.01


def gains(rng: np.random.Generator, tasks: int, evaluations: int) -> tuple[float, NDArray[np.float64]]:
    """Draw gains of a second policy that is better by 0.1 on average, with correlated success rates."""
    first = rng.beta(1, 1, size=(evaluations, tasks)) * 0.8
    second = first + rng.beta(1, 1, size=(evaluations, tasks)) * 0.2
    return 0.1, (rng.binomial(4, second) - rng.binomial(4, first)) / 4


def turns(rng: np.random.Generator, tasks: int, evaluations: int) -> tuple[float, NDArray[np.float64]]:
    """Draw numbers of turns: most episodes are short, and 10% reach the limit of 40."""
    at_limit = rng.random((evaluations, tasks)) < 0.1
    return 0.9 * 7 + 0.1 * 40, np.where(at_limit, 40, rng.integers(3, 12, size=at_limit.shape)).astype(float)


@pytest.mark.parametrize(
    ("draw", "tasks", "evaluations"),
    [
        (gains, 30, 800),
        (turns, 60, 800),
        pytest.param(gains, 100, 2000, marks=pytest.mark.long),
        pytest.param(turns, 200, 2000, marks=pytest.mark.long),
    ],
)
def test_bootstrap_intervals_cover_the_truth_in_93_to_97_percent(
    draw: Callable[..., tuple[float, NDArray[np.float64]]], tasks: int, evaluations: int
) -> None:
    rng = np.random.default_rng(3)
    truth, values = draw(rng, tasks, evaluations)

    def interval(row: NDArray[np.float64]) -> Interval:
        return bootstrap(row.tolist(), None, rng, skewed=draw is turns, resamples=400)

    rate = np.mean([(at := interval(row)).low <= truth <= at.high for row in values])
    assert LOW <= rate <= HIGH


EDGES = [Design(*values) for values in product((20, 50, 100), (2, 8), (0.02, 0.05, 0.95, 0.98), (0.5, 2, 20))]


@pytest.mark.long
def test_share_intervals_cover_the_truth_near_0_and_1() -> None:
    """Without shrinkage, 1 of 9 designs had a coverage below 0.93; the worst had 0.87."""
    rng = np.random.default_rng(6)
    rates = dict[str, float]()
    for design in EDGES:
        reach = min(design.mean, 1 - design.mean) / 2
        means = design.mean + rng.uniform(-reach, reach, 500)
        a = (means * design.concentration)[:, None]
        successes = rng.binomial(design.attempts, rng.beta(a, design.concentration - a, size=(500, design.tasks)))
        rates[str(design)] = coverage(successes, means, np.arange(design.attempts + 1) / design.attempts)
    noise = 3 * (0.05 * 0.95 / 500) ** 0.5
    assert {key: rate for key, rate in rates.items() if rate < LOW - noise} == {}
    assert np.mean(list(rates.values())) > 0.95


# Clusters.


def clustered(
    rng: np.random.Generator, clusters: int, size: int, concentration: float, evaluations: int
) -> tuple[float, NDArray[np.float64]]:
    """Draw tasks in clusters: success rates vary between clusters, and slightly within them."""
    cluster_rates = rng.beta(0.4 * concentration, 0.6 * concentration, size=(evaluations, clusters, 1))
    rates = rng.beta(8 * cluster_rates + 1e-9, 8 * (1 - cluster_rates) + 1e-9, size=(evaluations, clusters, size))
    return 0.4, (rng.binomial(4, rates) / 4).reshape(evaluations, -1)


@pytest.mark.parametrize(
    ("clusters", "size", "concentration"),
    [(25, 8, 1), pytest.param(50, 4, 1, marks=pytest.mark.long), pytest.param(25, 8, 4, marks=pytest.mark.long)],
)
def test_clustered_tasks_need_intervals_over_clusters(clusters: int, size: int, concentration: float) -> None:
    truth, values = clustered(np.random.default_rng(1), clusters, size, concentration, 500)
    names = np.repeat(np.arange(clusters), size).tolist()

    def rate(clusters_of_tasks: list[int] | None) -> float:
        intervals = [share(row.tolist(), clusters_of_tasks) for row in values]
        return float(np.mean([at.low <= truth <= at.high for at in intervals]))

    assert 0.92 <= rate(names) <= 0.98
    assert rate(None) < 0.85


@pytest.mark.long
def test_bootstrap_over_clusters_covers_the_mean_number_of_turns() -> None:
    rng = np.random.default_rng(2)
    cluster_means = rng.normal(10, 3, size=(500, 30, 1))
    values = (cluster_means + rng.normal(0, 2, size=(500, 30, 6))).reshape(500, -1)
    names = np.repeat(np.arange(30), 6).tolist()
    intervals = [bootstrap(row.tolist(), names, rng, resamples=400) for row in values]
    assert 0.92 <= np.mean([at.low <= 10 <= at.high for at in intervals]) <= 0.98


# Gains that are equal at most tasks.


@pytest.mark.parametrize("changed", [0.0, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("tasks", [2, 20, 50])
def test_gain_intervals_cover_the_truth_if_few_tasks_change(tasks: int, changed: float) -> None:
    """A share of tasks changes from always failing to always succeeding. Bootstrap coverage was only 0.34 to 0.89."""
    rng = np.random.default_rng(7)
    gains = (rng.random((400, tasks)) < changed).astype(float)
    intervals = [gain(row.tolist(), None, sign_flip(row.tolist(), rng)) for row in gains]
    assert np.mean([at.low <= changed <= at.high for at in intervals]) >= 0.9


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("tasks", "attempts", "share_gained"), [(20, 1, 0.9), (20, 4, 0.95), (50, 1, 0.98)])
def test_gain_intervals_cover_the_truth_if_nearly_all_tasks_gain_fully(
    tasks: int, attempts: int, share_gained: float, sign: int
) -> None:
    """One policy always fails. Student's interval, which it was before, covered the truth in 57% to 87%."""
    rng = np.random.default_rng(8)
    reach = (1 - share_gained) / 2
    truth = share_gained + rng.uniform(-reach, reach, 400)
    rates = rng.beta(truth[:, None], 1 - truth[:, None], size=(400, tasks))
    gains = sign * rng.binomial(attempts, rates) / attempts
    intervals = [gain(row.tolist(), None, 0.001) for row in gains]
    assert np.mean([at.low <= sign * true <= at.high for at, true in zip(intervals, truth, strict=True)]) >= 0.93
