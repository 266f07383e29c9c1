"""Coverage of 95% intervals in simulated evaluations: those of this package, and common alternatives.

    uv run python benchmarks/interval_coverage.py --report docs/results

Tasks with known success rates are drawn and attempted a few times. Coverage is the share of evaluations whose interval
contains the mean over all possible tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_eval.metrics.comparison import sign_flip
from agentgym_eval.metrics.intervals import Interval, bootstrap, cluster_sums, gain, share
from harness import arguments, markdown, show, write_report
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]
Clusters = list[int] | None
RESAMPLES = 500


@dataclass(frozen=True)
class Evaluations:
    """Simulated evaluations of one design."""

    truth: Values
    """Of each evaluation."""
    values: Values
    """Mean of each task, evaluations x tasks."""
    clusters: Clusters = None
    """Cluster of each task."""


Draw = Callable[[np.random.Generator, int], Evaluations]
"""Draws a number of evaluations of one design."""


def success_designs(means: Sequence[float], reach: float, tasks: Sequence[int]) -> Iterator[Draw]:
    """Yield designs with Beta distributed success rates: of concentration 0.5 (most near 0 or 1) to 20 (all similar).

    The means differ a little between evaluations, since coverage at a single mean varies with the discrete outcomes.
    """

    def draw(
        tasks: int, attempts: int, mean: float, concentration: float, rng: np.random.Generator, count: int
    ) -> Evaluations:
        truth = mean + rng.uniform(-reach * min(mean, 1 - mean), reach * min(mean, 1 - mean), count)
        a = (truth * concentration)[:, None]
        rates = rng.beta(a, concentration - a, size=(count, tasks))
        return Evaluations(truth, rng.binomial(attempts, rates) / attempts)

    for design in product(tasks, (1, 4, 8), means, (0.5, 2, 20)):
        yield partial(draw, *design)


def cluster_designs() -> Iterator[Draw]:
    """Yield designs with templates of different success rates, and small differences between tasks of a template."""

    def draw(clusters: int, size: int, concentration: float, rng: np.random.Generator, count: int) -> Evaluations:
        templates = rng.beta(0.4 * concentration, 0.6 * concentration, size=(count, clusters, 1))
        rates = rng.beta(8 * templates + 1e-9, 8 * (1 - templates) + 1e-9, size=(count, clusters, size))
        names = np.repeat(np.arange(clusters), size).tolist()
        return Evaluations(np.full(count, 0.4), (rng.binomial(4, rates) / 4).reshape(count, -1), names)

    for design in product((10, 25, 50), (4, 9), (1.0, 4.0)):
        yield partial(draw, *design)


def sparse_differences() -> Iterator[Draw]:
    """Yield designs of comparisons in which a small share of the tasks changes from failure to success."""

    def draw(tasks: int, changed: float, rng: np.random.Generator, count: int) -> Evaluations:
        return Evaluations(np.full(count, changed), (rng.random((count, tasks)) < changed).astype(float))

    for design in product((20, 50, 100), (0.02, 0.05, 0.1)):
        yield partial(draw, *design)


def dense_differences() -> Iterator[Draw]:
    """Yield designs of comparisons in which the second policy is better at every task, by 0.1 on average."""

    def draw(tasks: int, attempts: int, rng: np.random.Generator, count: int) -> Evaluations:
        first = rng.beta(1, 1, size=(count, tasks)) * 0.8
        second = first + rng.beta(1, 1, size=(count, tasks)) * 0.2
        played = (rng.binomial(attempts, rates) / attempts for rates in (second, first))
        return Evaluations(np.full(count, 0.1), next(played) - next(played))

    for design in product((20, 50, 100), (1, 4)):
        yield partial(draw, *design)


# Intervals.

Method = Callable[[Values, Clusters, np.random.Generator], tuple[float, float]]
"""Returns the ends of an interval."""


def _ends(at: Interval) -> tuple[float, float]:
    return at.low, at.high


def our_gain(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """Return the interval of comparisons."""
    return _ends(gain(values.tolist(), clusters, sign_flip(cluster_sums(values.tolist(), clusters), rng)))


def percentiles(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """Return the expanded bootstrap interval over tasks, which comparisons had before."""
    return _ends(bootstrap(values.tolist(), None, rng, skewed=False, resamples=RESAMPLES))


def student(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """Return the t-interval over tasks, from the standard error of Inspect (`stderr`) and lm-evaluation-harness."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - half), float(values.mean() + half)


OURS, T, BOOTSTRAP = "ours", "t over tasks", "bootstrap over tasks"
SHARES: dict[str, Method] = {
    OURS: lambda values, clusters, rng: _ends(share(values.tolist(), clusters)),
    T: student,
    BOOTSTRAP: percentiles,
}
CLUSTERED: dict[str, Method] = {
    OURS: SHARES[OURS],
    "ours, over tasks": lambda values, clusters, rng: _ends(share(values.tolist())),
    T: student,
}
GAINS: dict[str, Method] = {OURS: our_gain, T: student, BOOTSTRAP: percentiles}
LOW_AND_HIGH = (0.02, 0.05, 0.95, 0.98)
FAMILIES: dict[str, tuple[Iterator[Draw], dict[str, Method]]] = {
    "success from 10% to 90%, 30 to 300 tasks": (
        success_designs((0.1, 0.3, 0.5, 0.7, 0.9), 0.1, (30, 100, 300)),
        SHARES,
    ),
    "success below 5% or above 95%, 20 to 100 tasks": (success_designs(LOW_AND_HIGH, 0.5, (20, 50, 100)), SHARES),
    "10 to 50 templates of 4 or 9 tasks": (cluster_designs(), CLUSTERED),
    "differences, of which most tasks have none": (sparse_differences(), GAINS),
    "differences at every task": (dense_differences(), GAINS),
    "differences of 90 points and more": (success_designs((0.9, 0.95, 0.98), 0.5, (20, 50, 100)), GAINS),
}


def measure(count: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each family of designs and interval, from `count` evaluations of each design."""
    for family, (designs, methods) in FAMILIES.items():
        coverage: dict[str, list[float]] = {method: [] for method in methods}
        widths: dict[str, list[float]] = {method: [] for method in methods}
        for number, draw in enumerate(designs):
            drawn = draw(np.random.default_rng([number, count]), count)
            for method, interval in methods.items():
                rng = np.random.default_rng(number)
                ends = np.array([interval(row, drawn.clusters, rng) for row in drawn.values])
                coverage[method].append(float(np.mean((ends[:, 0] <= drawn.truth) & (drawn.truth <= ends[:, 1]))))
                widths[method].append(float(np.mean(ends[:, 1] - ends[:, 0])))
        for method in methods:
            yield {
                "family": family,
                "interval": method,
                "designs": len(coverage[method]),
                "mean": float(np.mean(coverage[method])),
                "least": min(coverage[method]),
                "most": max(coverage[method]),
                "below 93%": float(np.mean(np.array(coverage[method]) < 0.93)),
                "width": float(np.mean(widths[method])),
            }
        print(f"{family}: done", flush=True)


def report(rows: Sequence[dict[str, Any]], count: int, folder: Path) -> None:
    """Write the page and JSON."""
    table = [
        {
            "simulated": row["family"],
            "interval": row["interval"],
            "designs": str(row["designs"]),
            "mean coverage": f"{100 * row['mean']:.1f}",
            "least": f"{100 * row['least']:.1f}",
            "most": f"{100 * row['most']:.1f}",
            "designs below 93": f"{row['below 93%']:.0%}",
            "mean width": f"{100 * row['width']:.1f}",
        }
        for row in rows
    ]
    show("Coverage of 95% intervals, in percent", table)
    write_report(folder, "coverage", _PAGE.format(table=markdown(table), count=count), rows)


_PAGE = """# Coverage of intervals

```sh
uv run python benchmarks/interval_coverage.py --report docs/results
```

Simulated evaluations have a known truth: the success rates of the tasks are drawn from a known distribution, each task
is attempted one, four or eight times, and coverage is the share of evaluations whose interval contains the mean over
all possible tasks. For 95% intervals it should be 95%. Each design has {count:,} evaluations, so its coverage is
uncertain by about one point.

{table}

"Ours" are the intervals of [reports and comparisons](../evaluation.md#intervals). "t over tasks" is the mean with its
standard error over tasks, as in Inspect and lm-evaluation-harness, and Student's quantile; near 0 and 1, and where
hardly any task differs, all values are equal in many evaluations, and the interval has no width. "Bootstrap over tasks"
is the previous interval of our comparisons. Differences of 90 points and more are over a policy that always fails.
Widths are in points.
"""


def main() -> None:
    """Simulate, and report."""
    parser = arguments(__doc__, "quick")
    parser.add_argument("--report", type=Path, default=Path("runs/coverage"), help="folder for the page and JSON")
    parser.add_argument("--evaluations", type=int, default=500, help="number of evaluations of each design")
    settings = parser.parse_args()
    count = 5 if settings.quick else settings.evaluations
    report(list(measure(count)), count, settings.report)


if __name__ == "__main__":
    main()
