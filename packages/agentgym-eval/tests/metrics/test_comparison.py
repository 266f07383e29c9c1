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


def played(*rates: float, attempts: int = 4, turns: int = 2) -> list[Episode]:
    """A task for each rate."""
    return [
        episode(task, sample, bool(sample < rate * attempts), turns)
        for task, rate in enumerate(rates)
        for sample in range(attempts)
    ]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_tasks_are_paired_and_what_only_one_played_is_left_out() -> None:
    first = [*played(0.5, 0.25, 1.0, 0.5), episode(7, 0, success=True)]
    second = [*played(0.75, 0.25, 0.5, turns=3), *(episode(3, s, None) for s in range(4))]
    found = compare(first, second[::-1], names=("a", "b"))
    assert (found.first, found.second) == ("a", "b")
    assert (found.tasks, found.only_first, found.only_second, found.better, found.worse) == (3, 2, 0, 1, 1)
    assert found.success.first == pytest.approx((0.5 + 0.25 + 1.0) / 3)
    assert found.success.second == pytest.approx(0.5)
    assert found.success.difference.mean == pytest.approx((0.25 + 0 - 0.5) / 3)
    assert found.turns.difference.mean == 1.0
    assert found.turns.p == 2 / 8


def test_the_other_way_round_it_is_the_same_difference() -> None:
    first, second = played(0.5, 0.25, 1.0, 0.5, 0.0), played(0.75, 0.25, 0.5, 1.0, 1.0)
    there, back = compare(first, second), compare(second, first)
    assert there.success.difference.mean == -back.success.difference.mean
    assert (there.better, there.worse) == (back.worse, back.better)
    assert there.success.p == back.success.p


def test_what_all_tasks_have_in_common_does_not_blur_a_difference() -> None:
    """Tasks that differ widely, and a second player who is a little better at each: paired, it shows at once."""
    rates = np.linspace(0.1, 0.8, 20)
    found = compare(played(*rates, attempts=20), played(*(rates + 0.1), attempts=20))
    assert found.success.difference.low > 0.05
    assert found.success.p == 1 / 10_001


def test_without_a_common_task_nothing_is_said() -> None:
    found = compare(played(0.5), [replace(e, task_id="other") for e in played(0.5)])
    assert (found.tasks, found.only_first, found.only_second) == (0, 1, 1)
    assert math.isnan(found.success.p)
    assert found.to_dict()["success"]["difference"]["mean"] is None


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_few_tasks_are_tested_exactly(gains: list[int]) -> None:
    sums = [abs(sum(s * g for s, g in zip(signs, gains, strict=True))) for signs in product((-1, 1), repeat=len(gains))]
    assert sign_flip([gain / 4 for gain in gains], rng()) == pytest.approx(np.mean(np.array(sums) >= abs(sum(gains))))


def test_many_tasks_are_tested_as_exactly_as_draws_allow() -> None:
    gains = [0.25] * 9 + [-0.25] * 4  # 13 tasks: 2 P(at least 9 of 13)
    exact = 2 * sum(math.comb(13, k) for k in range(9, 14)) / 2**13
    assert sign_flip(gains, rng()) == pytest.approx(exact, abs=0.015)
    assert sign_flip([*gains, *[0.0] * 40], rng()) == sign_flip(gains, rng())


def test_players_who_are_alike_are_told_apart_in_5_of_100_evaluations() -> None:
    draws = np.random.default_rng(2)
    ps = [
        sign_flip(((draws.binomial(4, rates) - draws.binomial(4, rates)) / 4).tolist(), draws)
        for rates in draws.beta(1, 1, size=(300, 12))
    ]
    assert 0.02 <= np.mean(np.array(ps) <= 0.05) <= 0.08


def test_the_interval_holds_0_where_the_test_does_not_tell_the_two_apart() -> None:
    """Five of 50 tasks are better and none is worse: p is 2 / 2^5."""
    first, second = played(*[0.0] * 50), played(*[1.0] * 5, *[0.0] * 45)
    found = compare(first, second).success
    assert found.p == 1 / 16
    assert found.difference.low == 0.0
    assert found.difference.mean == pytest.approx(0.1)
    better = compare(first, played(*[1.0] * 6, *[0.0] * 44)).success
    assert better.p == 1 / 32
    assert better.difference.low > 0


def test_clusters_change_sides_as_a_whole() -> None:
    """In four of ten clusters of four tasks each task is better."""
    rates = [0.75] * 16 + [0.25] * 24
    first = [replace(e, cluster=f"k{int(e.task_id[2:]) // 4}") for e in played(*[0.25] * 40)]
    second = [replace(e, cluster=f"k{int(e.task_id[2:]) // 4}") for e in played(*rates)]
    found, apart = compare(first, second).success, compare(played(*[0.25] * 40), played(*rates)).success
    assert found.p == 1 / 8
    assert found.difference.clusters == 10
    assert found.difference.low <= 0.0 < apart.difference.low
    assert found.detectable > apart.detectable


def test_the_same_ids_in_two_environments_are_not_paired() -> None:
    found = compare(played(0.5), [replace(e, env="v") for e in played(0.5)])
    assert (found.tasks, found.only_first, found.only_second) == (0, 1, 1)


def test_p_values_that_are_shown_together_are_adjusted() -> None:
    rates = np.linspace(0.1, 0.8, 20)
    first, others = played(*rates), [played(*(rates + gain)) for gain in (0.0, 0.1, 0.2)]
    each = [compare(first, other) for other in others]
    shown = adjusted(each)
    expected = holm({str(i): at.success.p for i, at in enumerate(each)})
    assert [at.success.p_adjusted for at in shown] == list(expected.values())
    assert [at.success.p for at in shown] == [at.success.p for at in each]
    assert adjusted(each[1:2]) == each[1:2]
