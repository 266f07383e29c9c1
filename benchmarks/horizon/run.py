"""Study what growing horizons do, in a corridor of rooms, with credit that is and isn't biased by length.

    uv run python benchmarks/horizon/run.py --processes 1
    uv run python benchmarks/horizon/run.py --report docs/results

docs/results/horizon-plan.md registers hypotheses, runs and tests. The first command finishes the runs in the order of
the plan and adds a record of each to docs/results/horizon.json.gz, so it can be interrupted at any time and resumed,
also on another machine without the run folders. The second writes the page and its figures from the records.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentgym_trainer.config import RLConfig
from harness import arguments, quiet
from training_runs import miniature

from horizon.design import ENVIRONMENTS
from horizon.page import report
from horizon.runs import NAMES, read_records, run_study

RECORDS = Path("docs/results/horizon.json.gz")


def _quick(config: RLConfig) -> RLConfig:
    """Return a tiny version, with enough imitation for some successes: without any, nothing would train."""
    return replace(
        miniature(config),
        model="scratch",
        warm_start=replace(config.warm_start, episodes=600, noise=0.2),
        steps=2,
        turns_per_step=64,
        evaluation=replace(config.evaluation, tasks=6, test_tasks=12, every=1),
    )


QUICK = {name: _quick(config) for name, config in ENVIRONMENTS.items()}


def main() -> None:
    """Finish all runs, or report them."""
    parser = arguments(__doc__, "quick", "report")
    parser.add_argument("--out", type=Path, default=Path("runs/horizon"), help="folder of runs in progress")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--blocks", nargs="+", choices=NAMES, default=NAMES, help="blocks of the plan")
    parser.add_argument("--most", type=int, help="stop after this many runs")
    settings = parser.parse_args()
    file = settings.out / RECORDS.name if settings.quick else RECORDS
    if settings.report is not None:
        report(read_records(file), settings.report)
        return
    quiet()
    environments = QUICK if settings.quick else ENVIRONMENTS
    options = {"processes": settings.processes, "blocks": settings.blocks, "most": settings.most}
    run_study(file, settings.out, environments=environments, **options)


if __name__ == "__main__":
    main()
