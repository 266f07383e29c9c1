"""Who gets how far in the five worlds: the experts, chance, small models of our own, and what the paper published.

    uv run python benchmarks/leaderboard.py
    uv run python benchmarks/leaderboard.py --report docs/results

The first command trains the small models with `uv run train` and lets everybody play with `uv run evaluate`, just as
anyone would, each as far as it hasn't been done yet; `--worlds` takes some of them, `--quick` shows that it works. The
second reads what they left, and writes the page, its pictures and the figures as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from commands import call, train  # the files beside this one
from leaderboard_cells import WORLDS, Cell, cells_of
from leaderboard_page import write
from rich.console import Console


def run_all(cells: Sequence[Cell], console: Console, *, quick: bool) -> None:
    """Train what hasn't been trained, and play what hasn't been played."""
    for cell in cells:
        for training in cell.trainings:
            train(training, console, quick=quick)
        if not (cell.folder / "report.json").exists():
            command = cell.command.replace(f"--tasks {cell.world.tasks}", "") + " --tasks 2" if quick else cell.command
            call(command, console)


def main() -> None:
    """Run what hasn't been run, or report what has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [world.name for world in WORLDS]
    parser.add_argument("--out", type=Path, default=Path("runs/leaderboard"), help="folder of the runs")
    parser.add_argument("--worlds", nargs="+", choices=names, default=names, help="these only")
    parser.add_argument("--quick", action="store_true", help="miniature runs: shows that it works")
    parser.add_argument("--report", type=Path, help="write the page and JSON to this folder; runs nothing")
    asked, console = parser.parse_args(), Console()
    worlds = [world for world in WORLDS if world.name in asked.worlds]
    cells = cells_of(worlds, asked.out)
    if asked.report is None:
        run_all(cells, console, quick=asked.quick)
    else:
        write(cells, worlds, asked.out, asked.report, console)


if __name__ == "__main__":
    main()
