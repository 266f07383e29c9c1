"""Distance and direction between coordinates on a sphere."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

EARTH_KM = 6371.0088
_GRID = 2**20
"""Points are rounded to a grid of 6 m, so that distances are compared as integers, identically on every machine."""
_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")


def nearest_before(places: list[tuple[float, float]]) -> list[int | None]:
    """Return the index of the nearest earlier place in the list for each (latitude, longitude) in degrees.

    It is None for the first place. Of equally near places the earlier one is used.
    """
    points = np.array([_point(*place) for place in places], dtype=np.int64).reshape(-1, 3)
    nearest: list[int | None] = [None] * min(1, len(points))
    for i in range(1, len(points)):
        nearest.append(int(np.argmin(_squares(points[:i], points[i]))))
    return nearest


def kilometres(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the great-circle distance between two places in kilometres."""
    chord = math.dist(_point(*one), _point(*other)) / _GRID
    return 2 * EARTH_KM * math.asin(min(1.0, chord / 2))


def direction(start: tuple[float, float], goal: tuple[float, float]) -> str:
    """Return the initial direction, one of eight, from `start` to `goal`."""
    (lat1, lon1), (lat2, lon2) = start, goal
    a, b, turn = math.radians(lat1), math.radians(lat2), math.radians(lon2 - lon1)
    east = math.sin(turn) * math.cos(b)
    north = math.cos(a) * math.sin(b) - math.sin(a) * math.cos(b) * math.cos(turn)
    return _WINDS[round(math.degrees(math.atan2(east, north)) / 45) % 8]


def _point(latitude: float, longitude: float) -> tuple[int, int, int]:
    a, b = math.radians(latitude), math.radians(longitude)
    x, y, z = math.cos(a) * math.cos(b), math.cos(a) * math.sin(b), math.sin(a)
    return round(x * _GRID), round(y * _GRID), round(z * _GRID)


def _squares(points: NDArray[np.int64], point: NDArray[np.int64]) -> NDArray[np.int64]:
    apart = points - point
    return (apart * apart).sum(axis=1)
