"""Layout of charts with the lines of several runs. The SVG itself is in the template `curve_chart.html`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentgym_eval.viewer.index.metric_columns import Floats
from agentgym_eval.viewer.pages.chart import Tick, ticks
from agentgym_eval.viewer.pages.curve_lines import Line

COLOURS, DASHES = 12, 4
"""The number of colours and of dash patterns in `curves.css`."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 10, 8, 24


class CurveChart:
    """A chart of lines with bands, on a linear or logarithmic vertical axis."""

    def __init__(
        self,
        name: str,
        lines: Sequence[Line],
        *,
        title: str = "",
        x_label: str = "training step",
        log: bool = False,
        unit: tuple[float, float] | None = None,
        width: int = 420,
        height: int = 200,
    ) -> None:
        """Lay out the chart.

        Args:
            name: The name of the metric.
            lines: Its lines; those without points are left out.
            title: What the metric is, if `name` doesn't say it.
            x_label: The label of the horizontal axis.
            log: Whether the vertical axis is logarithmic; without a positive value it is linear.
            unit: The range of a linear vertical axis, by default that of the lines and of their values before
                smoothing. A band may reach beyond it.
            width: Width in SVG units.
            height: Height in SVG units.
        """
        self.name, self.title, self.x_label = name, title, x_label
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = _LEFT, width - _RIGHT, _TOP, height - _BOTTOM
        positive = any((line.y > 0).any() for line in lines)
        self.log = log and positive
        self.lines = [line for line in (_positive(each) if self.log else each for each in lines) if len(line.x)]
        ys = [line.y for line in self.lines]
        self._x = _range([line.x for line in self.lines])
        self._y = _log_range(ys) if self.log else unit or _range(ys)

    def xs(self, values: Floats) -> Floats:
        """Convert values to horizontal coordinates, from the left."""
        low, high = self._x
        return np.round(self.left + (values - low) / (high - low) * (self.right - self.left), 1)

    def ys(self, values: Floats) -> Floats:
        """Convert values to vertical coordinates, from the top."""
        low, high = self._y
        values = np.log10(np.maximum(values, 1e-300)) if self.log else values
        return np.round(self.bottom - (values - low) / (high - low) * (self.bottom - self.top), 1)

    def paths(self, line: Line, y: Floats) -> list[str]:
        """Return the uninterrupted parts of a line with these values, each as the `points` attribute of an SVG
        polyline. A lone point is repeated, so that it is drawn as a dot.
        """
        points = np.stack([self.xs(line.x), self.ys(y)], axis=1)
        return [_points(part if len(part) > 1 else np.repeat(part, 2, axis=0)) for part in _parts(line, points)]

    def bands(self, line: Line) -> list[str]:
        """Return the outlines of the parts of a line's band, each as the `points` attribute of an SVG polygon."""
        if line.low is None or line.high is None:
            return []
        limit = 4 * self.height  # far outside: what is beyond the chart is clipped
        low, high = (np.clip(self.ys(each), -limit, limit) for each in (line.low, line.high))
        parts = _parts(line, np.stack([self.xs(line.x), low, high], axis=1))
        return [_points(np.concatenate([part[:, [0, 2]], part[::-1, [0, 1]]])) for part in parts]

    def dots(self, line: Line) -> list[tuple[float, float]]:
        """Return the coordinates of a line's points."""
        y = line.y if line.smooth is None else line.smooth
        return [(float(at), float(to)) for at, to in zip(self.xs(line.x), self.ys(y), strict=True)]

    @property
    def x_ticks(self) -> list[Tick]:
        """The ticks of the horizontal axis."""
        values = ticks(*self._x, most=5)
        at = self.xs(np.array(values))
        return [Tick(float(x), short(value)) for x, value in zip(at, values, strict=True)]

    @property
    def y_ticks(self) -> list[Tick]:
        """The ticks of the vertical axis."""
        values = _log_ticks(*self._y) if self.log else ticks(*self._y, most=5)
        at = self.ys(np.array(values))
        return [Tick(float(y), short(value)) for y, value in zip(at, values, strict=True)]


def _parts(line: Line, rows: Floats) -> list[Floats]:
    """Split rows, one for each point of a line, where it is interrupted."""
    return [part for part in np.split(rows, np.unique(np.searchsorted(line.x, line.gaps))) if len(part)]


def _points(rows: Floats) -> str:
    """Format coordinates, shape (N, 2), as the `points` attribute of an SVG element."""
    return " ".join(f"{x:g},{y:g}" for x, y in rows)


def short(value: float) -> str:
    """Format the value of a tick: 12000 as `12k`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * size or (abs(value) >= size and size > 1e3):
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def style_classes(style: int) -> str:
    """Return the CSS classes of the colour and the dashes of a line."""
    return f"c{style % COLOURS} d{style // COLOURS % DASHES}"


def numbers(values: Floats) -> str:
    """Format values with five significant digits, separated by spaces."""
    return " ".join(f"{value:.5g}" for value in values)


def _positive(line: Line) -> Line:
    """Keep the points of a line that a logarithmic axis can show."""
    kept = line.y > 0
    low, high, smoothed = (None if each is None else each[kept] for each in (line.low, line.high, line.smooth))
    return replace(line, x=line.x[kept], y=line.y[kept], low=low, high=high, smooth=smoothed)


def _range(values: Sequence[Floats]) -> tuple[float, float]:
    """Return the range of an axis that shows the values; its bounds always differ."""
    low = min((float(each.min()) for each in values), default=0.0)
    high = max((float(each.max()) for each in values), default=1.0)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        margin = abs(low) / 2 or 0.5
        return low - margin, high + margin
    return low, high


def _log_range(values: Sequence[Floats]) -> tuple[float, float]:
    low, high = _range([np.log10(each) for each in values])
    return low, high


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between powers of ten: 1, 2 and 5 times powers of ten if there is space."""
    factors = (1, 2, 5) if high - low < 2 else (1,)
    every = max(1, math.ceil((high - low) / 5))
    powers = range(max(math.floor(low), -307), min(math.ceil(high), 308) + 1, every)  # those that floats can hold
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in found if low - 1e-9 <= math.log10(value) <= high + 1e-9]
