"""How often 95% intervals hold the truth in simulated evaluations: ours, and what is common elsewhere.

    uv run python benchmarks/coverage.py --report docs/results

Tasks are drawn whose rates of success are known, each is tried a few times, and each kind of interval is asked whether
it holds what all tasks there are would come to. `--quick` draws few evaluations, and shows that it works.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from agentgym_eval.metrics.comparison import sign_flip
from agentgym_eval.metrics.intervals import Interval, bootstrap, cluster_sums, gain, share
from many_runs import markdown, show  # the file beside this one
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats

Values = NDArray[np.float64]
Clusters = list[int] | None
RESAMPLES = 500


@dataclass(frozen=True)
class Evaluations:
    """Simulated evaluations of one design."""

    truth: Values
    """Of each."""
    values: Values
    """One per task, evaluations x tasks."""
    clusters: Clusters = None
    """Of the tasks."""


Draw = Callable[[np.random.Generator, int], Evaluations]


def shares(means: Sequence[float], reach: float, tasks: Sequence[int]) -> Iterator[Draw]:
    """Rates of success are Beta distributed: with 0.5 most tasks are hopeless or sure, with 20 all about as hard. The
    means differ a little between evaluations, since chance decides how well an interval does at any one of them.
    """

    def draw(rng: np.random.Generator, count: int, tasks: int, attempts: int, mean: float, alike: float) -> Evaluations:
        truth = mean + rng.uniform(-reach * min(mean, 1 - mean), reach * min(mean, 1 - mean), count)
        a = (truth * alike)[:, None]
        return Evaluations(truth, rng.binomial(attempts, rng.beta(a, alike - a, size=(count, tasks))) / attempts)

    for design in product(tasks, (1, 4, 8), means, (0.5, 2, 20)):
        yield lambda rng, count, design=design: draw(rng, count, *design)


def clustered() -> Iterator[Draw]:
    """Tasks of templates whose rates of success differ, and within which tasks differ a little."""

    def draw(rng: np.random.Generator, count: int, clusters: int, size: int, alike: float) -> Evaluations:
        kinds = rng.beta(0.4 * alike, 0.6 * alike, size=(count, clusters, 1))
        rates = rng.beta(8 * kinds + 1e-9, 8 * (1 - kinds) + 1e-9, size=(count, clusters, size))
        names = np.repeat(np.arange(clusters), size).tolist()
        return Evaluations(np.full(count, 0.4), (rng.binomial(4, rates) / 4).reshape(count, -1), names)

    for design in product((10, 25, 50), (4, 9), (1.0, 4.0)):
        yield lambda rng, count, design=design: draw(rng, count, *design)


def ties() -> Iterator[Draw]:
    """Tasks are hopeless or sure, and a share of them becomes sure."""

    def draw(rng: np.random.Generator, count: int, tasks: int, changed: float) -> Evaluations:
        return Evaluations(np.full(count, changed), (rng.random((count, tasks)) < changed).astype(float))

    for design in product((20, 50, 100), (0.02, 0.05, 0.1)):
        yield lambda rng, count, design=design: draw(rng, count, *design)


def gains() -> Iterator[Draw]:
    """A second player who is better at every task, by 0.1 on average."""

    def draw(rng: np.random.Generator, count: int, tasks: int, attempts: int) -> Evaluations:
        first = rng.beta(1, 1, size=(count, tasks)) * 0.8
        second = first + rng.beta(1, 1, size=(count, tasks)) * 0.2
        played = (rng.binomial(attempts, rates) / attempts for rates in (second, first))
        return Evaluations(np.full(count, 0.1), next(played) - next(played))

    for design in product((20, 50, 100), (1, 4)):
        yield lambda rng, count, design=design: draw(rng, count, *design)


# Intervals.

Kind = Callable[[Values, Clusters, np.random.Generator], tuple[float, float]]


def _ends(at: Interval) -> tuple[float, float]:
    return at.low, at.high


def our_share(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """What reports have."""
    return _ends(share(values.tolist(), clusters))


def our_share_over_tasks(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """The same where nothing is known of clusters."""
    return _ends(share(values.tolist()))


def our_gain(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """What comparisons have."""
    return _ends(gain(values.tolist(), clusters, sign_flip(cluster_sums(values.tolist(), clusters), rng)))


def percentiles(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """Those of the bootstrap over tasks, expanded: what comparisons had before."""
    return _ends(bootstrap(values.tolist(), None, rng, skewed=False, resamples=RESAMPLES))


def student(values: Values, clusters: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    """Mean and standard error over tasks, as Inspect (`stderr`) and lm-evaluation-harness report them, with t."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - half), float(values.mean() + half)


OURS, TASKS, T, BOOTSTRAP = "ours", "ours, over tasks", "t over tasks", "bootstrap over tasks"
SHARES: dict[str, Kind] = {OURS: our_share, T: student, BOOTSTRAP: percentiles}
GAINS: dict[str, Kind] = {OURS: our_gain, T: student, BOOTSTRAP: percentiles}
FAMILIES: dict[str, tuple[Iterator[Draw], dict[str, Kind]]] = {
    "success from 10% to 90%, 30 to 300 tasks": (shares((0.1, 0.3, 0.5, 0.7, 0.9), 0.1, (30, 100, 300)), SHARES),
    "success below 5% or above 95%, 20 to 100 tasks": (shares((0.02, 0.05, 0.95, 0.98), 0.5, (20, 50, 100)), SHARES),
    "10 to 50 templates of 4 or 9 tasks": (clustered(), {OURS: our_share, TASKS: our_share_over_tasks, T: student}),
    "differences, of which most tasks have none": (ties(), GAINS),
    "differences at every task": (gains(), GAINS),
}


def measured(count: int, console: Console) -> Iterator[dict[str, str | float]]:
    """A row for each family and kind of interval."""
    for family, (draws, kinds) in FAMILIES.items():
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        widths: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number, draw in enumerate(draws):
            drawn = draw(np.random.default_rng([number, count]), count)
            for kind, interval in kinds.items():
                rng = np.random.default_rng(number)
                ends = np.array([interval(row, drawn.clusters, rng) for row in drawn.values])
                rates[kind].append(float(np.mean((ends[:, 0] <= drawn.truth) & (drawn.truth <= ends[:, 1]))))
                widths[kind].append(float(np.mean(ends[:, 1] - ends[:, 0])))
        console.print(f"{family}: {number + 1} designs")
        for kind in kinds:
            yield {
                "family": family,
                "interval": kind,
                "designs": len(rates[kind]),
                "mean": float(np.mean(rates[kind])),
                "least": min(rates[kind]),
                "most": max(rates[kind]),
                "below 93%": float(np.mean(np.array(rates[kind]) < 0.93)),
                "width": float(np.mean(widths[kind])),
            }


def report(rows: Sequence[dict[str, str | float]], count: int, folder: Path, console: Console, command: str) -> None:
    """Write the page and the figures, and show the table."""
    shown = [
        {
            "simulated": str(row["family"]),
            "interval": str(row["interval"]),
            "designs": str(row["designs"]),
            "held, mean": f"{100 * float(row['mean']):.1f}",
            "least": f"{100 * float(row['least']):.1f}",
            "most": f"{100 * float(row['most']):.1f}",
            "designs below 93": f"{100 * float(row['below 93%']):.0f}%",
            "mean width": f"{100 * float(row['width']):.1f}",
        }
        for row in rows
    ]
    show("How often 95% intervals hold the truth, in percent", shown, console)
    folder.mkdir(parents=True, exist_ok=True)
    page = _PAGE.format(command=command, table=markdown(shown), count=count)
    (folder / "coverage.md").write_text(page, encoding="utf-8")
    (folder / "coverage.json").write_text(json.dumps(rows, indent=1) + "\n")


_PAGE = """# How often intervals hold the truth

```sh
{command}
```

In simulated evaluations the truth is known: tasks are drawn whose rates of success are, each is tried one, four or
eight times, and an interval of the mean over tasks holds the mean of all tasks there are, or doesn't. A 95% interval
should in 95 of 100 evaluations. Each design is {count:,} evaluations, so that its rate is uncertain by about one point.

{table}

"Ours" are the intervals of [reports and comparisons](../evaluation.md#intervals). "t over tasks" is the mean with its
standard error over tasks, as Inspect and lm-evaluation-harness report it, with Student's quantile; near 0 and 1, and
where hardly a task differs, all values agree in many evaluations, and it has no width. "Bootstrap over tasks" is what
our comparisons had before. Widths are in points.
"""


def main() -> None:
    """Simulate, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, default=Path("runs/coverage"), help="write the page and JSON there")
    parser.add_argument("--evaluations", type=int, default=500, help="of each design")
    parser.add_argument("--quick", action="store_true", help="few evaluations: shows that it works")
    asked, console = parser.parse_args(), Console()
    count = 5 if asked.quick else asked.evaluations
    rows = list(measured(count, console))
    report(rows, count, asked.report, console, "uv run python benchmarks/coverage.py --report docs/results")


if __name__ == "__main__":
    main()
