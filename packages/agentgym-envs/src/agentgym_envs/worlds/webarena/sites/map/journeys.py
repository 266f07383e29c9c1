"""Directions between two places: through the start town, over the region's roads, through the destination town."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_envs.worlds.webarena.sites.region import MODES, Route, region

__all__ = ["MODES", "Journey", "Step", "journey", "length_text", "time_text", "total"]
_IN_TOWN = {"car": 28.0, "bike": 14.0, "foot": 4.8}
"""Speed on streets, km/h."""
_DETOUR = 1.3
"""Ratio of a street route's length to the straight line."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the directions."""

    text: str
    metres: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Journey:
    """The quickest route."""

    steps: tuple[Step, ...]
    towns: tuple[str, ...]
    """All towns on the route, including both ends."""

    @property
    def metres(self) -> int:
        """The length."""
        return sum(step.metres for step in self.steps)

    @property
    def seconds(self) -> float:
        """The travel time."""
        return sum(step.seconds for step in self.steps)

    @property
    def length(self) -> str:
        """The length as the page shows it."""
        return length_text(self.metres)

    @property
    def time(self) -> str:
        """The travel time as the page shows it."""
        return time_text(self.seconds)


def journey(start: sqlite3.Row, end: sqlite3.Row, mode: str) -> Journey:
    """Return the route between two places (rows of `places`); `mode` is a key of `MODES`."""
    if start["town"] == end["town"]:
        across = _local(f"Go through {start['town']} to {end['name']}", start, (end["x"], end["y"]), mode)
        return Journey(_walked(across), (start["town"],))
    route = region().route(start["town"], end["town"], mode)
    steps = [
        *_walked(_local(f"From {start['name']} to the centre of {start['town']}", start, _center(start["town"]), mode)),
        *_on_roads(route),
        *_walked(_local(f"From the centre of {end['town']} to {end['name']}", end, _center(end["town"]), mode)),
    ]
    return Journey(tuple(steps), route.towns)


def total(stages: Sequence[Journey]) -> tuple[str, str]:
    """Return the length and the travel time of a route through several places, as the page shows them."""
    return length_text(sum(way.metres for way in stages)), time_text(sum(way.seconds for way in stages))


def length_text(metres: float) -> str:
    """Format a length: `650 m`, `12.4 km`."""
    return f"{round(metres, -1):.0f} m" if metres < 995 else f"{metres / 1000:.1f} km"


def time_text(seconds: float) -> str:
    """Format a time: `48 min`, `2 h 5 min`."""
    hours, minutes = divmod(max(1, round(seconds / 60)), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _on_roads(route: Route) -> list[Step]:
    steps: list[Step] = []
    before = ""
    for leg in route.legs:
        road = leg.road
        verb = "Continue on" if road.number == before else "Take"
        text = f"{verb} the {road.number} from {leg.start} to {leg.end}"
        steps.append(Step(text, road.metres, road.seconds(route.mode)))
        before = road.number
    return steps


def _local(text: str, place: sqlite3.Row, to: tuple[float, float], mode: str) -> Step:
    metres = round(1000 * _DETOUR * math.dist((place["x"], place["y"]), to))
    return Step(text, metres, 3.6 * metres / _IN_TOWN[mode])


def _walked(step: Step) -> tuple[Step, ...]:
    return (step,) if step.metres else ()


def _center(name: str) -> tuple[float, float]:
    town = region().town(name)
    return town.x, town.y
