"""Tests of lines: axes, means over seeds with bands, smoothing, thinning, and groups of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_eval.viewer.index.metric_columns import MetricColumns
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages.curve_chart import CurveChart, short
from agentgym_eval.viewer.pages.curve_lines import Line, RunCurves, mean_line, run_line, smooth, thinned
from agentgym_eval.viewer.pages.run_groups import seed_groups
from scipy import stats

pytestmark = pytest.mark.quick


def curves(*records: dict[str, Any], evaluations: dict[str, dict[int, float]] | None = None) -> RunCurves:
    columns = MetricColumns()
    for record in records:
        columns.add(record)
    return RunCurves(columns, evaluations or {})


def losses(values: dict[int, float]) -> RunCurves:
    return curves(*({"step": step, "loss": value} for step, value in values.items()))


def run(name: str, **settings: Any) -> Run:
    return Run(name, name, Path(name), "train", {"config": settings} if settings else {})


def test_smoothing_is_the_bias_corrected_moving_average_of_tensorboard() -> None:
    values = np.random.default_rng(0).normal(size=50)
    expected, last = list[float](), 0.0
    for count, value in enumerate(values, 1):
        last = last * 0.9 + 0.1 * value
        expected.append(last / (1 - 0.9**count))
    np.testing.assert_allclose(smooth(values, 0.9), expected, rtol=1e-12)
    np.testing.assert_allclose(smooth(np.full(9, 3.0), 0.99), 3.0)
    np.testing.assert_array_equal(smooth(values, 0.0), values)


def test_mean_over_seeds_has_the_t_interval_at_the_steps_that_all_reached() -> None:
    seeds = [losses({1: 1.0, 2: 4.0, 3: 9.0}), losses({1: 2.0, 3: 5.0, 4: 7.0}), losses({1: 6.0, 2: 1.0, 3: 1.0})]
    line = mean_line("g", 0, seeds, "loss", "step", "t")
    assert (line.x.tolist(), line.y.tolist(), line.runs) == ([1, 3], [3, 5], 3)
    expected = stats.t.interval(0.95, 2, loc=3, scale=stats.sem([1, 2, 6]))
    assert line.low is not None and line.high is not None
    assert (line.low[0], line.high[0]) == pytest.approx(expected)
    line = mean_line("g", 0, seeds, "loss", "step", "range")
    assert line.low is not None and line.high is not None
    assert (line.low.tolist(), line.high.tolist()) == ([1, 1], [6, 9])
    assert mean_line("g", 0, seeds, "loss", "step", "none").low is None


def test_bands_are_those_of_smoothed_runs_and_evaluations_are_not_smoothed() -> None:
    values = np.random.default_rng(1).normal(size=(3, 8))
    dev = {"dev": {0: 0.1, 8: 0.5}}
    seeds = [curves(*({"step": n, "loss": y} for n, y in enumerate(row, 1)), evaluations=dev) for row in values]
    line = mean_line("g", 0, seeds, "loss", "step", "t", 0.8)
    expected = np.stack([smooth(row, 0.8) for row in values])
    low, high = stats.t.interval(0.95, 2, loc=expected.mean(axis=0), scale=stats.sem(expected))
    assert line.smooth is not None and line.low is not None and line.high is not None
    np.testing.assert_allclose(line.y, values.mean(axis=0))
    np.testing.assert_allclose(line.smooth, expected.mean(axis=0))
    np.testing.assert_allclose((line.low, line.high), (low, high))
    alone = run_line("r", 0, seeds[0], "loss", "step", 0.8).smooth
    assert alone is not None
    np.testing.assert_allclose(alone, expected[0])
    assert run_line("r", 0, seeds[0], "dev", "step", 0.8).smooth is None
    assert mean_line("g", 0, seeds, "dev", "step", "t", 0.8).smooth is None


def test_seeds_without_the_metric_are_not_counted() -> None:
    line = mean_line("g", 0, [losses({1: 1.0}), losses({1: 3.0}), curves({"step": 1, "kl": 1})], "loss", "step", "t")
    assert (line.y.tolist(), line.runs) == ([2.0], 2)
    alone = mean_line("g", 0, [losses({1: 1.0}), losses({})], "loss", "step", "t")
    assert (alone.y.tolist(), alone.runs, alone.low) == ([1.0], 1, None)
    assert len(mean_line("g", 0, [losses({})], "loss", "step", "t").x) == 0
    assert len(mean_line("g", 0, [losses({1: 1.0}), losses({2: 1.0})], "loss", "step", "t").x) == 0


def test_axes_accumulate_tokens_and_hours_and_place_evaluations() -> None:
    seconds = {"rollout": 1800, "engine": 1700, "update": 1800}
    records = [{"step": step, "env_steps": 7 * step, "tokens": {"total": 10}, "seconds": seconds} for step in (1, 2)]
    one = curves(*records, evaluations={"dev": {0: 0.1, 2: 0.5}})
    assert run_line("r", 0, one, "dev", "step").x.tolist() == [0, 2]
    assert run_line("r", 0, one, "dev", "env_steps").x.tolist() == [0, 14]
    assert run_line("r", 0, one, "dev", "hours").x.tolist() == [0, 2]
    assert run_line("r", 0, one, "tokens.total", "tokens").x.tolist() == [10, 20]
    bare = losses({1: 1.0})
    assert bare.axis("tokens") is None and bare.axis("hours") is None
    assert len(run_line("r", 0, bare, "loss", "hours").x) == 0
    slow = curves(*({**record, "env_steps": 9 * record["step"]} for record in records))
    assert mean_line("g", 0, [one, slow], "tokens.total", "env_steps", "t").x.tolist() == [8, 16]


def test_of_a_repeated_step_the_last_value_counts() -> None:
    repeated = curves({"step": 2, "loss": 5}, {"step": 1, "loss": 1}, {"step": 2, "loss": 7})
    assert [each.tolist() for each in repeated.column("loss")] == [[1, 2], [1, 7]]


def test_null_interrupts_a_line_and_its_band() -> None:
    """A metric that is missing in a record isn't logged at every step, and doesn't interrupt its line."""
    values = {1: 1.0, 2: 2.0, 3: None, 4: 1.0, 5: None, 7: 2.0, 8: 3.0}
    one = curves(*({"step": step, "loss": value, "deep": {"kl": value}} for step, value in values.items()))
    two = curves(*({"step": step, "loss": 1.0} for step in values), {"step": 6, "kl": 1.0})
    line = run_line("one", 0, one, "loss", "step", 0.5)
    assert line.gaps.tolist() == [3, 5] == one.gaps("deep.kl").tolist()
    chart = CurveChart("loss", [line], width=164 + 540)
    assert line.smooth is not None
    for y in (line.y, line.smooth):
        xs = [[point.partition(",")[0] for point in part.split()] for part in chart.paths(line, y)]
        assert xs == [["54", "145.4"], ["328.3", "328.3"], ["602.6", "694"]]
    mean = mean_line("mean", 0, [one, two], "loss", "step", "range")
    assert mean.gaps.tolist() == [3, 5]
    assert [len(part.split()) for part in chart.bands(mean)] == [4, 2, 4]
    assert [len(part.split()) for part in chart.paths(run_line("two", 0, two, "loss", "step"), np.ones(7))] == [7]
    assert curves({"step": 1, "loss": None}, {"step": 1, "loss": 2.0}).gaps("loss").tolist() == []


def test_thinning_keeps_ends_and_extremes() -> None:
    y = np.sin(np.arange(20_000) / 50)
    y[[777, 15_000]] = 40, -30
    line = thinned(Line("r", 0, np.arange(20_000.0), y, smooth=smooth(y, 0.5)), 100)
    assert len(line.x) <= 100
    assert {0, 777, 15_000, 19_999} <= set(line.x.tolist())
    assert line.smooth is not None
    np.testing.assert_allclose(line.smooth, smooth(y, 0.5)[line.x.astype(int)])
    assert thinned(line, 100) is line


def test_logarithmic_axis_leaves_out_what_is_not_positive() -> None:
    line = Line("r", 0, np.array([1.0, 2, 3]), np.array([10.0, -1, 1000]))
    chart = CurveChart("loss", [line], log=True)
    assert chart.lines[0].x.tolist() == [1, 3]
    assert [tick.label for tick in chart.y_ticks] == ["10", "100", "1000"]
    assert not CurveChart("loss", [Line("r", 0, np.array([1.0]), np.array([-1.0]))], log=True).log
    assert [short(value) for value in (0, 0.25, 1500, 20_000, 3e6, 5e9)] == ["0", "0.25", "1500", "20k", "3M", "5G"]


@pytest.mark.parametrize("value", [0.0, -2.0, 1e-300, 1e290])
def test_constant_metric_has_a_range(value: float) -> None:
    chart = CurveChart("m", [Line("r", 0, np.array([1.0, 2]), np.full(2, value))])
    assert np.isfinite(chart.ys(np.full(2, value))).all()
    assert chart.y_ticks


def test_runs_that_differ_only_in_the_seed_are_a_group() -> None:
    runs = [run("lr=1_seed=0", lr=1, seed=0), run("lr=2_seed=0", lr=2, seed=0), run("lr=1_seed=1", lr=1, seed=1)]
    runs += [run("again", lr=1, seed=1), run("bare"), run("bare-2")]
    groups = {group.name: [each.name for each in group.runs] for group in seed_groups(runs)}
    assert groups == {
        "lr=1": ["lr=1_seed=0", "lr=1_seed=1"],
        "lr=2_seed=0": ["lr=2_seed=0"],
        "again": ["again"],
        "bare": ["bare"],
        "bare-2": ["bare-2"],
    }

    def names(*names: str) -> list[str]:
        return [group.name for group in seed_groups(run(name, seed=seed) for seed, name in enumerate(names))]

    assert names("a", "b") == ["a and 1 more"]
    assert names("runs/ppo-9", "runs/ppo-10") == ["runs/ppo"]
    assert names("0", "1") == ["0 and 1 more"]
    assert names("runs/0", "runs/11") == ["runs/0 and 1 more"]
    other = [run("ppo-2", lr=2, seed=0), run("ppo-3", lr=2, seed=1)]
    same = [*(run(f"ppo-{n}", seed=n) for n in (0, 1)), *other]
    assert [group.name for group in seed_groups(same)] == ["ppo-0 and 1 more", "ppo-2 and 1 more"]
