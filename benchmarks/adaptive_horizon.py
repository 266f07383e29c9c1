"""When AdaptiveHorizon leaves a stage: simulated evaluations of policies that improve at a known pace.

    uv run python benchmarks/adaptive_horizon.py
    uv run python benchmarks/adaptive_horizon.py --runs 100 --out adaptive-horizon.json

Tasks differ in difficulty: success at the first evaluation is drawn for each from a Beta distribution of mean 0.3. From
one evaluation to the next the mean rises by a fixed number of points, to 1 at most; each task gains in proportion to
what it lacks. An evaluation plays every task so many times, and what it finds goes to `AdaptiveHorizon.after` itself,
with its defaults. Beside it is the rule that it had before: a stage ended when `patience` evaluations in a row had not
brought mean success more than `gain` above the stage's best. The table and the JSON have the median number of
evaluations that a stage lasted, and the share of runs that had left it by the 5th and by the 10th.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median

import numpy as np
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, StepOutcome
from rich.console import Console
from rich.table import Table

SETTINGS = ((48, 1), (100, 4))
"""Tasks of an evaluation, and episodes of each."""
POINTS = (0, 1, 2, 4)
"""By how much success rises from one evaluation to the next, in hundredths."""
MOST = 60
"""Evaluations after which a run that hasn't left its stage is given up."""
DIFFICULTY = (0.6, 1.4)
HORIZON = AdaptiveHorizon(stages=(10, 20), at_least=1, cut=0.0)


@dataclass(frozen=True)
class Row:
    """What came of one rule, setting and pace."""

    rule: str
    tasks: int
    samples: int
    points: int
    runs: int
    median: float
    """Evaluations that the stage lasted; those given up count as `MOST` + 1."""
    by_5: float
    """Share of the runs that had left the stage after 5 evaluations, and after 10."""
    by_10: float
    never: float
    """Share of the runs that were given up."""


def evaluations(tasks: int, samples: int, points: int, rng: np.random.Generator) -> Iterator[dict[str, float]]:
    """Mean success of each task, evaluation after evaluation."""
    first = rng.beta(*DIFFICULTY, tasks)
    lacking = 1 - DIFFICULTY[0] / sum(DIFFICULTY)
    for number in range(MOST):
        closed = min(1.0, points / 100 * number / lacking)
        rates = rng.binomial(samples, first + (1 - first) * closed) / samples
        yield {str(task): rate for task, rate in enumerate(rates.tolist())}


def by_paired_tasks(found: Iterator[Mapping[str, float]]) -> int:
    """How many evaluations `AdaptiveHorizon` stays in its first stage."""
    stage = HORIZON.begin()
    for number, success in enumerate(found, 1):
        stage = HORIZON.after(stage, number, StepOutcome(success))
        if stage.number:
            return number
    return MOST + 1


def by_best_mean(found: Iterator[Mapping[str, float]]) -> int:
    """The same under the rule that it had before."""
    best, stale = -1.0, 0
    for number, success in enumerate(found, 1):
        mean = fmean(success.values())
        gained = best < 0 or mean > best + HORIZON.gain
        best, stale = (mean, 0) if gained else (best, stale + 1)
        if stale >= HORIZON.patience:
            return number
    return MOST + 1


RULES = {"best mean (before)": by_best_mean, "paired by task (now)": by_paired_tasks}


def simulate(rule: str, tasks: int, samples: int, points: int, runs: int) -> Row:
    """Both rules see the very same evaluations."""
    lasted = [
        RULES[rule](evaluations(tasks, samples, points, np.random.default_rng([tasks, samples, points, run])))
        for run in range(runs)
    ]
    shares = [fmean(length <= most for length in lasted) for most in (5, 10, MOST)]
    return Row(rule, tasks, samples, points, runs, float(median(lasted)), shares[0], shares[1], 1 - shares[2])


def main() -> None:
    """Simulate, show the table and write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2_000, help="simulated runs of each row")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/adaptive-horizon.json"))
    asked = parser.parse_args()
    cells = [(rule, *setting, points) for setting, points, rule in product(SETTINGS, POINTS, RULES)]
    with ProcessPoolExecutor(asked.processes) as pool:
        rows = [job.result() for job in [pool.submit(simulate, *cell, asked.runs) for cell in cells]]
    table = Table(
        "tasks x samples", "points per evaluation", "rule", "median stage", "left by 5", "left by 10", "never"
    )
    for row in rows:
        shares = (f"{share:.1%}" for share in (row.by_5, row.by_10, row.never))
        lasted = f"{row.median:g}" if row.median <= MOST else f"> {MOST}"
        table.add_row(f"{row.tasks} x {row.samples}", f"{row.points:+d}", row.rule, lasted, *shares)
    Console(width=120).print(table)
    asked.out.write_text(
        json.dumps({"horizon": asdict(HORIZON), "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
