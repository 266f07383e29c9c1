"""Drawings of the region or a town: shapes as plain values that a template renders as SVG.

Units are km with the y axis pointing down, so a view is a part of the region at any scale.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_envs.worlds.webarena.sites.map.kinds import KINDS
from agentgym_envs.worlds.webarena.sites.region import region
from agentgym_envs.worlds.webarena.sites.region.land import HEIGHT, WIDTH

_SHAPE = 1.3
"""Aspect ratio of a view, width over height."""
_LEAST, _MOST = 0.8, WIDTH * 1.1
_LARGE, _MIDDLING = 24_000, 9_000


@dataclass(frozen=True, slots=True)
class View:
    """The visible part of the region."""

    x: float
    """East of the center, km."""
    y: float
    width: float

    @property
    def box(self) -> str:
        """The `viewBox` of the SVG."""
        height = self.width / _SHAPE
        return f"{self.x - self.width / 2:.4f} {HEIGHT - self.y - height / 2:.4f} {self.width:.4f} {height:.4f}"

    @property
    def unit(self) -> float:
        """Approximate kilometers per pixel; sizes of letters and lines are multiples of it."""
        return self.width / 820

    @property
    def bar(self) -> tuple[float, str]:
        """A scale bar: its length in km, and its label."""
        km = max(length for length in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if length <= self.width / 4)
        return km, f"{km:g} km" if km >= 1 else f"{1000 * km:.0f} m"

    def moved(self, right: float, up: float, zoom: float = 1.0) -> dict[str, str]:
        """Return the query of a view that is moved and zoomed from this one."""
        width = min(max(self.width * zoom, _LEAST), _MOST)
        x, y = self.x + right * self.width / 3, self.y + up * self.width / 3 / _SHAPE
        return {"x": f"{min(max(x, 0), WIDTH):.2f}", "y": f"{min(max(y, 0), HEIGHT):.2f}", "width": f"{width:.2f}"}

    def shows(self, x: float, y: float) -> bool:
        """Whether a point is in the view, or just outside."""
        return abs(x - self.x) < 0.55 * self.width and abs(y - self.y) < 0.55 * self.width / _SHAPE


def whole() -> View:
    """Return a view of the whole region."""
    return View(WIDTH / 2 + 6, HEIGHT / 2, _MOST)


def around(points: Sequence[tuple[float, float]], least: float = 3.0) -> View:
    """Return a view that contains all points."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    width = max(max(xs) - min(xs), (max(ys) - min(ys)) * _SHAPE) * 1.25
    return View((max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2, max(width, least))


def draw(
    db: sqlite3.Connection, view: View, *, route: Sequence[tuple[float, float]] = (), marked: Iterable[int] = ()
) -> dict[str, Any]:
    """Return all shapes in a view; streets and places only if it is close enough, and `marked` places with a pin."""
    close = view.width < 9
    land = region()
    at = {town.name: (town.x, town.y) for town in land.towns}
    shown = {town.name for town in land.towns if view.shows(*at[town.name])} if close else set[str]()
    pins = set(marked)
    return {
        "view": view,
        "sea": _points([*land.coast, (land.coast[-1][0], HEIGHT + 60), (WIDTH + 400, HEIGHT + 60), (WIDTH + 400, -60)])
        + f" {land.coast[0][0]},{HEIGHT + 60}",
        "rivers": [(river.name, _points(river.points), _at(river.points[20])) for river in land.rivers],
        "hills": [(hill.name, hill.height, *_at((hill.x, hill.y))) for hill in land.hills],
        "lakes": [(lake.name, 0.5 + lake.area / 14, *_at((lake.x, lake.y))) for lake in land.lakes],
        "roads": [(road.kind, road.number, _points([at[road.start], at[road.end]])) for road in land.roads],
        "towns": [(town.name, _size(town.population), *_at(at[town.name])) for town in land.towns],
        "streets": _streets(db, sorted(shown)),
        "places": _places(db, sorted(shown), pins) if close else [],
        "pins": _places(db, (), pins),
        "route": _points(route),
        "close": close,
    }


def route_points(names: Sequence[str], ends: Sequence[sqlite3.Row]) -> list[tuple[float, float]]:
    """Return the line of a journey: from its start through the towns to its end."""
    at = {town.name: (town.x, town.y) for town in region().towns}
    inner = [at[name] for name in names] if len(names) > 1 else []
    return [(ends[0]["x"], ends[0]["y"]), *inner, (ends[1]["x"], ends[1]["y"])]


def _size(population: int) -> str:
    return "large" if population > _LARGE else "middling" if population > _MIDDLING else "small"


def _at(point: Sequence[float]) -> tuple[float, float]:
    return round(point[0], 4), round(HEIGHT - point[1], 4)


def _points(points: Iterable[Sequence[float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in map(_at, points))


def _streets(db: sqlite3.Connection, towns: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for town in towns:
        for row in db.execute("SELECT * FROM streets WHERE town = ? ORDER BY id", (town,)):
            points: list[list[float]] = json.loads(row["points"])
            if points[0][0] > points[-1][0]:  # a street's name is drawn along it, from left to right
                points.reverse()
            path = "M" + " L".join(f"{x:g},{y:g}" for x, y in map(_at, points))
            found.append({"id": row["id"], "name": row["name"], "path": path})
    return found


def _places(db: sqlite3.Connection, towns: Sequence[str], pins: set[int]) -> list[dict[str, Any]]:
    """Return the unpinned places of towns, or, without towns, the pinned ones."""
    rows: list[sqlite3.Row] = []
    for town in towns:
        rows += db.execute("SELECT * FROM places WHERE town = ? AND number IS NOT NULL ORDER BY id", (town,)).fetchall()
        rows += db.execute("SELECT * FROM places WHERE town = ? AND kind = 'park' ORDER BY id", (town,)).fetchall()
    if not towns:
        rows = [db.execute("SELECT * FROM places WHERE id = ?", (identity,)).fetchone() for identity in sorted(pins)]
    return [
        {
            "id": row["id"],
            "name": row["name"],
            "kind": row["kind"],
            "layer": KINDS[row["kind"]].layer,
            "at": _at((row["x"], row["y"])),
        }
        for row in rows
        if not towns or row["id"] not in pins
    ]
