from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from agentgym_trainer.curriculum.plateau import has_plateaued
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

QUANTILE = 1.2815515655446004
"""The 0.9 quantile of the normal distribution."""


def slow_has_plateaued(success: Mapping[str, Sequence[float | None]], fewest: int, gain: float) -> bool:
    """Fit each task's slope by least squares in NumPy, window by window."""
    longest = max(map(len, success.values()), default=0)
    for width in range(fewest, longest + 1):
        windows = [series[-width:] for series in success.values()]
        complete = [list(map(float, series)) for series in windows if None not in series]
        if complete:
            slopes = [np.polyfit(np.arange(width), series, 1)[0] for series in complete]
            slopes += [1 / (width - 1), -1 / (width - 1)]
            margin = QUANTILE * np.std(slopes, ddof=1) / math.sqrt(len(slopes))
            if margin <= gain and np.mean(slopes) + margin < gain:
                return True
    return False


rates = st.none() | st.sampled_from((0.0, 0.25, 0.5, 1.0))
tables = st.integers(0, 9).flatmap(
    lambda width: st.dictionaries(st.text(max_size=2), st.lists(rates, min_size=width, max_size=width), max_size=12)
)


@given(tables, st.integers(2, 4), st.floats(0.003, 0.9))
def test_plateaus_match_least_squares_per_task(
    success: dict[str, list[float | None]], fewest: int, gain: float
) -> None:
    assert has_plateaued(success, fewest=fewest, gain=gain) == slow_has_plateaued(success, fewest, gain)


def series(points: Sequence[float], tasks: int = 100, samples: int = 4, seed: int = 0) -> dict[str, list[float | None]]:
    """Simulate evaluations of tasks of mixed difficulty, whose success probabilities are raised by each of `points`."""
    rng = np.random.default_rng(seed)
    first = rng.beta(0.6, 1.4, tasks)
    rows = [rng.binomial(samples, np.clip(first + point, 0, 1)) / samples for point in points]
    return {f"dev/{task}": [float(row[task]) for row in rows] for task in range(tasks)}


def plateau_rate(points: Sequence[float], runs: int = 30, **options: int) -> float:
    """Return the share of runs that have a plateau at any evaluation."""
    return float(
        np.mean(
            [
                any(
                    has_plateaued({task: means[:count] for task, means in success.items()}, fewest=3, gain=0.01)
                    for count in range(1, len(points) + 1)
                )
                for success in (series(points, seed=seed, **options) for seed in range(runs))
            ]
        )
    )


def test_plateaus_are_detected_despite_noise() -> None:
    """The former rule (two evaluations without a new best mean) ended 40% of the first runs within five evaluations."""
    assert plateau_rate([0.02 * number for number in range(5)]) <= 0.05
    assert plateau_rate([0.0] * 10) >= 0.9
    assert plateau_rate([0.0] * 20, tasks=48, samples=1) >= 0.9
    assert plateau_rate([0.0] * 4, tasks=48, samples=1) == 0


def test_differences_in_task_difficulty_do_not_matter() -> None:
    mixed = {f"dev/{task}": [float(task % 2)] * 4 for task in range(100)}
    equal = {f"dev/{task}": [0.5] * 4 for task in range(100)}
    assert has_plateaued(mixed, fewest=3, gain=0.01)
    assert has_plateaued(equal, fewest=3, gain=0.01)


def test_few_constant_tasks_are_not_enough_evidence() -> None:
    assert not has_plateaued({f"dev/{task}": [0.0] * 3 for task in range(4)}, fewest=3, gain=0.01)
    assert not has_plateaued({f"dev/{task}": [0.0] * 2 for task in range(1000)}, fewest=3, gain=0.01)
    assert not has_plateaued({}, fewest=3, gain=0.01)
