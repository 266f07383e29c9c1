"""Tests of planning how many tasks an evaluation needs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agentgym_envs import Task
from agentgym_eval.metrics.comparison import sign_flip
from agentgym_eval.metrics.planning import Plan
from agentgym_eval.reports.plan import planned

pytestmark = pytest.mark.quick


def test_more_samples_need_fewer_tasks_down_to_a_limit() -> None:
    plan = Plan()
    needed = [plan.tasks(0.05, samples) for samples in (1, 2, 4, 8, 10**6)]
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] == pytest.approx(plan.tasks(0.05, 1) / 3, rel=0.01)
    assert plan.tasks(0.1, 1) == pytest.approx(needed[0] / 4, rel=0.02)


def test_sample_size_matches_the_textbook_for_binary_outcomes() -> None:
    """Shares near 0.5 that differ by 0.1 need 385 to 392 per group for 80% power, depending on the textbook."""
    assert Plan(between=0.0).tasks(0.1, 1) == pytest.approx(387, abs=1)


def test_few_clusters_need_more_tasks_or_are_never_enough() -> None:
    unclustered = Plan().tasks(0.05, 4)
    assert Plan(icc=0.1).tasks(0.05, 4) == unclustered
    assert Plan(icc=0.1).tasks(0.05, 4, clusters=10_000) == unclustered
    assert Plan(icc=0.1).tasks(0.05, 4, clusters=500) > unclustered
    assert Plan(icc=0.5).tasks(0.05, 4, clusters=30) == math.inf


def test_planned_tasks_give_80_percent_power() -> None:
    rng, plan = np.random.default_rng(0), Plan(success=0.4, between=0.3, shared=1.0)
    count = math.ceil(plan.tasks(0.08, 4))
    concentration = 1 / 0.3 - 1  # of the Beta distribution with 30% of the variance between tasks
    significant = 0
    for _ in range(200):
        rates = rng.beta(0.36 * concentration, 0.64 * concentration, size=count)
        better = np.clip(rates + 0.08, 0, 1)
        better += 0.08 - (better - rates).mean()  # corrects for the clipping
        gains = rng.binomial(4, np.clip(better, 0, 1)) - rng.binomial(4, rates)
        significant += sign_flip((gains / 4).tolist(), rng) < 0.05
    assert 0.7 < significant / 200 < 0.9


@pytest.mark.parametrize(("success", "difference"), [(0.0, 0.05), (1.0, 0.05), (0.025, 0.2)])
def test_plans_from_extreme_rates_have_about_80_percent_power(success: float, difference: float) -> None:
    """With one sample per task, every task like any other, and so few that differ that p takes few values."""
    rng, plan = np.random.default_rng(1), Plan(success=success, between=0.0, shared=0.0)
    count = math.ceil(plan.tasks(difference, 1))
    second = success + difference if success < 0.5 else success - difference
    first, other = (rng.random((400, count)) < rate for rate in (success, second))
    significant = [sign_flip(gains.tolist(), rng) < 0.05 for gains in other.astype(float) - first]
    assert 0.65 < np.mean(significant) < 0.9


def test_a_plan_has_enough_tasks_for_the_test() -> None:
    assert Plan(success=0.0).tasks(0.9, 16) == Plan().tasks(0.9, 16) == 6


def test_plan_parameters_are_measured_from_a_run() -> None:
    rng = np.random.default_rng(1)
    rates = np.repeat(rng.beta(1, 1, 60), 10)
    attempts = [list(map(bool, rng.random(4) < rate)) for rate in rates]
    plan = Plan.measured(attempts, np.repeat(np.arange(60), 10).tolist())
    assert plan.success == pytest.approx(rates.mean(), abs=0.05)
    assert plan.between == pytest.approx(rates.var() / (rates.mean() * (1 - rates.mean())), abs=0.08)
    assert plan.icc > 0.5
    assert Plan.measured([[True], [False]], ["a", "b"]).between == Plan().between
    assert Plan.measured([[True, True], [True, True]], ["a", "a"]).success == 1
    assert Plan.measured([[True, True], [True, False]], ["a", "b"]).icc is None


def test_a_plan_with_clusters_states_the_intra_class_correlation_that_it_assumes(tmp_path: Path) -> None:
    tasks = [Task(f"w/test/{i}", "w-v0", "test", "easy", 1, cluster=f"c{i % 100}") for i in range(5000)]
    lines = list(planned(tasks, 0.05, tmp_path))
    assert lines[1] == "    1 sample per task: 1,174 tasks or more tasks than available"
    assert lines[3] == f"   4 samples per task: 588 to {math.ceil(Plan(icc=0.1).tasks(0.05, 4, clusters=100)):,} tasks"
    assert "an intra-class correlation of gains within clusters of 0 to 0.1" in lines[-1]
    alone = list(planned([replace(task, cluster="") for task in tasks], 0.05, tmp_path))
    assert alone[3] == "   4 samples per task: 588 tasks"
    assert "intra-class" not in alone[-1]
