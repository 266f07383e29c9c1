"""The land: a coast in the east, hills in the west, rivers between them, lakes, counties, and the towns' positions.

Positions are points on a plane, in km east (x) and north (y) of the region's south-western corner.
"""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from agentgym_envs.worlds.webarena.sites.names import TOWNS

Point = tuple[float, float]
WIDTH, HEIGHT = 220.0, 170.0
"""Extent in km, including the strip of sea."""
_APART = 11.5
_FROM_WATER = 4.0
_SEATS = 8
_RIVERS = ("Cran", "Glass", "Pine", "Otter", "Amber", "Grey")
_MOUTHS = {
    "Cran": "Cranmouth",
    "Glass": "Tidewell",
    "Pine": "Pinemouth",
    "Otter": "Beckhaven",
    "Amber": "Saltash",
    "Grey": "Greymouth",
}
_ON_RIVER = {
    "Cran": ("Coldbrook", "Kingsferry", "Netherby"),
    "Glass": ("Glassford", "Millbrook", "Willowby"),
    "Pine": ("Stonebeck", "Ironbridge", "Dalegate"),
    "Otter": ("Otterbourne", "Wychford", "Selby"),
    "Amber": ("Amberford", "Valebrook", "Bridgeness"),
    "Grey": ("Oakhampton", "Thornbury", "Hollowell"),
}
_ON_COAST = "Fairhaven Hartsea Cliffend Whitcliff Sandwell Eastmarch Saltash Linden".split()
_HILLS = {
    "Copper Hill": "Copperhill",
    "Cald Tor": "Caldmoor",
    "Highmoor Beacon": "Highmoor",
    "Wind Fell": "Windermoor",
    "Rose Fell": "Rosefell",
    "Raven Crag": "Ravensworth",
    "Heath Pike": "Heathcote",
    "Bracken Law": "Brackenfold",
    "Harrow Down": "Harrowdene",
    "Winter Top": "Winterset",
    "Yarrow Edge": "Yarrowdale",
    "Quarry Knott": "Quarrington",
}
_LAKES = {
    "Long Mere": "Longmere",
    "Barrow Mere": "Barrowmere",
    "Swan Mere": "Swanmere",
    "Wood Mere": "Woodmere",
    "Hurst Water": "Merehurst",
    "Black Water": "Blackwater",
}
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_COUNTY_NAMES = "Amberside Cranvale Eastshore Greyfell Highmarch Midland Ottershire Southmere Westfold Pinewold".split()


@dataclass(frozen=True, slots=True)
class Town:
    """A town."""

    name: str
    county: str
    x: float
    y: float
    population: int
    """At the census of 2021; unique among towns."""
    founded: int
    """Year of the first mention or the charter."""
    elevation: int
    """Meters above sea level."""
    river: str
    """The river through the town, or an empty string."""
    coastal: bool
    lake: str
    """The lake next to the town, or an empty string."""
    hill: str
    """The hill above the town, or an empty string."""
    market_day: str
    postcode: str
    """The first part of its postcodes, unique: `CR1`."""


@dataclass(frozen=True, slots=True)
class County:
    """A county; the seat is one of its towns."""

    name: str
    seat: str
    founded: int


@dataclass(frozen=True, slots=True)
class River:
    """A river from its source to the sea."""

    name: str
    points: tuple[Point, ...]
    length: int
    """Kilometers."""
    mouth: str
    """The town where it reaches the sea."""
    towns: tuple[str, ...]
    """From the source to the mouth, whose town is last."""


@dataclass(frozen=True, slots=True)
class Hill:
    """A hill near a town."""

    name: str
    x: float
    y: float
    height: int
    """Meters."""
    town: str


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake near a town."""

    name: str
    x: float
    y: float
    area: float
    """Square kilometers."""
    depth: int
    """Maximum depth in meters."""
    town: str


@dataclass(frozen=True, slots=True)
class Land:
    """The result of `make_land`."""

    towns: tuple[Town, ...]
    counties: tuple[County, ...]
    rivers: tuple[River, ...]
    hills: tuple[Hill, ...]
    lakes: tuple[Lake, ...]
    coast: tuple[Point, ...]


def degrees(x: float, y: float) -> Point:
    """Convert a point to latitude and longitude, to five digits (about a meter)."""
    return round(52.1 + y / 111.2, 5), round(4.2 + x / 67.4, 5)


def shore(y: float) -> float:
    """Return the x coordinate of the coast at y."""
    return 193 + 8 * math.sin(y / 19) + 5 * math.sin(y / 7.3 + 1)


def make_land(random: Random) -> Land:
    """Generate the land."""
    rivers = _rivers(random)
    at = _places(random, rivers)
    seats = _spread(at)
    county_of = {name: min(seats, key=lambda seat: math.dist(at[seat], at[name])) for name in at}
    names = dict(zip(seats, random.sample(_COUNTY_NAMES, len(seats)), strict=True))
    hills = _by_town(_HILLS)
    lakes = _by_town(_LAKES)
    on_river = {town: river.name for river in rivers for town in river.towns}
    populations = _populations(random, seats)
    towns = tuple(
        Town(
            name=name,
            county=names[county_of[name]],
            x=at[name][0],
            y=at[name][1],
            population=populations[name],
            founded=random.randint(870, 1690),
            elevation=_elevation(random, at[name], name in hills),
            river=on_river.get(name, ""),
            coastal=shore(at[name][1]) - at[name][0] < 4.5,
            lake=lakes.get(name, ""),
            hill=hills.get(name, ""),
            market_day=random.choice(_DAYS),
            postcode=name[:2].upper() + str(10 + index),
        )
        for index, name in enumerate(sorted(at))
    )
    counties = tuple(County(names[seat], seat, random.randint(1130, 1540)) for seat in seats)
    return Land(
        towns=towns,
        counties=tuple(sorted(counties, key=lambda county: county.name)),
        rivers=rivers,
        hills=tuple(
            Hill(hill, *_offset(random, at[town], 3.2), height=random.randint(318, 962), town=town)
            for hill, town in _HILLS.items()
        ),
        lakes=tuple(
            Lake(lake, *_offset(random, at[town], 2.4), round(random.uniform(1.6, 19), 1), random.randint(9, 74), town)
            for lake, town in _LAKES.items()
        ),
        coast=tuple((round(shore(y), 2), float(y)) for y in range(0, int(HEIGHT) + 1, 2)),
    )


def _rivers(random: Random) -> tuple[River, ...]:
    made: list[River] = []
    for index, name in enumerate(_RIVERS):
        mouth_y = 16.0 + 27.5 * index
        mouth = (shore(mouth_y), mouth_y)
        source = (random.uniform(14, 60), mouth_y + random.uniform(-7, 7))
        wave = random.uniform(0, 6)

        def bend(share: float, wave: float = wave, source: Point = source, mouth: Point = mouth) -> Point:
            swing = 5.2 * math.sin(math.pi * share) * math.sin(9 * share + wave)
            x = source[0] + share * (mouth[0] - source[0])
            return round(x, 2), round(source[1] + share * (mouth[1] - source[1]) + swing, 2)

        points = tuple(bend(step / 40) for step in range(41))
        length = sum(math.dist(a, b) for a, b in pairwise(points))
        towns = (*_ON_RIVER[name], _MOUTHS[name])
        made.append(River(name, points, round(1.17 * length), _MOUTHS[name], towns))
    return tuple(made)


def _places(random: Random, rivers: Sequence[River]) -> dict[str, Point]:
    """Place each town on its river, on the coast, or anywhere free."""
    at: dict[str, Point] = {}
    for river in rivers:
        for number, town in enumerate(river.towns, start=1):
            x, y = river.points[int(40 * number / len(river.towns)) - random.randint(0, 3) * (number < 4)]
            at[town] = (round(x - 0.8, 2), round(y, 2)) if number == len(river.towns) else (x, y)
    hilly = set(_HILLS.values())
    water = [point for river in rivers for point in river.points]
    for name in TOWNS:
        if name in at:
            continue
        if name in _ON_COAST:
            at[name] = _free(at, water, lambda: _on_coast(random))
        else:
            west, east = (8, 120) if name in hilly else (8, 205)
            at[name] = _free(at, water, lambda west=west, east=east: _inland(random, west, east))
    return at


def _on_coast(random: Random) -> Point:
    y = random.uniform(4, HEIGHT - 4)
    return round(shore(y) - 1.2, 2), round(y, 2)


def _inland(random: Random, west: float, east: float) -> Point:
    y = random.uniform(6, HEIGHT - 6)
    return round(random.uniform(west, min(east, shore(y) - 9)), 2), round(y, 2)


def _free(taken: dict[str, Point], water: Sequence[Point], draw: Callable[[], Point]) -> Point:
    """Draw a point away from rivers and other towns; the minimum distance to towns shrinks with each failed draw."""
    apart = _APART
    while True:
        point = draw()
        dry = all(math.dist(point, other) >= _FROM_WATER for other in water)
        if dry and all(math.dist(point, other) >= apart for other in taken.values()):
            return point
        apart *= 0.998


def _spread(at: dict[str, Point]) -> list[str]:
    """Choose the county seats: each as far as possible from the previous ones."""
    seats = [min(sorted(at), key=lambda name: math.dist(at[name], (WIDTH / 2, HEIGHT / 2)))]
    while len(seats) < _SEATS:
        seats.append(max(sorted(at), key=lambda name: min(math.dist(at[name], at[seat]) for seat in seats)))
    return seats


def _populations(random: Random, seats: Sequence[str]) -> dict[str, int]:
    others = [name for name in TOWNS if name not in seats]
    random.shuffle(others)
    ranked = [*seats[:2], *others[:2], *seats[2:5], *others[2:6], *seats[5:], *others[6:]]
    found: dict[str, int] = {}
    for rank, name in enumerate(ranked, start=1):
        found[name] = int(196_000 / rank**0.93 * random.uniform(0.985, 1.015)) - rank
    return found


def _elevation(random: Random, point: Point, hilly: bool) -> int:
    inland = shore(point[1]) - point[0]
    return int(3 + 1.15 * max(0.0, inland) + random.uniform(0, 24) + 70 * hilly)


def _by_town(named: dict[str, str]) -> dict[str, str]:
    return {town: name for name, town in named.items()}


def _offset(random: Random, point: Point, away: float) -> Point:
    angle = random.uniform(0.6, 5.6)
    return round(point[0] + away * math.cos(angle), 2), round(point[1] + away * math.sin(angle), 2)
