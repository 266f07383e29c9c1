"""Text of a power analysis: how many tasks and samples detect a difference in an environment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from agentgym_envs import Task

from agentgym_eval.metrics.intervals import FEWEST
from agentgym_eval.metrics.planning import Plan
from agentgym_eval.metrics.summary import by_task, cluster_of
from agentgym_eval.storage.attempts import Attempts, read_attempts
from agentgym_eval.util.errors import UsageError

_SAMPLES = (1, 2, 4, 8, 16)
_ICCS = (0.0, 0.1)
"""Intra-class correlations of gains that are assumed if it is unknown."""


def planned(tasks: Sequence[Task], difference: float, folder: Path) -> Iterator[str]:
    """Yield lines on how many of the tasks, at how many samples each, detect a difference in success.

    Args:
        tasks: The available tasks.
        difference: Difference in success, above 0; 0.05 is five points.
        folder: Folder of an earlier run, if one exists, from which the difficulty of the tasks is estimated.

    Raises:
        UsageError: if the earlier run can't be read.
    """
    file = folder / "episodes.jsonl"
    try:
        attempts = read_attempts(file) if file.exists() else Attempts([], [])
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read as episodes: {error}; name another --out.") from error
    yield from attempts.left_out
    plan, known = _plan(attempts)
    clusters = {task.cluster or task.id for task in tasks}
    grouped = FEWEST <= len(clusters) < len(tasks)
    of = f" in {len(clusters):,} clusters" if grouped else ""
    yield (
        f"To detect a difference of {100 * difference:.1f} points in success between two policies (p < 0.05, power "
        f"0.8) with the {len(tasks):,} {tasks[0].split} tasks{of} of {tasks[0].env}:"
    )
    iccs = (plan.icc,) if plan.icc is not None or not grouped else _ICCS
    for samples in _SAMPLES:
        needed = [
            replace(plan, icc=icc).tasks(difference, samples, clusters=len(clusters) if grouped else 0) for icc in iccs
        ]
        each = "1 sample" if samples == 1 else f"{samples} samples"
        yield f"{f'{each} per task':>21}: {_counts(needed, len(tasks))}"
    measured = f"success {plan.success:.0%}, {plan.between:.0%} of its variance between tasks"
    assumed = f"a correlation of {plan.shared:g} between the policies' success rates"
    if len(iccs) > 1:
        assumed += f", and an intra-class correlation of gains within clusters of {iccs[0]:g} to {iccs[1]:g}"
    elif grouped:
        measured += f", intra-class correlation {plan.icc:.2f}"
    if known:
        yield f"Measured in {folder}: {measured}. Assumed: {assumed}."
    else:
        yield (
            f"Assumed: {measured}; {assumed}. To measure all but the correlation between the policies, name with "
            "--out the folder of an earlier run with two samples of each of some tasks"
            f"{', several of them in each cluster' if grouped else ''}."
        )


def _counts(needed: Sequence[float], available: int) -> str:
    """Return numbers of tasks as a range."""
    counts = dict.fromkeys(math.ceil(count) if count <= available else math.inf for count in needed)
    enough = [f"{count:,}" for count in counts if count <= available]
    tasks = [f"{' to '.join(enough)} tasks"] if enough else []
    return " or ".join([*tasks, "more tasks than available"] if math.inf in counts else tasks)


def _plan(earlier: Attempts) -> tuple[Plan, bool]:
    tried = list(by_task(earlier.episodes).values())
    if len(tried) < 2:
        return Plan(), False
    attempts = [[bool(episode.success) for episode in episodes] for episodes in tried]
    return Plan.measured(attempts, [cluster_of(episodes[0]) for episodes in tried]), True
