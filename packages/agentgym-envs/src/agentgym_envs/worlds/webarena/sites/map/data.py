"""Fills the map's database: streets in every town, and places along them."""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

import json
import math
import sqlite3
import unicodedata
from collections.abc import Iterator
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.map.kinds import KINDS, Kind
from agentgym_envs.worlds.webarena.sites.region import Building, Region, Town, degrees, region

_STREETS = (
    "High Street|Market Street|Mill Lane|Station Road|Church Row|Bridge Street|Orchard Road|Tanner Street|Weir Lane|"
    "Castle Street|Lantern Row|Gull Walk|Smithy Lane|Cooper Street|Alder Avenue|Quay Street|Hill Rise|Chapel Lane|"
    "Foundry Road|Elm Grove|Weaver Street|Well Lane|Granary Street|Ropewalk|Juniper Road|School Lane|North Gate|"
    "South Parade|Park Road|Saddler Row"
).split("|")
_UNIVERSITIES = 7
_LETTERS = "ABDEFHJLNPRSTUWX"
_SOME_UNLISTED = ("café", "pub", "bookshop")
"""Kinds of places of which one in eight has no phone number."""
_WHEELCHAIR = ("yes", "yes", "limited", "no")
_KIND_OF = {"railway viaduct": "viaduct"}
Street = tuple[str, list[tuple[float, float]]]


def fill(db: sqlite3.Connection, random: Random) -> None:
    """Write all places and streets."""
    land = region()
    largest = [town.name for town in sorted(land.towns, key=lambda town: -town.population)]
    rows: list[dict[str, Any]] = []
    for index, town in enumerate(land.towns):
        streets = _streets(random, town)
        db.executemany(
            "INSERT INTO streets (town, name, points) VALUES (?, ?, ?)",
            [(town.name, name, json.dumps(points, separators=(",", ":"))) for name, points in streets],
        )
        rows.append(_town(town))
        rows += _places(random, land, town, streets, rank=largest.index(town.name), area=1200 + 7 * index)
    rows += _nature(land)
    db.executemany(
        "INSERT INTO places (name, kind, town, street, number, postcode, x, y, lat, lon, phone, hours, website,"
        " wheelchair, stars, note, found_by) VALUES (:name, :kind, :town, :street, :number, :postcode, :x, :y, :lat,"
        " :lon, :phone, :hours, :website, :wheelchair, :stars, :note, :found_by)",
        rows,
    )


def plain(text: str) -> str:
    """Convert to lower case without accents, the form that search compares."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def radius(town: Town) -> float:
    """Return the radius of the street grid around the center, in km."""
    return min(2.4, 0.5 + 0.75 * math.sqrt(town.population / 40_000))


def _row(name: str, kind: str, town: Town, at: tuple[float, float], **more: Any) -> dict[str, Any]:
    x, y = round(at[0], 4), round(at[1], 4)
    lat, lon = degrees(x, y)
    row: dict[str, Any] = {"name": name, "kind": kind, "town": town.name, "x": x, "y": y, "lat": lat, "lon": lon}
    row |= dict.fromkeys(("street", "postcode", "phone", "hours", "website", "wheelchair", "note"), "")
    row |= {"number": None, "stars": None} | more
    words = (name, kind, KINDS[kind].plural, row["street"], town.name, row["postcode"])
    return row | {"found_by": plain(" ".join(words))}


def _town(town: Town) -> dict[str, Any]:
    note = f"{town.population:,} inhabitants, in {town.county}"
    return _row(town.name, "town", town, (town.x, town.y), postcode=town.postcode, note=note)


def _nature(land: Region) -> Iterator[dict[str, Any]]:
    for hill in land.hills:
        note = f"{hill.height} m, near {hill.town}"
        yield _row(hill.name, "hill", land.town(hill.town), (hill.x, hill.y), note=note)
    for lake in land.lakes:
        note = f"{lake.area} km², near {lake.town}"
        yield _row(lake.name, "lake", land.town(lake.town), (lake.x, lake.y), note=note)


def _streets(random: Random, town: Town) -> list[Street]:
    """Generate a curved grid, randomly rotated and clipped to the town's circle."""
    reach = radius(town)
    across = 3 + min(4, round(2.2 * reach))
    turn, p, q = random.uniform(0, 1.5), random.uniform(0, 6), random.uniform(0, 6)
    names = random.sample(_STREETS, 2 * across)
    found: list[Street] = []
    for index, name in enumerate(names):
        side = -reach + (2 * reach) * (index // 2 + 0.5) / across
        half = math.sqrt(reach**2 - side**2) * random.uniform(0.8, 1.05)
        points: list[tuple[float, float]] = []
        for step in range(13):
            along = -half + 2 * half * step / 12
            u, v = (side, along) if index % 2 else (along, side)
            u, v = u + 0.13 * reach * math.sin(2.1 * v / reach + p), v + 0.13 * reach * math.sin(1.9 * u / reach + q)
            x = town.x + u * math.cos(turn) - v * math.sin(turn)
            y = town.y + u * math.sin(turn) + v * math.cos(turn)
            points.append((round(x, 4), round(y, 4)))
        found.append((name, points))
    return found


def _places(
    random: Random, land: Region, town: Town, streets: list[Street], *, rank: int, area: int
) -> Iterator[dict[str, Any]]:
    """Generate the places of one town; the largest towns (by rank) have the most."""
    taken: set[tuple[str, int]] = set()
    names: set[str] = set()
    buildings = [building for building in land.buildings if building.town == town.name]
    there = {_kind(building) for building in buildings}
    for building in buildings:
        names.add(building.name)
        street, number, at = _address(random, streets, taken)
        yield _full(random, town, building.name, KINDS[_kind(building)], (street, number, at), area)
    for kind in KINDS.values():
        for _ in range(0 if kind.name in there else _count(random, kind, rank)):
            street, number, at = _address(random, streets, taken)
            choices = [name.format(town=town.name, street=street) for name in kind.names]
            free = [name for name in choices if name not in names]
            if free:
                name = random.choice(free)
                names.add(name)
                yield _full(random, town, name, kind, (street, number, at), area)


def _kind(building: Building) -> str:
    return _KIND_OF.get(building.kind, building.kind)


def _count(random: Random, kind: Kind, rank: int) -> int:
    """Return the number of places of a kind, closer to the maximum in larger towns."""
    if kind.name == "university":
        return int(rank < _UNIVERSITIES)
    if kind.name == "hospital":
        return int(rank < 30)
    if kind.least == kind.most:
        return kind.least
    share = 0.95 - rank / 90
    return kind.least + sum(random.random() < share for _ in range(kind.most - kind.least))


def _address(
    random: Random, streets: list[Street], taken: set[tuple[str, int]]
) -> tuple[str, int, tuple[float, float]]:
    """Draw an unused address: street, number, and position, a little off the street."""
    while True:
        street, points = random.choice(streets)
        along = random.uniform(0.03, 0.97)
        number = 2 * int(1 + 58 * along) - random.randint(0, 1)
        if (street, number // 4) in taken:
            continue
        taken.add((street, number // 4))
        step, share = divmod(along * (len(points) - 1), 1)
        (x0, y0), (x1, y1) = points[int(step)], points[int(step) + 1]
        length = math.dist((x0, y0), (x1, y1))
        aside = (0.024 if number % 2 else -0.024) / length
        x = x0 + share * (x1 - x0) - aside * (y1 - y0)
        y = y0 + share * (y1 - y0) + aside * (x1 - x0)
        return street, number, (x, y)


def _full(
    random: Random,
    town: Town,
    name: str,
    kind: Kind,
    address: tuple[str, int, tuple[float, float]],
    area: int,
) -> dict[str, Any]:
    street, number, at = address
    open_air = kind.name in ("park", "bridge", "viaduct")
    host = "".join(letter if letter.isalnum() else "-" for letter in plain(name).replace("'", "").replace(".", ""))
    host = "-".join(filter(None, host.split("-")))
    where = "" if plain(town.name) in host else f"-{plain(town.name)}"
    return _row(
        name,
        kind.name,
        town,
        at,
        street=street,
        number=None if open_air else number,
        postcode=f"{town.postcode} {random.randint(1, 9)}{random.choice(_LETTERS)}{random.choice(_LETTERS)}",
        phone="" if open_air else _phone(random, kind, area),
        hours=random.choice(kind.hours),
        website="" if open_air else f"www.{host}{where}.example",
        wheelchair=random.choice(_WHEELCHAIR),
        stars=random.randint(2, 5) if kind.name == "hotel" else None,
    )


def _phone(random: Random, kind: Kind, area: int) -> str:
    digits = random.randint(200_000, 989_999)
    return "" if kind.name in _SOME_UNLISTED and digits % 8 == 0 else f"0{area} {digits}"
