"""Success in the five environments: experts, a random policy, small models trained here, and published results.

    uv run python benchmarks/leaderboard.py
    uv run python benchmarks/leaderboard.py --report docs/results

The first command trains the small models with `uv run train` and plays all policies with `uv run evaluate`, as far as
it isn't done yet. The second writes the page, its pictures and JSON from the runs. What has no run in `--out` keeps its
record in leaderboard.json; the pictures are drawn only from the runs of all five environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commands import call, train
from harness import arguments
from leaderboard_cells import TASK_SETS, WORLDS, Cell, cells_of
from leaderboard_page import write


def run_all(cells: Sequence[Cell], *, quick: bool) -> None:
    """Train and play, as far as it isn't done yet."""
    for cell in cells:
        for training in cell.trainings:
            train(training, quick=quick)
        if not cell.played:
            command = cell.command.replace(f"--tasks {cell.world.tasks}", "") + " --tasks 2" if quick else cell.command
            call(command)


def main() -> None:
    """Finish all runs, or report them."""
    names = [world.name for world in (*WORLDS, *TASK_SETS)]
    parser = arguments(__doc__, "quick", "report")
    parser.add_argument("--out", type=Path, default=Path("runs/leaderboard"), help="folder of the runs")
    parser.add_argument(
        "--worlds", nargs="+", choices=names, default=names, help="only these environments and task sets"
    )
    settings = parser.parse_args()
    worlds = [world for world in (*WORLDS, *TASK_SETS) if world.name in settings.worlds]
    cells = cells_of(worlds, settings.out)
    if settings.report is None:
        run_all(cells, quick=settings.quick)
    else:
        write(cells, settings.out, settings.report)


if __name__ == "__main__":
    main()
