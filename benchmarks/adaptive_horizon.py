"""Length of a stage of AdaptiveHorizon, in simulated evaluations of policies that improve at a known rate.

    uv run python benchmarks/adaptive_horizon.py
    uv run python benchmarks/adaptive_horizon.py --runs 100 --out adaptive-horizon.json

Each task's initial success rate is drawn from a Beta distribution with mean 0.3. From one evaluation to the next, the
mean rises by a fixed number of points, up to 1; each task gains in proportion to its failure rate. The results of an
evaluation are given to `AdaptiveHorizon.after` with its defaults, and to its previous rule: a stage ended if `patience`
consecutive evaluations had not raised mean success more than `gain` above the stage's best. The results are the median
number of evaluations in a stage, and the share of runs that have left it by the 5th and by the 10th.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median

import numpy as np
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, StepOutcome
from harness import arguments, run_parallel, show, write_json

SIZES = ((48, 1), (100, 4))
"""Tasks of an evaluation, and episodes of each."""
RISES = (0, 1, 2, 4)
"""Rise of success per evaluation, in points."""
MAX_EVALUATIONS = 60
BETA = (0.6, 1.4)
HORIZON = AdaptiveHorizon(stages=(10, 20), at_least=1, cut=0.0)


@dataclass(frozen=True)
class Row:
    """Results of a rule."""

    rule: str
    tasks: int
    samples: int
    points: int
    runs: int
    median: float
    """Evaluations of the stage; those of runs that never leave it count as `MAX_EVALUATIONS` + 1."""
    by_5: float
    """Share of the runs that have left the stage by the 5th evaluation; then by the 10th."""
    by_10: float
    never: float

    def __str__(self) -> str:
        """Name the row."""
        return f"{self.rule}, {self.tasks} x {self.samples}, {self.points:+d}"


def evaluations(tasks: int, samples: int, points: int, rng: np.random.Generator) -> Iterator[dict[str, float]]:
    """Yield the mean success of each task in one evaluation after another."""
    first = rng.beta(*BETA, tasks)
    failure = 1 - BETA[0] / sum(BETA)
    for number in range(MAX_EVALUATIONS):
        closed = min(1.0, points / 100 * number / failure)
        rates = rng.binomial(samples, first + (1 - first) * closed) / samples
        yield {str(task): rate for task, rate in enumerate(rates.tolist())}


def by_paired_tasks(found: Iterator[Mapping[str, float]]) -> int:
    """Return the number of evaluations in the first stage of `AdaptiveHorizon`."""
    stage = HORIZON.begin()
    for number, success in enumerate(found, 1):
        stage = HORIZON.after(stage, number, StepOutcome(success))
        if stage.number:
            return number
    return MAX_EVALUATIONS + 1


def by_best_mean(found: Iterator[Mapping[str, float]]) -> int:
    """Return the same for the previous rule."""
    best, stale = -1.0, 0
    for number, success in enumerate(found, 1):
        mean = fmean(success.values())
        gained = best < 0 or mean > best + HORIZON.gain
        best, stale = (mean, 0) if gained else (best, stale + 1)
        if stale >= HORIZON.patience:
            return number
    return MAX_EVALUATIONS + 1


RULES = {"best mean (before)": by_best_mean, "paired by task (now)": by_paired_tasks}


def simulate(tasks: int, samples: int, points: int, rule: str, runs: int) -> Row:
    """Simulate a rule; the evaluations are the same for all rules."""
    lengths = [
        RULES[rule](evaluations(tasks, samples, points, np.random.default_rng([tasks, samples, points, run])))
        for run in range(runs)
    ]
    by_5, by_10, left = (fmean(length <= most for length in lengths) for most in (5, 10, MAX_EVALUATIONS))
    return Row(rule, tasks, samples, points, runs, float(median(lengths)), by_5, by_10, 1 - left)


def table(rows: list[Row]) -> list[dict[str, str]]:
    """Return the rows as text."""
    return [
        {
            "tasks x samples": f"{row.tasks} x {row.samples}",
            "rise per evaluation": f"{row.points:+d}",
            "rule": row.rule,
            "median": f"{row.median:g}" if row.median <= MAX_EVALUATIONS else f"> {MAX_EVALUATIONS}",
            "left by the 5th": f"{row.by_5:.1%}",
            "left by the 10th": f"{row.by_10:.1%}",
            "never": f"{row.never:.1%}",
        }
        for row in rows
    ]


def main() -> None:
    """Simulate all rules."""
    parser = arguments(__doc__, "out", out=Path("docs/results/adaptive-horizon.json"))
    parser.add_argument("--runs", type=int, default=2_000, help="simulated runs of each row")
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
    settings = parser.parse_args()
    designs = product(SIZES, RISES, RULES)
    tasks = [partial(simulate, *size, points, rule, settings.runs) for size, points, rule in designs]
    rows = run_parallel(tasks, settings.processes)
    show("Evaluations in a stage", table(rows))
    write_json(settings.out, {"horizon": asdict(HORIZON), "rows": rows})


if __name__ == "__main__":
    main()
