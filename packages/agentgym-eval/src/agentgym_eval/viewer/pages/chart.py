"""Layout of line charts: maps values to coordinates. The SVG itself is in the template `chart.html`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

WIDTH, HEIGHT = 900, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 24, 34


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a series."""

    x: float
    y: float
    """NaN interrupts the line."""
    label: str = ""
    """Its tooltip."""
    low: float | None = None
    high: float | None = None
    """Lower and upper bound of its interval."""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A line in a chart."""

    name: str
    points: Sequence[Point]
    dots: bool = True
    """Whether to mark its points."""

    @property
    def known(self) -> list[Point]:
        """The points with a value."""
        return [point for point in self.points if not math.isnan(point.y)]


@dataclass(frozen=True, slots=True)
class Band:
    """A labeled interval of the horizontal axis."""

    start: float
    end: float
    label: str
    reason: str = ""
    """Why it begins, for its tooltip."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of an axis: its coordinate and its label."""

    at: float
    label: str


class Chart:
    """A chart; `x` and `y` convert values to coordinates."""

    def __init__(
        self,
        title: str,
        series: Iterable[Series],
        bands: Sequence[Band] = (),
        *,
        unit: tuple[float, float] | None = None,
    ) -> None:
        """Lay out the chart; `unit` is the range of the vertical axis, by default that of the values."""
        self.title = title
        self.series = [each for each in series if each.known]
        self.width, self.height = WIDTH, HEIGHT
        self.left, self.right, self.top, self.bottom = _LEFT, WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM
        points = [point for each in self.series for point in each.known]
        xs = [point.x for point in points]
        ys = [y for point in points for y in (point.y, point.low, point.high) if y is not None]
        self._x = _range(xs)
        self._y = unit or _range(ys)
        first, last = self._x
        within = (replace(band, start=max(band.start, first), end=min(band.end, last)) for band in bands)
        self.bands = [band for band in within if band.start < band.end]

    def x(self, value: float) -> float:
        """Convert a value to a horizontal coordinate, from the left."""
        low, high = self._x
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Convert a value to a vertical coordinate, from the top."""
        low, high = self._y
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 1)

    def paths(self, series: Series) -> list[str]:
        """Return the uninterrupted parts of a line, each as the `points` attribute of an SVG polyline."""
        parts = groupby(series.points, key=lambda point: math.isnan(point.y))
        return [" ".join(f"{self.x(point.x)},{self.y(point.y)}" for point in part) for gap, part in parts if not gap]

    @property
    def x_ticks(self) -> list[Tick]:
        """The ticks of the horizontal axis, at whole numbers (training steps)."""
        values = ticks(*self._x, most=8, whole=True)
        return [Tick(self.x(value), f"{value:.0f}") for value in values]

    @property
    def y_ticks(self) -> list[Tick]:
        """The ticks of the vertical axis."""
        values = ticks(*self._y, most=5)
        return [Tick(self.y(value), f"{value:.4g}") for value in values]


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most about `most` round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis that shows the values; its bounds always differ."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        margin = abs(low) / 2 or 0.5
        return low - margin, high + margin
    return low, high
