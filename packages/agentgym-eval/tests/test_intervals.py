from __future__ import annotations

import math

import numpy as np
import pytest
from agentgym_eval import intervals
from agentgym_eval.intervals import bootstrap, share
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

SHARES = st.lists(st.integers(0, 24).map(lambda count: count / 24), min_size=2, max_size=40)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("skewed", [True, False])
def test_the_bootstrap_agrees_with_the_normal_interval_where_that_holds(skewed: bool) -> None:
    values = rng().normal(3.0, 1.0, size=400)
    interval = bootstrap(values.tolist(), rng(1), skewed=skewed)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)


def test_the_bootstrap_reaches_further_to_the_side_of_the_long_tail() -> None:
    values = rng().lognormal(1.0, 1.0, size=40).tolist()
    leaning, upright = bootstrap(values, rng(1)), bootstrap(values, rng(1), skewed=False)
    assert upright.low < leaning.low < leaning.mean < upright.high < leaning.high


def test_small_samples_are_widened_as_a_t_interval_is() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    t, error = 2.7764, math.sqrt(2.5 / 5)  # the quantile for four degrees of freedom
    interval = bootstrap(values, rng(2), skewed=False, resamples=50_000)
    plain = np.quantile(intervals._resampled(np.array(values), rng(2), 50_000), (0.025, 0.975))
    assert interval.high - interval.low == pytest.approx(2 * t * error, rel=0.1)
    assert plain[1] - plain[0] < 0.7 * (interval.high - interval.low)


@pytest.mark.parametrize(("freedom", "quantile"), [(2, 4.3027), (4, 2.7764), (9, 2.2622), (29, 2.0452), (999, 1.9623)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert intervals._student(freedom) == pytest.approx(quantile, rel=0.01)


def test_the_same_generator_gives_the_same_interval_however_it_is_cut_into_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = rng(3).random(50).tolist()
    whole = bootstrap(values, rng(5))
    monkeypatch.setattr(intervals, "_BLOCK", 120)
    assert bootstrap(values, rng(5)) == whole


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


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1135), (1.0, 0.8865, 1.0), (0.5, 0.326, 0.674)])
def test_where_all_tasks_agree_shares_still_have_a_width(value: float, low: float, high: float) -> None:
    interval = share([value] * 30)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


@pytest.mark.parametrize("mean", [share, lambda values: bootstrap(values, rng())])
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
    found, alone = share(values, rng()), share(values)
    assert (found.low, found.high) == (alone.low, alone.high)
    means = np.random.default_rng(1).choice(values, (20_000, 100)).mean(axis=1)
    assert found.to_dict()["bootstrap"] == pytest.approx(np.quantile(means, (0.025, 0.975)).tolist(), abs=0.01)
    assert "bootstrap" not in alone.to_dict()


def test_the_bootstrap_has_no_width_where_all_tasks_agree() -> None:
    assert bootstrap([3.0] * 5, rng()).to_dict() == {"mean": 3.0, "low": 3.0, "high": 3.0, "tasks": 5}
