"""Outcomes of the runs of `training_runs.py`: success with intervals over seeds and tasks, curves, pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs import Episode, read_episodes
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_trainer.run.folder import RunFolder
from harness import study_arguments
from numpy.typing import NDArray
from training_runs import PLAYED, Run, Unit, run_all, spent

Values = NDArray[np.float64]
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The runs of one method, over seeds."""

    method: str
    seeds: tuple[int, ...]
    before: Values
    """Success of the initial model, seeds x tasks: the mean over a task's episodes."""
    after: Values
    """Success at the end, seeds x tasks."""
    turns: float
    """Mean of the episodes at the end."""
    curves: tuple[tuple[Values, Values], ...]
    """For each seed: budget used at its evaluations, and success of the evaluated tasks, evaluations x tasks."""
    updates: float
    failed: int
    lines: tuple[list[dict[str, Any]], ...]
    """The metrics of each seed."""


def outcome(runs: Sequence[Run], starts: Path) -> Outcome:
    """Read the runs of one method and their initial models.

    Raises:
        SystemExit: If a run isn't finished.
    """
    for run in runs:
        if not (run.path / PLAYED).exists():
            raise SystemExit(f"The run {run.path} isn't finished; run the script without --report first.")
    before = [list(read_episodes(starts / f"seed-{run.seed}" / PLAYED)) for run in runs]
    after = [list(read_episodes(run.path / PLAYED)) for run in runs]
    lines = tuple(list(RunFolder(run.path).read_metrics()) for run in runs)
    return Outcome(
        runs[0].method,
        tuple(run.seed for run in runs),
        np.array([success_by_task(episodes) for episodes in before]),
        np.array([success_by_task(episodes) for episodes in after]),
        float(np.mean([len(episode.turns) for episodes in after for episode in episodes])),
        tuple(curve(RunFolder(run.path), run.unit) for run in runs),
        float(np.mean([len(metrics) for metrics in lines])),
        sum(episode.failed for episodes in after for episode in episodes),
        lines,
    )


def curve(folder: RunFolder, unit: Unit) -> tuple[Values, Values]:
    """Return the budget used at a run's evaluations, and success of the evaluated tasks, evaluations x tasks."""
    lines = list(folder.read_metrics())
    at_step = {0: 0, **dict(zip((line["step"] for line in lines), spent(lines, unit), strict=True))}
    steps = folder.evaluated_steps("sampled")
    success = [success_by_task(folder.read_evaluation(step, "sampled") or []) for step in steps]
    return np.array([at_step[step] for step in steps], dtype=np.float64), np.array(success)


def success_by_task(episodes: Sequence[Episode]) -> list[float]:
    """Return the mean success of each task, ordered by task id, without failed episodes."""
    found: dict[str, list[bool]] = {}
    for episode in episodes:
        if not episode.failed:
            found.setdefault(episode.task_id, []).append(bool(episode.success))
    return [float(np.mean(found[task])) for task in sorted(found)]


def interval(success_ST: Values, statistic: Callable[[Values], Any] = np.mean) -> tuple[Any, Any, Any]:
    """Return a statistic of seeds x tasks (x more) with its 95% interval, by a bootstrap over seeds and their tasks."""
    rng = np.random.default_rng(0)
    seeds, tasks = success_ST.shape[:2]
    drawn: list[Any] = []
    for _ in range(_RESAMPLES):
        s = rng.integers(seeds, size=(seeds, 1))
        drawn.append(statistic(success_ST[s, rng.integers(tasks, size=(seeds, tasks))]))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return statistic(success_ST), low, high


def interval_text(success_ST: Values) -> str:
    """Return the mean with its interval as text."""
    return "{:.3f} ({:.3f} to {:.3f})".format(*interval(success_ST))


def interval_record(success_ST: Values) -> dict[str, float]:
    """Return the mean with its interval as JSON values."""
    return dict(zip(("mean", "low", "high"), map(float, interval(success_ST)), strict=True))


def difference_text(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the mean of the second minus the first, paired by seed, with its 95% t-interval as text."""
    at = over_seeds(first, second).difference
    return f"{at.mean:+.3f} ({at.low:+.3f} to {at.high:+.3f})"


def seeds_text(success_ST: Values, sign: str = "") -> str:
    """Return the means of the seeds as text."""
    return ", ".join(f"{mean:{sign}.3f}" for mean in success_ST.mean(1))


def commits(runs: Iterable[Path]) -> str:
    """Return the commits at which runs began, with a plus where files were changed since."""
    files = [run / "run.json" for run in runs]
    begun = [json.loads(file.read_text(encoding="utf-8")).get("git") if file.exists() else None for file in files]
    return ", ".join(sorted({f"{git['commit'][:8]}{'+' * git['dirty']}" if git else "unknown" for git in begun}))


@contextmanager
def picture(file: Path, *shape: int, **settings: Any) -> Generator[Any]:
    """Yield the axes of a matplotlib figure, which is saved at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    file.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(*shape, layout="constrained", **settings)
    yield axes
    figure.savefig(file, dpi=130)
    plt.close(figure)


def run_or_report(
    doc: str | None, runs_of: Callable[..., list[Run]], report: Callable[[Sequence[Outcome], Path, str], None]
) -> None:
    """Finish all runs of a study, or report them.

    Args:
        doc: Docstring of the script.
        runs_of: Returns all runs, given a folder, seeds, and whether they are miniatures (`quick`).
        report: Writes the page, picture and JSON to a folder, given the outcomes and the command of the study.
    """
    settings, command = study_arguments(doc)
    runs, starts = runs_of(settings.out, settings.seeds, quick=settings.quick), settings.out / "starts"
    if settings.report is None:
        run_all(runs, starts, settings.processes)
    else:
        methods = dict.fromkeys(run.method for run in runs)
        found = [outcome([run for run in runs if run.method == method], starts) for method in methods]
        report(found, settings.report, command)
