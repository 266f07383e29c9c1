"""Text of a power analysis: how many tasks and samples detect a difference in an environment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym_envs import Task

from agentgym_eval.metrics.intervals import FEWEST
from agentgym_eval.metrics.planning import Plan
from agentgym_eval.metrics.summary import by_task, cluster_of
from agentgym_eval.storage.attempts import Attempts, read_attempts
from agentgym_eval.util.errors import UsageError

_SAMPLES = (1, 2, 4, 8, 16)


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
    for samples in _SAMPLES:
        needed = math.ceil(min(plan.tasks(difference, samples, clusters=len(clusters) if grouped else 0), 10**9))
        needed_text = f"{needed:,} tasks" if needed <= len(tasks) else "more tasks than available"
        yield f"  {samples:>2} samples per task: {needed_text}"
    if known:
        yield (
            f"Measured in {folder}: success {plan.success:.0%}, {plan.between:.0%} of its variance between tasks"
            f"{f', intra-class correlation {plan.icc:.2f}' if grouped else ''}. "
            f"Assumed: a correlation of {plan.shared:g} between the policies' success rates."
        )
    else:
        yield (
            f"Assumed: success near {plan.success:.0%}, {plan.between:.0%} of its variance between tasks, and a "
            f"correlation of {plan.shared:g} between the policies' success rates. To measure the first two, name with "
            "--out the folder of an earlier run with two samples of each of some tasks."
        )


def _plan(earlier: Attempts) -> tuple[Plan, bool]:
    tried = list(by_task(earlier.episodes).values())
    if len(tried) < 2:
        return Plan(), False
    attempts = [[bool(episode.success) for episode in episodes] for episodes in tried]
    return Plan.measured(attempts, [cluster_of(episodes[0]) for episodes in tried]), True
