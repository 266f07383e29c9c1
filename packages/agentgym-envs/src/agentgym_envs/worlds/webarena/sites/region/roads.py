"""The roads between the towns, a planar graph, and shortest paths on it."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from agentgym_envs.worlds.webarena.sites.region.land import Town

MODES = {"car": "Car", "bike": "Bicycle", "foot": "On foot"}
"""Display name of each mode of travel."""
_PACE = {"bike": 17.0, "foot": 4.8}
_SPEEDS = {"motorway": 110, "main road": 80, "country road": 60}
_BIG = 9
"""Number of largest towns that motorways connect."""


@dataclass(frozen=True, slots=True)
class Road:
    """A stretch of road between two neighboring towns, usable in both directions."""

    number: str
    """Such as `M2`, `A17` or `B143`; stretches may share a number, but lead to different neighbors of a town."""
    kind: str
    start: str
    end: str
    metres: int
    kmh: int
    """Speed of a car, km/h."""

    def seconds(self, mode: str) -> float:
        """Return the travel time of the stretch."""
        return self.metres * 3.6 / (self.kmh if mode == "car" else _PACE[mode])


@dataclass(frozen=True, slots=True)
class Leg:
    """One stretch of a route, in the direction of travel."""

    road: Road
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Route:
    """The quickest route."""

    legs: tuple[Leg, ...]
    mode: str

    @property
    def metres(self) -> int:
        """The length."""
        return sum(leg.road.metres for leg in self.legs)

    @property
    def seconds(self) -> float:
        """The travel time."""
        return sum(leg.road.seconds(self.mode) for leg in self.legs)

    @property
    def towns(self) -> tuple[str, ...]:
        """All towns on the route including both ends; empty if start and end are the same."""
        return (self.legs[0].start, *(leg.end for leg in self.legs)) if self.legs else ()


def shortest(roads: Iterable[Road], start: str, end: str, mode: str) -> Route:
    """Return the quickest route (Dijkstra).

    Raises:
        ValueError: If no road leads there, for instance because a name isn't a town's.
    """
    leaving: dict[str, list[Leg]] = defaultdict(list)
    for road in roads:
        if mode == "car" or road.kind != "motorway":
            leaving[road.start].append(Leg(road, road.start, road.end))
            leaving[road.end].append(Leg(road, road.end, road.start))
    queue: list[tuple[float, str]] = [(0.0, start)]
    came: dict[str, Leg] = {}
    best = {start: 0.0}
    while queue:
        spent, here = heapq.heappop(queue)
        if here == end:
            return Route(_backwards(came, start, end), mode)
        for leg in leaving[here]:
            total = spent + leg.road.seconds(mode)
            if total < best.get(leg.end, math.inf):
                best[leg.end] = total
                came[leg.end] = leg
                heapq.heappush(queue, (total, leg.end))
    raise ValueError(f"No road leads from {start!r} to {end!r}; ask for two names of towns.")


def _backwards(came: dict[str, Leg], start: str, end: str) -> tuple[Leg, ...]:
    legs: list[Leg] = []
    while end != start:
        legs.append(came[end])
        end = came[end].start
    return tuple(reversed(legs))


def make_roads(towns: Sequence[Town]) -> tuple[Road, ...]:
    """Connect neighbors (the Gabriel graph: planar and connected), with motorways between the largest towns."""
    plain = [_stretch(a, b, index) for index, (a, b) in enumerate(_neighbours(towns))]
    fast = _motorways(plain, towns)
    made: list[Road] = []
    for index, road in enumerate(plain, start=1):
        if (road.start, road.end) in fast:
            number = f"M{fast[road.start, road.end]}"
            made.append(Road(number, "motorway", road.start, road.end, int(road.metres * 0.94), _SPEEDS["motorway"]))
            made.append(_named(road, f"B{100 + index}", "country road"))
        elif road.kind == "main road":
            made.append(_named(road, f"A{10 + index}", "main road"))
        else:
            made.append(_named(road, f"B{100 + index}", "country road"))
    return tuple(made)


def _named(road: Road, number: str, kind: str) -> Road:
    return Road(number, kind, road.start, road.end, road.metres, _SPEEDS[kind])


def _neighbours(towns: Sequence[Town]) -> list[tuple[Town, Town]]:
    """Return the pairs of towns whose diametral circle contains no third town."""
    found: list[tuple[Town, Town]] = []
    for a, b in combinations(towns, 2):
        middle = ((a.x + b.x) / 2, (a.y + b.y) / 2)
        radius = math.dist((a.x, a.y), (b.x, b.y)) / 2
        if all(math.dist(middle, (c.x, c.y)) >= radius for c in towns if c not in (a, b)):
            found.append((a, b))
    return found


def _stretch(a: Town, b: Town, index: int) -> Road:
    winding = 1.08 + 0.03 * (index * 7 % 8)
    kind = "main road" if a.population + b.population > 17_000 else "country road"
    metres = round(1000 * math.dist((a.x, a.y), (b.x, b.y)) * winding, -2)
    return Road("", kind, a.name, b.name, int(metres), _SPEEDS[kind])


def _motorways(roads: Sequence[Road], towns: Sequence[Town]) -> dict[tuple[str, str], int]:
    """Return the motorway stretches with their number: the routes from the largest town to each of the next ones."""
    largest = sorted(towns, key=lambda town: -town.population)[:_BIG]
    found: dict[tuple[str, str], int] = {}
    for number, town in enumerate(largest[1:], start=1):
        on_way = shortest(roads, largest[0].name, town.name, "car").towns
        for a, b in pairwise(on_way):
            found.setdefault((min(a, b), max(a, b)), number)
    return found
