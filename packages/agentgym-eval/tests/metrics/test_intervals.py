"""Tests of confidence intervals: bootstrap, shares, clusters and gains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from agentgym_eval.metrics import intervals
from agentgym_eval.metrics.comparison import sign_flip
from agentgym_eval.metrics.intervals import bootstrap, cluster_sums, detectable, gain, icc, share
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

SHARES = st.lists(st.integers(0, 24).map(lambda count: count / 24), min_size=2, max_size=40)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("skewed", [True, False])
def test_bootstrap_agrees_with_the_normal_interval_for_normal_data(skewed: bool) -> None:
    values = rng().normal(3.0, 1.0, size=400)
    interval = bootstrap(values.tolist(), None, rng(1), skewed=skewed)
    half_width = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half_width, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half_width, abs=0.01)


def test_bootstrap_interval_is_wider_toward_the_long_tail() -> None:
    values = rng().lognormal(1.0, 1.0, size=40).tolist()
    skewed, symmetric = bootstrap(values, None, rng(1)), bootstrap(values, None, rng(1), skewed=False)
    assert symmetric.low < skewed.low < skewed.mean < symmetric.high < skewed.high


def test_small_samples_are_widened_like_a_t_interval() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    t, error = 2.7764, math.sqrt(2.5 / 5)  # the quantile for four degrees of freedom
    interval = bootstrap(values, None, rng(2), skewed=False, resamples=50_000)
    plain = np.quantile(intervals._resampled(np.array(values), None, rng(2), 50_000), (0.025, 0.975))
    assert interval.high - interval.low == pytest.approx(2 * t * error, rel=0.1)
    assert plain[1] - plain[0] < 0.7 * (interval.high - interval.low)


def test_bootstrap_does_not_depend_on_the_block_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = rng(3).random(50).tolist()
    expected = bootstrap(values, None, rng(5))
    monkeypatch.setattr(intervals, "_BLOCK", 120)
    assert bootstrap(values, None, rng(5)) == expected


def test_binary_outcomes_have_the_wilson_interval() -> None:
    """15 of 500 has the published interval 0.0183 to 0.0489."""
    interval = share([1.0] * 15 + [0.0] * 485)
    assert (interval.low, interval.high) == (pytest.approx(0.0183, abs=5e-5), pytest.approx(0.0489, abs=5e-5))


def test_identical_attempts_at_a_task_count_as_one() -> None:
    rates = rng().binomial(8, 0.4, size=200) / 8
    identical_attempts = [1.0] * 80 + [0.0] * 120
    independent, identical = share(rates.tolist()), share(identical_attempts)
    width = (identical.high - identical.low) / (independent.high - independent.low)
    assert width == pytest.approx(math.sqrt(8), rel=0.15)


@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_share_interval_of_equal_tasks_contains_their_mean(value: float, clusters: int) -> None:
    for tasks in range(2, 201):
        found = share([value] * tasks, [task // clusters for task in range(tasks)])
        assert 0 <= found.low <= found.mean <= found.high <= 1, tasks


@settings(max_examples=50)
@given(SHARES)
def test_share_intervals_are_bounded_and_symmetric(values: list[float]) -> None:
    interval, mirrored = share(values), share([1 - value for value in values])
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    assert interval.low < interval.high
    assert (interval.low, interval.high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low), abs=1e-6)


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1135), (1.0, 0.8865, 1.0), (0.5, 0.476, 0.524)])
def test_share_interval_of_identical_tasks_has_positive_width(value: float, low: float, high: float) -> None:
    interval = share([value] * 30)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


@pytest.mark.parametrize("estimate", [share, lambda values: bootstrap(values, None, rng())])
def test_no_tasks_have_no_mean_and_one_task_no_interval(estimate: object) -> None:
    assert callable(estimate)
    assert math.isnan(estimate([]).mean)
    single = estimate([0.25])
    assert (single.mean, single.tasks) == (0.25, 1)
    assert math.isnan(single.low)
    assert math.isnan(single.high)
    assert single.to_dict() == {"mean": 0.25, "low": None, "high": None, "tasks": 1}


def test_share_reports_bootstrap_percentiles_if_given_a_generator() -> None:
    values = [0.0, 0.25, 1.0, 0.5] * 25
    with_bootstrap, without = share(values, rng=rng()), share(values)
    assert (with_bootstrap.low, with_bootstrap.high) == (without.low, without.high)
    means = np.random.default_rng(1).choice(values, (20_000, 100)).mean(axis=1)
    assert with_bootstrap.to_dict()["bootstrap"] == pytest.approx(np.quantile(means, (0.025, 0.975)).tolist(), abs=0.01)
    assert "bootstrap" not in without.to_dict()


def test_bootstrap_interval_of_identical_values_has_zero_width() -> None:
    assert bootstrap([3.0] * 5, None, rng()).to_dict() == {"mean": 3.0, "low": 3.0, "high": 3.0, "tasks": 5}


# Shares near 0 and 1.


@pytest.mark.parametrize(("tasks", "attempts"), [(30, 8), (50, 4), (100, 2)])
def test_one_more_failure_changes_the_lower_bound_only_slightly(tasks: int, attempts: int) -> None:
    """Failures are added one by one: task by task, round-robin over tasks, and in random orders."""
    orders = [np.repeat(np.arange(tasks), attempts), np.tile(np.arange(tasks), attempts)]
    orders += [rng(seed).permutation(orders[0]) for seed in range(5)]
    for order in orders:
        values, lows = np.ones(tasks), [share([1.0] * tasks).low]
        for task in order:
            values[task] = max(values[task] - 1 / attempts, 0.0)
            lows.append(share(values.tolist()).low)
        steps = np.diff(lows)
        assert steps.max() < 0.006
        assert steps.min() > -2 / tasks


def test_one_failure_lowers_the_bound_of_perfect_success() -> None:
    all_succeed, one_failure = share([1.0] * 30), share([1.0] * 29 + [7 / 8])
    assert all_succeed.low == pytest.approx(one_failure.low, abs=0.01)
    assert all_succeed.low > one_failure.low


# Clusters.


def test_singleton_clusters_and_one_cluster_equal_no_clusters() -> None:
    values = [0.25, 0.5, 1.0, 0.0, 0.75]
    assert share(values, list("abcde")) == share(values) == share(values, ["a"] * 5)
    assert bootstrap(values, list("abcde"), rng()) == bootstrap(values, None, rng())
    assert share(values).clusters is None


def test_bootstrap_interval_of_clusters_that_agree_has_zero_width() -> None:
    """Whose tasks differ: nothing is skewed between clusters."""
    interval = bootstrap([1.0, 3.0] * 10, [at // 2 for at in range(20)], rng())
    assert (interval.mean, interval.low, interval.high, interval.clusters) == (2.0, 2.0, 2.0, 10)


def test_interval_is_invariant_to_cluster_names_and_order() -> None:
    values, clusters = rng().random(24).tolist(), [place // 2 for place in range(24)]
    original = share(values, clusters)
    renamed = share(values[::-1], [f"k{7 * name % 12}" for name in clusters[::-1]])
    assert (original.low, original.high) == pytest.approx((renamed.low, renamed.high))
    assert original.clusters == renamed.clusters == 12


def test_fewer_than_10_clusters_are_ignored() -> None:
    values = rng().random(36).tolist()
    ten, nine = ([place % count for place in range(36)] for count in (10, 9))
    assert share(values, ten).clusters == 10
    assert share(values, nine) == share(values)
    assert cluster_sums(values, nine) == values
    assert not math.isnan(icc(values, nine))


def test_identical_tasks_in_a_cluster_count_as_one() -> None:
    cluster_values = [1.0] * 12 + [0.0] * 18
    values, clusters = np.repeat(cluster_values, 7).tolist(), np.repeat(np.arange(30), 7).tolist()
    clustered, unclustered = share(values, clusters), share(values)
    assert clustered.high - clustered.low == pytest.approx(
        share(cluster_values).high - share(cluster_values).low, rel=0.08
    )
    assert (clustered.high - clustered.low) / (unclustered.high - unclustered.low) == pytest.approx(
        math.sqrt(7), rel=0.1
    )
    over_tasks, over_clusters = (
        bootstrap(v, c, rng(1), skewed=False) for v, c in ((values, clusters), (cluster_values, None))
    )
    assert (over_tasks.low, over_tasks.high) == pytest.approx((over_clusters.low, over_clusters.high))


def test_intra_class_correlation_matches_the_published_example() -> None:
    """Ratings of six persons by four raters (Shrout and Fleiss 1979, table 2): ICC(1,1) is 0.17."""
    rows = [(9, 2, 5, 8), (6, 1, 3, 2), (8, 4, 6, 8), (7, 1, 2, 6), (10, 5, 6, 9), (6, 2, 4, 7)]
    values = [float(rating) for row in rows for rating in row]
    assert icc(values, np.repeat(np.arange(6), 4).tolist()) == pytest.approx(0.17, abs=0.005)
    assert icc([1.0] * 6 + [0.0] * 6, list("aaaaaabbbbbb")) == 1.0
    assert math.isnan(icc([1.0] * 6 + [0.0] * 5, list("aaaaaabbbbb")))
    assert math.isnan(icc([1.0, 0.0], list("ab")))
    assert math.isnan(icc([1.0] * 12, list("aaaaaabbbbbb")))


# Gains.


@given(
    st.lists(st.integers(-8, 8).map(lambda gain: gain / 8), min_size=2, max_size=30),
    st.integers(1, 4),
)
def test_gain_interval_excludes_0_exactly_if_p_is_below_5_percent(gains: list[float], size: int) -> None:
    clusters = [place // size for place in range(len(gains))]
    p = sign_flip(cluster_sums(gains, clusters), rng())
    interval = gain(gains, clusters, p)
    assert -1 <= interval.low <= interval.mean <= interval.high <= 1
    assert interval.low < interval.high
    assert (interval.low > 0 or interval.high < 0) == (p < 0.05)
    mirrored = gain([-value for value in gains], clusters, p)
    assert (interval.low, interval.high) == pytest.approx((-mirrored.high, -mirrored.low), abs=1e-9)


def test_gain_interval_of_equal_policies_has_positive_width() -> None:
    interval = gain([0.0] * 50, None, 1.0)
    assert interval.low == pytest.approx(-interval.high)
    assert 0.03 < interval.high < 0.08


def test_interval_of_many_gains_is_students_t_interval() -> None:
    gains = rng().normal(0.1, 0.05, 200)
    interval, half_width = gain(gains.tolist(), None, 0.0), 1.972 * gains.std(ddof=1) / 200**0.5
    assert (interval.low, interval.high) == pytest.approx(
        (gains.mean() - half_width, gains.mean() + half_width), abs=2e-3
    )


def test_detectable_gain_is_significant_in_80_percent_of_comparisons() -> None:
    draws = rng(4)
    detectable_gain = detectable(draws.normal(0, 0.3, 100).tolist(), None)
    significant = [sign_flip(draws.normal(detectable_gain, 0.3, 100).tolist(), draws) < 0.05 for _ in range(200)]
    assert 0.68 < np.mean(significant) < 0.92


@pytest.mark.parametrize(("tasks", "pairs"), [(10, 0), (20, 0), (100, 0), (20, 1), (20, 2), (100, 5)])
def test_detectable_gain_of_equal_or_few_differing_tasks_has_80_percent_power(tasks: int, pairs: int) -> None:
    draws, now = rng(5), np.zeros(tasks)
    now[:pairs], now[pairs : 2 * pairs] = 1, -1
    change = detectable(now.tolist(), None)
    gains = np.where(now != 0, now, draws.random((400, tasks)) < change / (1 - 2 * pairs / tasks))
    assert 0.75 < np.mean([sign_flip(each.tolist(), draws) < 0.05 for each in gains]) <= 0.97


@pytest.mark.parametrize(("better", "worse", "tasks"), [(36, 0, 50), (20, 0, 50), (30, 10, 100), (60, 20, 200)])
def test_detectable_gain_does_not_grow_with_the_difference_that_there_is(better: int, worse: int, tasks: int) -> None:
    draws, now = rng(8), np.zeros(tasks)
    now[:better], now[better : better + worse] = 1, -1
    change = detectable(now.tolist(), None)
    lost, won = worse / tasks, worse / tasks + change
    gains = draws.choice([-1.0, 1.0, 0.0], p=[lost, won, 1 - lost - won], size=(400, tasks))
    assert 0.7 < np.mean([sign_flip(each.tolist(), draws) < 0.05 for each in gains]) < 0.93


def test_no_gain_is_detectable_with_fewer_than_six_tasks() -> None:
    assert math.isnan(detectable([1.0] * 5, None))
    assert detectable([0.0] * 6, None) > 0.9


@pytest.mark.parametrize(("tasks", "skewed"), [(2, True), (3, True), (4, True), (6, True), (3, False)])
def test_means_of_few_tasks_are_covered(tasks: int, skewed: bool) -> None:
    draws = rng(6)
    values = [draws.normal(8, 2, tasks).tolist() for _ in range(500)]
    found = [bootstrap(each, None, draws, skewed=skewed, least=0.0) for each in values]
    assert np.mean([interval.low <= 8 <= interval.high for interval in found]) > 0.92
    assert all(interval.low >= 0 for interval in found)


def test_intervals_of_few_differences_are_symmetric() -> None:
    interval, mirrored = (bootstrap(values, None, rng(), skewed=False) for values in ([1.0, 2.0, 9.0], [-1, -2, -9]))
    assert (interval.low, interval.high) == pytest.approx((-mirrored.high, -mirrored.low))
    assert interval.low < 0
