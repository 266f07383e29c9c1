"""Tests of paired comparisons of two policies and their significance tests."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from agentgym_envs import Episode, Reply, Turn
from agentgym_eval.metrics.comparison import adjusted, compare, holm, sign_flip
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def episode(task: int, sample: int, success: bool | None, turns: int = 2) -> Episode:
    turn = Turn("see", Reply("do"), "do", valid=True, reward=0.0, state_key="s")
    return Episode(
        env="w", task_id=f"t/{task}", split="test", category="a", difficulty=0, policy="p", sample=sample,
        instructions="", turns=(turn,) * turns, final_observation="",
        stop="failed" if success is None else "terminated",
        score=None if success is None else float(success), success=success,
    )  # fmt: skip


def episodes_with_rates(*rates: float, attempts: int = 4, turns: int = 2) -> list[Episode]:
    """Return the attempts at one task for each success rate."""
    return [
        episode(task, sample, bool(sample < rate * attempts), turns)
        for task, rate in enumerate(rates)
        for sample in range(attempts)
    ]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_only_tasks_of_both_runs_are_compared() -> None:
    first = [*episodes_with_rates(0.5, 0.25, 1.0, 0.5), episode(7, 0, success=True)]
    second = [*episodes_with_rates(0.75, 0.25, 0.5, turns=3), *(episode(3, s, None) for s in range(4))]
    comparison = compare(first, second[::-1], names=("a", "b"))
    assert (comparison.first, comparison.second) == ("a", "b")
    assert (comparison.tasks, comparison.only_first, comparison.only_second, comparison.better, comparison.worse) == (
        3,
        2,
        0,
        1,
        1,
    )
    assert comparison.success.first == pytest.approx((0.5 + 0.25 + 1.0) / 3)
    assert comparison.success.second == pytest.approx(0.5)
    assert comparison.success.difference.mean == pytest.approx((0.25 + 0 - 0.5) / 3)
    assert comparison.turns.difference.mean == 1.0
    assert comparison.turns.p == 2 / 8


def test_comparison_is_antisymmetric() -> None:
    first, second = episodes_with_rates(0.5, 0.25, 1.0, 0.5, 0.0), episodes_with_rates(0.75, 0.25, 0.5, 1.0, 1.0)
    forward, backward = compare(first, second), compare(second, first)
    assert forward.success.difference.mean == -backward.success.difference.mean
    assert (forward.better, forward.worse) == (backward.worse, backward.better)
    assert forward.success.p == backward.success.p


def test_pairing_removes_the_variance_between_tasks() -> None:
    """Success rates vary widely between tasks; the second policy is slightly better at each."""
    rates = np.linspace(0.1, 0.8, 20)
    comparison = compare(episodes_with_rates(*rates, attempts=20), episodes_with_rates(*(rates + 0.1), attempts=20))
    assert comparison.success.difference.low > 0.05
    assert comparison.success.p == 1 / 10_001


def test_comparison_without_common_tasks_is_nan() -> None:
    comparison = compare(episodes_with_rates(0.5), [replace(e, task_id="other") for e in episodes_with_rates(0.5)])
    assert (comparison.tasks, comparison.only_first, comparison.only_second) == (0, 1, 1)
    assert math.isnan(comparison.success.p)
    assert comparison.to_dict()["success"]["difference"]["mean"] is None


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_sign_flip_test_is_exact_for_few_tasks(gains: list[int]) -> None:
    sums = [abs(sum(s * g for s, g in zip(signs, gains, strict=True))) for signs in product((-1, 1), repeat=len(gains))]
    assert sign_flip([gain / 4 for gain in gains], rng()) == pytest.approx(np.mean(np.array(sums) >= abs(sum(gains))))


def test_sign_flip_test_of_many_tasks_is_close_to_exact() -> None:
    gains = [0.25] * 9 + [-0.25] * 4  # two-sided: 2 P(at least 9 of 13)
    exact = 2 * sum(math.comb(13, k) for k in range(9, 14)) / 2**13
    assert sign_flip(gains, rng()) == pytest.approx(exact, abs=0.015)
    assert sign_flip([*gains, *[0.0] * 40], rng()) == sign_flip(gains, rng())


def test_false_positive_rate_of_equal_policies_is_5_percent() -> None:
    draws = np.random.default_rng(2)
    p_values = [
        sign_flip(((draws.binomial(4, rates) - draws.binomial(4, rates)) / 4).tolist(), draws)
        for rates in draws.beta(1, 1, size=(300, 12))
    ]
    assert 0.02 <= np.mean(np.array(p_values) <= 0.05) <= 0.08


def test_interval_contains_0_if_the_difference_is_not_significant() -> None:
    """Five of 50 tasks improve and none gets worse, so p is 2 / 2^5."""
    first, second = episodes_with_rates(*[0.0] * 50), episodes_with_rates(*[1.0] * 5, *[0.0] * 45)
    comparison = compare(first, second).success
    assert comparison.p == 1 / 16
    assert comparison.difference.low == 0.0
    assert comparison.difference.mean == pytest.approx(0.1)
    better = compare(first, episodes_with_rates(*[1.0] * 6, *[0.0] * 44)).success
    assert better.p == 1 / 32
    assert better.difference.low > 0


def test_sign_flip_test_flips_whole_clusters() -> None:
    """Every task of four of the ten clusters improves."""
    rates = [0.75] * 16 + [0.25] * 24
    first = [replace(e, cluster=f"k{int(e.task_id[2:]) // 4}") for e in episodes_with_rates(*[0.25] * 40)]
    second = [replace(e, cluster=f"k{int(e.task_id[2:]) // 4}") for e in episodes_with_rates(*rates)]
    clustered, unclustered = (
        compare(first, second).success,
        compare(episodes_with_rates(*[0.25] * 40), episodes_with_rates(*rates)).success,
    )
    assert clustered.p == 1 / 8
    assert clustered.difference.clusters == 10
    assert clustered.difference.low <= 0.0 < unclustered.difference.low
    assert clustered.detectable > unclustered.detectable


def test_same_task_ids_in_two_environments_are_not_paired() -> None:
    comparison = compare(episodes_with_rates(0.5), [replace(e, env="v") for e in episodes_with_rates(0.5)])
    assert (comparison.tasks, comparison.only_first, comparison.only_second) == (0, 1, 1)


def test_p_values_of_several_comparisons_are_adjusted() -> None:
    rates = np.linspace(0.1, 0.8, 20)
    first, others = episodes_with_rates(*rates), [episodes_with_rates(*(rates + gain)) for gain in (0.0, 0.1, 0.2)]
    comparisons = [compare(first, other) for other in others]
    adjusted_comparisons = adjusted(comparisons)
    expected = holm({str(i): comparison.success.p for i, comparison in enumerate(comparisons)})
    assert [comparison.success.p_adjusted for comparison in adjusted_comparisons] == list(expected.values())
    assert [comparison.success.p for comparison in adjusted_comparisons] == [
        comparison.success.p for comparison in comparisons
    ]
    assert adjusted(comparisons[1:2]) == comparisons[1:2]
