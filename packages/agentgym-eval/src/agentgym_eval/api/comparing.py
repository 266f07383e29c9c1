"""`compare`, as a function; the command of this name prints what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from agentgym_eval.api.options import path_of
from agentgym_eval.api.report import ComparisonReport, Report
from agentgym_eval.metrics.seeds import across_seeds
from agentgym_eval.runs.comparisons import (
    EvaluatedRun,
    against_first,
    differing,
    files_of,
    nothing_common,
    read_runs,
    seed_by_seed,
)
from agentgym_eval.util.errors import UsageError


def compare(
    runs: Sequence[Report | str | PathLike[str]],
    *,
    against: Sequence[Report | str | PathLike[str]] = (),
    k: Sequence[int] = (),
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    forensics: bool = False,
) -> ComparisonReport:
    """Compare runs on the tasks that they share, as the command `compare` does.

    Args:
        runs: Two or more: reports, folders of `evaluate` (one of several runs stands for all of them), or files of
            episodes. Each is compared with the first.
        against: Runs of a second training method, as many as of the first and in the same order of training seeds.
            Each is compared with the run of the same seed, and the two methods are compared over all seeds.
        k: Values of k for pass@k and pass^k. Default: the powers of two up to the attempts per task.
        seed: Random seed of the confidence intervals and paired tests.
        out: Folder for the comparison as HTML, Markdown, JSON and plots, which is created.
        forensics: Whether to replay episodes for the expert's distances, where a run doesn't have them, and write them
            next to its episodes.

    Raises:
        UsageError: if a run can't be read, the runs have no task in common at which both have an attempt that
            did not fail, or `out` is the folder of a run.
    """
    folder = path_of(out) if out is not None else None
    if folder and (folder / "episodes.jsonl").exists():
        raise UsageError(f"{folder} holds a run, whose report would be overwritten; choose another --out.")
    named = [file for path in (*runs, *against) for file in files_of([_path(path)])]
    if against and (twice := [str(file) for file in named if named.count(file) > 1]):
        raise UsageError(f"{twice[0]} is named twice, but with against every run is that of a seed; name each once.")
    played = read_runs([*map(_path, runs), *map(_path, against)], k, seed, forensics=forensics)
    first = len(files_of(list(map(_path, runs))))
    comparisons = seed_by_seed(played[:first], played[first:], seed) if against else against_first(played, seed)
    if not any(comparison.tasks for comparison in comparisons):
        raise UsageError(nothing_common(played))
    across = across_seeds(comparisons) if against else None
    title = f"{len(played)} runs compared with {played[0].evaluated.policy}"
    title = f"Two training methods over {len(comparisons)} seeds" if against else title
    report = ComparisonReport(list(map(report_of, played)), comparisons, across, list(differing(played)), title)
    if folder:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} can't be written to ({error}); choose another --out.") from error
        report.write(folder)
    return report


def report_of(run: EvaluatedRun) -> Report:
    """Return the report of a run that was read."""
    evaluated = run.evaluated
    return Report(evaluated.folder or Path(), f"{evaluated.policy} in {evaluated.world}", run)


def _path(run: Report | str | PathLike[str]) -> Path:
    return run.folder if isinstance(run, Report) else Path(run)
