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
def test_the_bootstrap_agrees_with_the_normal_interval_where_that_holds(skewed: bool) -> None:
    values = rng().normal(3.0, 1.0, size=400)
    interval = bootstrap(values.tolist(), None, rng(1), skewed=skewed)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)


def test_the_bootstrap_reaches_further_to_the_side_of_the_long_tail() -> None:
    values = rng().lognormal(1.0, 1.0, size=40).tolist()
    leaning, upright = bootstrap(values, None, rng(1)), bootstrap(values, None, rng(1), skewed=False)
    assert upright.low < leaning.low < leaning.mean < upright.high < leaning.high


def test_small_samples_are_widened_as_a_t_interval_is() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    t, error = 2.7764, math.sqrt(2.5 / 5)  # the quantile for four degrees of freedom
    interval = bootstrap(values, None, rng(2), skewed=False, resamples=50_000)
    plain = np.quantile(intervals._resampled(np.array(values), None, rng(2), 50_000), (0.025, 0.975))
    assert interval.high - interval.low == pytest.approx(2 * t * error, rel=0.1)
    assert plain[1] - plain[0] < 0.7 * (interval.high - interval.low)


def test_the_same_generator_gives_the_same_interval_however_it_is_cut_into_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = rng(3).random(50).tolist()
    whole = bootstrap(values, None, rng(5))
    monkeypatch.setattr(intervals, "_BLOCK", 120)
    assert bootstrap(values, None, rng(5)) == whole


def test_coins_have_wilsons_interval() -> None:
    """15 of 500, whose interval stands in many tables: 0.0183 to 0.0489."""
    interval = share([1.0] * 15 + [0.0] * 485)
    assert (interval.low, interval.high) == (pytest.approx(0.0183, abs=5e-5), pytest.approx(0.0489, abs=5e-5))


def test_attempts_that_agree_within_a_task_are_worth_one_and_independent_ones_all() -> None:
    rates = rng().binomial(8, 0.4, size=200) / 8
    clustered = [1.0] * 80 + [0.0] * 120
    independent, alike = share(rates.tolist()), share(clustered)
    width = (alike.high - alike.low) / (independent.high - independent.low)
    assert width == pytest.approx(math.sqrt(8), rel=0.15)


@settings(max_examples=50)
@given(SHARES)
def test_shares_stay_in_their_bounds_and_mirror(values: list[float]) -> None:
    at, mirrored = share(values), share([1 - value for value in values])
    assert 0 <= at.low <= at.mean <= at.high <= 1
    assert at.low < at.high
    assert (at.low, at.high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low), abs=1e-6)


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1135), (1.0, 0.8865, 1.0), (0.5, 0.476, 0.524)])
def test_where_all_tasks_agree_shares_still_have_a_width(value: float, low: float, high: float) -> None:
    interval = share([value] * 30)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


@pytest.mark.parametrize("mean", [share, lambda values: bootstrap(values, None, rng())])
def test_no_task_has_no_mean_and_one_task_no_interval(mean: object) -> None:
    assert callable(mean)
    assert math.isnan(mean([]).mean)
    one = mean([0.25])
    assert (one.mean, one.tasks) == (0.25, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert one.to_dict() == {"mean": 0.25, "low": None, "high": None, "tasks": 1}


def test_a_share_has_the_percentiles_of_its_bootstrap_where_they_are_asked_for() -> None:
    values = [0.0, 0.25, 1.0, 0.5] * 25
    found, alone = share(values, rng=rng()), share(values)
    assert (found.low, found.high) == (alone.low, alone.high)
    means = np.random.default_rng(1).choice(values, (20_000, 100)).mean(axis=1)
    assert found.to_dict()["bootstrap"] == pytest.approx(np.quantile(means, (0.025, 0.975)).tolist(), abs=0.01)
    assert "bootstrap" not in alone.to_dict()


def test_the_bootstrap_has_no_width_where_all_tasks_agree() -> None:
    assert bootstrap([3.0] * 5, None, rng()).to_dict() == {"mean": 3.0, "low": 3.0, "high": 3.0, "tasks": 5}


# Near 0 and 1.


@pytest.mark.parametrize(("tasks", "attempts"), [(30, 8), (50, 4), (100, 2)])
def test_a_failure_more_moves_the_bounds_of_a_share_little_and_never_much_up(tasks: int, attempts: int) -> None:
    """One failure after the other, in every order from one task after the other to all tasks in turn."""
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


def test_where_all_tasks_agree_a_failure_more_is_no_better() -> None:
    whole, almost = share([1.0] * 30), share([1.0] * 29 + [7 / 8])
    assert whole.low == pytest.approx(almost.low, abs=0.01)
    assert whole.low > almost.low


# Clusters.


def test_tasks_that_are_clusters_of_their_own_or_all_of_one_are_what_is_drawn() -> None:
    values = [0.25, 0.5, 1.0, 0.0, 0.75]
    assert share(values, list("abcde")) == share(values) == share(values, ["a"] * 5)
    assert bootstrap(values, list("abcde"), rng()) == bootstrap(values, None, rng())
    assert share(values).clusters is None


def test_the_names_and_the_order_of_clusters_change_nothing() -> None:
    values, clusters = rng().random(24).tolist(), [place // 2 for place in range(24)]
    there = share(values, clusters)
    back = share(values[::-1], [f"k{7 * name % 12}" for name in clusters[::-1]])
    assert (there.low, there.high) == pytest.approx((back.low, back.high))
    assert there.clusters == back.clusters == 12


def test_few_clusters_are_taken_as_given() -> None:
    values = rng().random(36).tolist()
    ten, nine = ([place % count for place in range(36)] for count in (10, 9))
    assert share(values, ten).clusters == 10
    assert share(values, nine) == share(values)
    assert cluster_sums(values, nine) == values
    assert not math.isnan(icc(values, nine))


def test_tasks_that_come_out_alike_in_a_cluster_are_worth_one() -> None:
    kinds = [1.0] * 12 + [0.0] * 18
    values, clusters = np.repeat(kinds, 7).tolist(), np.repeat(np.arange(30), 7).tolist()
    found, alone = share(values, clusters), share(values)
    assert found.high - found.low == pytest.approx(share(kinds).high - share(kinds).low, rel=0.08)
    assert (found.high - found.low) / (alone.high - alone.low) == pytest.approx(math.sqrt(7), rel=0.1)
    means, of_kinds = (bootstrap(v, c, rng(1), skewed=False) for v, c in ((values, clusters), (kinds, None)))
    assert (means.low, means.high) == pytest.approx((of_kinds.low, of_kinds.high))


def test_the_intra_class_correlation_is_that_of_the_textbook() -> None:
    """Four raters and six persons, a row each (Shrout and Fleiss 1979, table 2): ICC(1,1) is 0.17."""
    rows = [(9, 2, 5, 8), (6, 1, 3, 2), (8, 4, 6, 8), (7, 1, 2, 6), (10, 5, 6, 9), (6, 2, 4, 7)]
    values = [float(rating) for row in rows for rating in row]
    assert icc(values, np.repeat(np.arange(6), 4).tolist()) == pytest.approx(0.17, abs=0.005)
    assert icc([1.0, 1.0, 0.0, 0.0], list("aabb")) == 1.0
    assert math.isnan(icc([1.0, 0.0], list("ab")))
    assert math.isnan(icc([1.0] * 4, list("aabb")))


# Gains.


@given(
    st.lists(st.integers(-8, 8).map(lambda gain: gain / 8), min_size=2, max_size=30),
    st.integers(1, 4),
)
def test_an_interval_of_gains_says_what_the_test_says(gains: list[float], size: int) -> None:
    clusters = [place // size for place in range(len(gains))]
    p = sign_flip(cluster_sums(gains, clusters), rng())
    at = gain(gains, clusters, p)
    assert -1 <= at.low <= at.mean <= at.high <= 1
    assert at.low < at.high
    assert (at.low > 0 or at.high < 0) == (p < 0.05)
    mirrored = gain([-each for each in gains], clusters, p)
    assert (at.low, at.high) == pytest.approx((-mirrored.high, -mirrored.low), abs=1e-9)


def test_an_interval_of_gains_has_a_width_where_nothing_sets_the_two_apart() -> None:
    at = gain([0.0] * 50, None, 1.0)
    assert at.low == pytest.approx(-at.high)
    assert 0.03 < at.high < 0.08


def test_many_gains_have_students_interval() -> None:
    gains = rng().normal(0.1, 0.05, 200)
    at, half = gain(gains.tolist(), None, 0.0), 1.972 * gains.std(ddof=1) / 200**0.5
    assert (at.low, at.high) == pytest.approx((gains.mean() - half, gains.mean() + half), abs=2e-3)


def test_what_can_be_detected_is_shown_in_four_of_five_comparisons() -> None:
    draws = rng(4)
    least = detectable(draws.normal(0, 0.3, 100).tolist(), None)
    shown = [sign_flip(draws.normal(least, 0.3, 100).tolist(), draws) < 0.05 for _ in range(200)]
    assert 0.68 < np.mean(shown) < 0.92
