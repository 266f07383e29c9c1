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
"""Of the normal distribution, at 0.9."""


def textbook(success: Mapping[str, Sequence[float | None]], fewest: int, gain: float) -> bool:
    """The slow twin: least squares of each task, window by window, by numpy."""
    longest = max(map(len, success.values()), default=0)
    for width in range(fewest, longest + 1):
        known = [series[-width:] for series in success.values()]
        complete = [list(map(float, series)) for series in known if None not in series]
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
def test_it_is_what_least_squares_of_each_task_say(
    success: dict[str, list[float | None]], fewest: int, gain: float
) -> None:
    assert has_plateaued(success, fewest=fewest, gain=gain) == textbook(success, fewest, gain)


def series(points: Sequence[float], tasks: int = 100, samples: int = 4, seed: int = 0) -> dict[str, list[float | None]]:
    """Noisy evaluations of tasks of all difficulties: from one to the next success of each rises as `points` say."""
    rng = np.random.default_rng(seed)
    first = rng.beta(0.6, 1.4, tasks)
    rows = [rng.binomial(samples, np.clip(first + point, 0, 1)) / samples for point in points]
    return {f"dev/{task}": [float(row[task]) for row in rows] for task in range(tasks)}


def left(points: Sequence[float], runs: int = 30, **how: int) -> float:
    """The share of runs in which any of the evaluations shows a plateau."""
    return float(
        np.mean(
            [
                any(
                    has_plateaued({task: known[:count] for task, known in whole.items()}, fewest=3, gain=0.01)
                    for count in range(1, len(points) + 1)
                )
                for whole in (series(points, seed=seed, **how) for seed in range(runs))
            ]
        )
    )


def test_noise_alone_ends_no_stage_that_improves_and_does_not_keep_one_that_does_not() -> None:
    """By the rule before, two evaluations in a row without a new best mean, 40% of the first left by the 5th."""
    assert left([0.02 * number for number in range(5)]) <= 0.05
    assert left([0.0] * 10) >= 0.9
    assert left([0.0] * 20, tasks=48, samples=1) >= 0.9
    assert left([0.0] * 4, tasks=48, samples=1) == 0


def test_what_makes_tasks_easy_or_hard_does_not_count() -> None:
    apart = {f"dev/{task}": [float(task % 2)] * 4 for task in range(100)}
    alike = {f"dev/{task}": [0.5] * 4 for task in range(100)}
    assert has_plateaued(apart, fewest=3, gain=0.01)
    assert has_plateaued(alike, fewest=3, gain=0.01)


def test_a_few_tasks_that_stay_the_same_are_no_evidence_yet() -> None:
    assert not has_plateaued({f"dev/{task}": [0.0] * 3 for task in range(4)}, fewest=3, gain=0.01)
    assert not has_plateaued({f"dev/{task}": [0.0] * 2 for task in range(1000)}, fewest=3, gain=0.01)
    assert not has_plateaued({}, fewest=3, gain=0.01)
