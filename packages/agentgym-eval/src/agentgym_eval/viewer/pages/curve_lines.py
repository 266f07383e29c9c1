"""The lines of curves: horizontal axes, means over seeds with bands, smoothing, and thinning of long runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentgym_eval.viewer.index.metric_columns import Floats, MetricColumns

Axis = Literal["step", "env_steps", "tokens", "hours"]
Band = Literal["t", "range", "none"]

AXES: Mapping[Axis, str] = {
    "step": "training step",
    "env_steps": "environment steps",
    "tokens": "tokens",
    "hours": "hours",
}
"""The horizontal axes with their labels."""
EVALUATED = re.compile(r"(dev|train|test|held_out)\.(sampled|greedy)")
"""The metrics with the success in an evaluation: its split (`held_out` in older runs), and the decoding method."""
_CONTAINED = "seconds.engine"
"""The time in which the engine was busy is part of the other phases."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart; all arrays have shape (N,)."""

    name: str
    style: int
    """The number of its run or group on the page, from 0, which determines its colour and dashes."""
    x: Floats
    y: Floats
    runs: int = 1
    """The number of runs of which it is the mean."""
    low: Floats | None = None
    high: Floats | None = None
    """The bounds of its band; None without a band."""
    smooth: Floats | None = None
    """The smoothed `y`; None without smoothing."""
    gaps: Floats = field(default_factory=lambda: np.empty(0))
    """Where on the horizontal axis the line is interrupted, since the metric is null there; ascending, shape (M,)."""


@dataclass(frozen=True, slots=True)
class RunCurves:
    """All curves of a run."""

    columns: MetricColumns
    evaluations: Mapping[str, Mapping[int, float]]
    """The success in evaluations by step, for each kind of evaluation."""

    def names(self) -> list[str]:
        """Return the names of evaluations and metrics with at least one value."""
        return [*self.evaluations, *(name for name in self.columns.rows if not EVALUATED.fullmatch(name))]

    def column(self, name: str) -> tuple[Floats, Floats]:
        """Return the steps and values of a curve; both empty if the run doesn't have it."""
        if name in self.evaluations:
            points = sorted(self.evaluations[name].items())
            return np.array([step for step, _ in points], dtype=np.float64), np.array([value for _, value in points])
        steps, values = self.columns.column(name)
        steps, last = np.unique(steps[::-1], return_index=True)  # of a repeated step, the last record counts
        return steps, values[::-1][last]

    def gaps(self, name: str) -> Floats:
        """Return the steps at which a metric is null; ascending."""
        return np.empty(0) if name in self.evaluations else self.columns.gaps(name)

    def axis(self, axis: Axis) -> tuple[Floats, Floats] | None:
        """Return the steps and their position on a horizontal axis; None if the run doesn't record it."""
        steps = np.asarray(self.columns.steps, dtype=np.float64)
        if axis == "step":
            return steps, steps
        positions = self._positions(axis)
        known = np.isfinite(positions)
        return (steps[known], positions[known]) if known.any() else None

    def _positions(self, axis: Axis) -> Floats:
        if axis == "env_steps":
            return self.columns.dense("env_steps")
        if axis == "tokens":
            names = ["tokens.total"]
        else:
            names = [name for name in self.columns.rows if name.startswith("seconds.") and name != _CONTAINED]
        parts = [self.columns.dense(name) for name in names if name in self.columns.rows]
        if not parts:
            return np.full(len(self.columns.steps), np.nan)
        total = np.cumsum(np.nansum(parts, axis=0))
        return total / 3600 if axis == "hours" else total

    def place(self, steps: Floats, axis: Axis) -> Floats:
        """Return the positions of steps on a horizontal axis that the run records; step 0 is at 0."""
        found = self.axis(axis)
        if axis == "step" or found is None:
            return steps
        return np.interp(steps, np.concatenate(([0.0], found[0])), np.concatenate(([0.0], found[1])))


def run_line(name: str, style: int, run: RunCurves, metric: str, axis: Axis, weight: float = 0.0) -> Line:
    """Return the line of one run, smoothed with a weight; without points if it doesn't have the metric or the axis.

    The few points of evaluations, each of many episodes, are not smoothed.
    """
    steps, values = run.column(metric)
    if run.axis(axis) is None:
        steps, values = steps[:0], values[:0]
    smoothed = smooth(values, weight) if weight and len(values) > 1 and metric not in run.evaluations else None
    return Line(name, style, run.place(steps, axis), values, smooth=smoothed, gaps=run.place(run.gaps(metric), axis))


def mean_line(
    name: str, style: int, runs: Sequence[RunCurves], metric: str, axis: Axis, band: Band, weight: float = 0.0
) -> Line:
    """Return the mean over runs with a band, at the steps at which all of them have a value.

    Runs without any value of the metric are left out. On other axes than the step, a point is at the mean position of
    the runs at this step.

    The band is the 95% t-interval of the mean, mean ± t(n - 1) s / sqrt(n) (Student 1908), or from the smallest to the
    largest value. With smoothing, it is that of the smoothed values of each run. Evaluations are not smoothed.
    """
    lines = [(run, *run.column(metric)) for run in runs if run.axis(axis) is not None]
    lines = [line for line in lines if len(line[1])]
    if not lines:
        return Line(name, style, np.empty(0), np.empty(0))
    common = reduce(np.intersect1d, [steps for _, steps, _ in lines])
    at = [np.searchsorted(steps, common) for _, steps, _ in lines]
    y = np.stack([values[rows] for (_, _, values), rows in zip(lines, at, strict=True)])  # (runs, N)
    x = np.mean([run.place(common, axis) for run, _, _ in lines], axis=0)
    gaps = reduce(np.union1d, [run.gaps(metric) for run, _, _ in lines])
    places = np.mean([run.place(gaps, axis) for run, _, _ in lines], axis=0)
    line = Line(name, style, x, y.mean(axis=0), len(lines), gaps=places)
    if weight and len(common) > 1 and not any(metric in run.evaluations for run, _, _ in lines):
        y = smooth(y, weight)
        line = replace(line, smooth=y.mean(axis=0))
    if band == "none" or len(lines) == 1:
        return line
    if band == "range":
        return replace(line, low=y.min(axis=0), high=y.max(axis=0))
    half = _t_quantile(len(lines) - 1) * y.std(axis=0, ddof=1) / math.sqrt(len(lines))
    return replace(line, low=y.mean(axis=0) - half, high=y.mean(axis=0) + half)


def _t_quantile(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def smooth(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average with bias correction, as TensorBoard computes it.

    With a_0 = 0 and a_n = w a_(n-1) + (1 - w) y_n, the smoothed value is a_n / (1 - w^n), so that the first one is y_1.

    Args:
        values: The values y_1 ... y_N, shape (..., N).
        weight: w, at least 0 and below 1.
    """
    from scipy.signal import lfilter

    averages = np.asarray(lfilter([1 - weight], [1, -weight], values), dtype=np.float64)
    return averages / (1 - weight ** np.arange(1, values.shape[-1] + 1))


def thinned(line: Line, most: int) -> Line:
    """Keep at most `most` points: the first, the last, and the lowest and highest of equal shares of the others."""
    if len(line.x) <= most:
        return line
    shares = np.array_split(np.arange(len(line.x)), max(1, (most - 2) // 2))
    lowest = [share[int(np.argmin(line.y[share]))] for share in shares]
    highest = [share[int(np.argmax(line.y[share]))] for share in shares]
    kept: NDArray[np.int64] = np.unique([0, *lowest, *highest, len(line.x) - 1])
    low, high, smoothed_y = (None if each is None else each[kept] for each in (line.low, line.high, line.smooth))
    return replace(line, x=line.x[kept], y=line.y[kept], low=low, high=high, smooth=smoothed_y)
