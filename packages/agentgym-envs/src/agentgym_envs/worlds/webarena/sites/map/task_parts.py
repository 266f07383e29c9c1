"""Building blocks of the map's tasks: queries and navigation steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from random import Random

from agentgym_envs.worlds.webarena.sites.map.finding import find
from agentgym_envs.worlds.webarena.sites.map.journeys import MODES
from agentgym_envs.worlds.webarena.sites.tasks import Step, choose, click, fill

BY = {"car": "by car", "bike": "by bicycle", "foot": "on foot"}
"""Words for the modes of travel."""
VISITED = (
    "café",
    "restaurant",
    "pub",
    "hotel",
    "museum",
    "pharmacy",
    "library",
    "hospital",
    "bookshop",
    "post office",
)
"""Kinds of places that tasks ask for."""


def search(text: str) -> Step:
    """Type into the map's search box."""
    return fill("searchbox", "Search places", text, enter=True)


def get_directions(start: str, end: str, mode: str, *stops: str) -> list[Step]:
    """Fill in the form for directions, on the start page or the page of directions; it has a field for a first stop."""
    further = [
        step
        for number, stop in enumerate(stops[1:], start=2)
        for step in (click("button", "Get directions"), fill("textbox", f"Stop {number}", stop))
    ]
    return [
        fill("textbox", "From", start),
        *(fill("textbox", "Stop 1", stop) for stop in stops[:1]),
        *further,
        fill("textbox", "To", end),
        choose("Travel by", MODES[mode]),
        click("button", "Get directions"),
    ]


def towns_of(db: sqlite3.Connection, random: Random) -> list[sqlite3.Row]:
    """Return all towns in random order."""
    rows = db.execute("SELECT * FROM places WHERE kind = 'town' ORDER BY name").fetchall()
    random.shuffle(rows)
    return rows


def shuffled(db: sqlite3.Connection, random: Random, kinds: Sequence[str] = VISITED) -> list[sqlite3.Row]:
    """Return all places of some kinds in random order."""
    marks = ", ".join("?" * len(kinds))
    rows = db.execute(f"SELECT * FROM places WHERE kind IN ({marks}) ORDER BY id", kinds).fetchall()
    random.shuffle(rows)
    return rows


def in_towns(*names: str) -> frozenset[str]:
    """Return the entities of a case: the towns that it is about."""
    return frozenset(f"town:{name}" for name in names)


def named(row: sqlite3.Row) -> str:
    """Return a place's description; omits the town if the name contains it."""
    return row["name"] if row["town"] in row["name"] else f"{row['name']} in {row['town']}"


def open_place(db: sqlite3.Connection, row: sqlite3.Row) -> list[Step] | None:
    """Return the steps that search for a place and open it, or None if the search doesn't identify it."""
    query = f"{row['name']} in {row['town']}"
    found = find(db, query).found
    same = [one for one in found if one.place["name"] == row["name"]]
    return [search(query), click("link", row["name"])] if len(same) == 1 else None


def names(db: sqlite3.Connection, where: str, *values: str) -> list[str]:
    """Return the names of all places that satisfy a condition."""
    return [row["name"] for row in db.execute(f"SELECT DISTINCT name FROM places WHERE {where}", values)]
