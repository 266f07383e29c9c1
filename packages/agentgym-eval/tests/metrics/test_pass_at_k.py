"""Tests of the pass@k and pass^k estimators."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from agentgym_eval.metrics.pass_at_k import pass_at_k, pass_hat_k
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def brute_force(attempts: list[bool], k: int, succeeds: Callable[[tuple[bool, ...]], bool]) -> float:
    subsets = list(combinations(attempts, k))
    return sum(succeeds(subset) for subset in subsets) / len(subsets)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_estimates_equal_the_share_of_successful_subsets(attempts: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(attempts)))
    for estimate, succeeds in ((pass_at_k, any), (pass_hat_k, all)):
        assert estimate(len(attempts), sum(attempts), k) == pytest.approx(brute_force(attempts, k, succeeds), abs=1e-12)


def test_pass_at_k_is_exact_for_large_numbers_of_attempts() -> None:
    assert pass_at_k(10_000, 1, 1) == pytest.approx(1e-4, rel=1e-9)
    assert pass_at_k(200, 0, 100) == 0.0
    assert pass_at_k(200, 101, 100) == 1.0


@pytest.mark.parametrize(("attempts", "successes", "k"), [(2, 1, 3), (2, 3, 1), (2, 1, 0), (0, 0, 1), (2, -1, 1)])
def test_undefined_arguments_are_rejected(attempts: int, successes: int, k: int) -> None:
    for estimate, name in ((pass_at_k, "pass@"), (pass_hat_k, r"pass\^")):
        with pytest.raises(ValueError, match=f"{name}{k} is not defined"):
            estimate(attempts, successes, k)
