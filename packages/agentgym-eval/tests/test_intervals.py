from __future__ import annotations

import math

import numpy as np
import pytest
from agentgym_eval import intervals
from agentgym_eval.intervals import bootstrap


def test_holds_the_true_mean_in_about_95_of_100_simulated_evaluations() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    sets, tasks, samples = 600, 100, 4
    for _ in range(sets):
        rates = rng.beta(1.0, 1.0, size=tasks)  # tasks differ in difficulty; the true mean over tasks is one half
        successes = rng.binomial(samples, rates) / samples
        interval = bootstrap(successes.tolist(), rng, resamples=800)
        covered += interval.low <= 0.5 <= interval.high
    assert 0.93 <= covered / sets <= 0.97


def test_agrees_with_the_normal_interval_where_that_holds() -> None:
    values = np.random.default_rng(0).normal(3.0, 1.0, size=400)
    interval = bootstrap(values.tolist(), np.random.default_rng(1))
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)


def test_the_same_generator_gives_the_same_interval_however_it_is_cut_into_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(3).random(50).tolist()
    whole = bootstrap(values, np.random.default_rng(5))
    monkeypatch.setattr(intervals, "_BLOCK", 120)
    assert bootstrap(values, np.random.default_rng(5)) == whole


def test_no_task_has_no_mean_and_one_task_no_interval() -> None:
    assert math.isnan(bootstrap([], np.random.default_rng(0)).mean)
    one = bootstrap([0.25], np.random.default_rng(0))
    assert (one.mean, one.tasks) == (0.25, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
