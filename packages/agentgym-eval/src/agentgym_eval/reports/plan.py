"""The plan of a comparison in words: how many tasks and samples show a difference in an environment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym_envs import Task, read_episodes

from agentgym_eval.metrics.intervals import FEWEST
from agentgym_eval.metrics.planning import Plan
from agentgym_eval.metrics.summary import by_task, cluster_of

_SAMPLES = (1, 2, 4, 8, 16)


def planned(tasks: Sequence[Task], difference: float, folder: Path) -> Iterator[str]:
    """Lines on how many of the tasks, at how many samples each, show a difference in success.

    Args:
        tasks: Those there are to choose from.
        difference: Above 0; 0.05 is five points.
        folder: Where an earlier run may lie that tells how hard the tasks are.
    """
    plan, known = _plan(folder)
    clusters = {task.cluster or task.id for task in tasks}
    grouped = FEWEST <= len(clusters) < len(tasks)
    of = f" of {len(clusters):,} clusters" if grouped else ""
    yield (
        f"To show a difference of {100 * difference:.1f} points in success between two policies (p < 0.05 in four of "
        f"five comparisons) with the {len(tasks):,} {tasks[0].split} tasks{of} of {tasks[0].env}:"
    )
    for samples in _SAMPLES:
        needed = math.ceil(min(plan.tasks(difference, samples, clusters=len(clusters) if grouped else 0), 10**9))
        enough = f"{needed:,} tasks" if needed <= len(tasks) else "more tasks than there are"
        yield f"  {samples:>2} samples of each: {enough}"
    if known:
        yield (
            f"Measured in {folder}: success {plan.success:.0%}, of whose variance {plan.between:.0%} lies between tasks"
            f"{f', intra-class correlation {plan.icc:.2f}' if grouped else ''}. "
            f"Assumed: rates of success that correlate by {plan.shared:g} between the policies."
        )
    else:
        yield (
            f"Assumed: success near {plan.success:.0%}, {plan.between:.0%} of its variance between tasks, and rates "
            f"that correlate by {plan.shared:g} between the policies. With --out FOLDER of an earlier run of some "
            "tasks and two samples of each, that is measured."
        )


def _plan(folder: Path) -> tuple[Plan, bool]:
    file = folder / "episodes.jsonl"
    tried = list(by_task(read_episodes(file)).values()) if file.exists() else []
    if len(tried) < 2:
        return Plan(), False
    attempts = [[bool(episode.success) for episode in episodes] for episodes in tried]
    return Plan.measured(attempts, [cluster_of(episodes[0]) for episodes in tried]), True
