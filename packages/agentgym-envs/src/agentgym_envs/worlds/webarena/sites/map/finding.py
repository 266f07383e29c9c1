"""Search by name, kind, `museums in Selby`, `cafés near Cranmouth`, or coordinates."""

from __future__ import annotations

import math
import re
import sqlite3
from dataclasses import dataclass

from agentgym_envs.worlds.webarena.sites.map.data import plain

_NEAR = re.compile(r"(.*?)\s*\b(?:near|close to|around|next to)\b\s*(.+)")
_IN = re.compile(r"(.+?)\s+in\s+(.+)")
_COORDINATES = re.compile(r"\s*(-?\d{1,3}(?:\.\d+)?)\s*[,; ]\s*(-?\d{1,3}(?:\.\d+)?)\s*")
_WORD = re.compile(r"[\w'&.]+")
_KM_PER_LAT, _KM_PER_LON = 111.2, 67.4
_MOST = 400


@dataclass(frozen=True, slots=True)
class Found:
    """A place and, in a search near another place, its distance."""

    place: sqlite3.Row
    km: float | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a search, best first."""

    found: tuple[Found, ...]
    near: sqlite3.Row | None = None
    """The reference point of the distances."""


def distance(a: sqlite3.Row, b: sqlite3.Row) -> float:
    """Return the straight-line distance between two places in km."""
    return math.dist((a["x"], a["y"]), (b["x"], b["y"]))


def coordinates(text: str) -> tuple[float, float] | None:
    """Parse latitude and longitude from a text such as `52.65, 4.84`, or return None."""
    match = _COORDINATES.fullmatch(text)
    return None if match is None else (float(match[1]), float(match[2]))


def closest(db: sqlite3.Connection, lat: float, lon: float, count: int = 8) -> list[Found]:
    """Return the places closest to coordinates."""
    squared = "((lat - ?) * ?) * ((lat - ?) * ?) + ((lon - ?) * ?) * ((lon - ?) * ?)"
    values = [lat, _KM_PER_LAT] * 2 + [lon, _KM_PER_LON] * 2
    rows = db.execute(f"SELECT *, {squared} AS far FROM places ORDER BY far, id LIMIT ?", [*values, count])
    return [Found(row, math.sqrt(row["far"])) for row in rows]


def nearby(db: sqlite3.Connection, place: sqlite3.Row, kind: str = "", count: int = 8) -> list[Found]:
    """Return the other places (of that kind) closest to a place."""
    rows = db.execute(
        "SELECT * FROM places WHERE id != :id AND (:kind = '' OR kind = :kind)"
        " ORDER BY (x - :x) * (x - :x) + (y - :y) * (y - :y), id LIMIT :count",
        {"id": place["id"], "kind": kind, "x": place["x"], "y": place["y"], "count": count},
    )
    return [Found(row, distance(row, place)) for row in rows]


def find(db: sqlite3.Connection, text: str) -> Results:
    """Return all matches, best first; for `A near B`, the matches of A by their distance from the best match of B."""
    wanted = plain(text)
    if match := _NEAR.fullmatch(wanted):
        center = best(db, match[2])
        if center is not None:
            rows = _matching(db, match[1]) if match[1] else _of_kind(db, "")
            return Results(tuple(_by_distance(rows, center)[:_MOST]), center)
    if match := _IN.fullmatch(wanted):
        town = db.execute(
            "SELECT * FROM places WHERE kind = 'town' AND lower(name) = ?", (match[2].strip(),)
        ).fetchone()
        if town is not None:
            rows = [row for row in _matching(db, match[1]) if row["town"] == town["name"]]
            return Results(tuple(map(Found, _ranked(rows, match[1]))))
    return Results(tuple(map(Found, _ranked(_matching(db, wanted), wanted)[:_MOST])))


def best(db: sqlite3.Connection, text: str) -> sqlite3.Row | None:
    """Return the most likely match of a name, or None."""
    place = coordinates(text)
    if place is not None:
        return closest(db, *place, count=1)[0].place
    wanted = plain(text)
    name, comma, town = wanted.rpartition(",")
    rows = _matching(db, wanted.replace(",", " "))
    inside = [row for row in rows if comma and plain(row["town"]) == town.strip()]
    ranked = _ranked(inside, name.strip()) if inside else _ranked(rows, wanted)
    return ranked[0] if ranked else None


def _matching(db: sqlite3.Connection, text: str) -> list[sqlite3.Row]:
    """Return the places whose name, kind or address contains every word."""
    words = [word for word in _WORD.findall(text) if word not in ("the", "a", "of")] or _WORD.findall(text)
    if not words:
        return []
    condition = " AND ".join("found_by LIKE ? ESCAPE '!'" for _ in words[:12])
    patterns = ["%" + re.sub(r"([!%_])", r"!\1", word) + "%" for word in words[:12]]
    return db.execute(f"SELECT * FROM places WHERE {condition} ORDER BY name, town, id", patterns).fetchall()


def _of_kind(db: sqlite3.Connection, kind: str) -> list[sqlite3.Row]:
    if kind:
        return db.execute("SELECT * FROM places WHERE kind = ? ORDER BY id", (kind,)).fetchall()
    return db.execute("SELECT * FROM places ORDER BY id").fetchall()


def _by_distance(rows: list[sqlite3.Row], center: sqlite3.Row) -> list[Found]:
    found = [Found(row, distance(row, center)) for row in rows if row["id"] != center["id"]]
    return sorted(found, key=lambda one: (one.km or 0.0, one.place["id"]))


def _ranked(rows: list[sqlite3.Row], wanted: str) -> list[sqlite3.Row]:
    """Rank exact names first (towns before other places), then names with this prefix, then names that contain it."""

    def rank(row: sqlite3.Row) -> tuple[bool, bool, bool, bool, str, str]:
        name = plain(row["name"])
        same = name == wanted
        return (
            not same,
            not (same and row["kind"] == "town"),
            not name.startswith(wanted),
            wanted not in name,
            name,
            row["town"],
        )

    return sorted(rows, key=rank)
