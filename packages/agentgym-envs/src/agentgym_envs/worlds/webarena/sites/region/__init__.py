"""The invented region behind the map and the encyclopedia: its land, towns, roads, people and firms.

`region()` generates it once per process from a fixed seed, in pure Python. It does not depend on databases or pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from agentgym_envs.worlds.webarena.sites.region.land import County, Hill, Lake, River, Town, degrees, make_land
from agentgym_envs.worlds.webarena.sites.region.roads import MODES, Road, Route, make_roads, shortest
from agentgym_envs.worlds.webarena.sites.region.society import Building, Craft, Event, Firm, Person, make_society

__all__ = [
    "MODES",
    "NAME",
    "Building",
    "County",
    "Craft",
    "Event",
    "Firm",
    "Hill",
    "Lake",
    "Person",
    "Region",
    "River",
    "Road",
    "Route",
    "Town",
    "degrees",
    "region",
    "shortest",
]

NAME = "Harrowland"
"""The region's name."""


@dataclass(frozen=True, slots=True)
class Region:
    """The whole region; every tuple has a fixed order."""

    towns: tuple[Town, ...]
    """Sorted by name."""
    counties: tuple[County, ...]
    rivers: tuple[River, ...]
    hills: tuple[Hill, ...]
    lakes: tuple[Lake, ...]
    coast: tuple[tuple[float, float], ...]
    """The coastline from south to north, in km; the sea is east of it."""
    roads: tuple[Road, ...]
    people: tuple[Person, ...]
    firms: tuple[Firm, ...]
    """One per brand of `names.BRANDS`."""
    buildings: tuple[Building, ...]
    events: tuple[Event, ...]
    crafts: tuple[Craft, ...]

    def town(self, name: str) -> Town:
        """Return the town of that name."""
        return next(town for town in self.towns if town.name == name)

    def firm(self, brand: str) -> Firm:
        """Return the firm behind a brand."""
        return next(firm for firm in self.firms if firm.brand == brand)

    def route(self, start: str, end: str, mode: str) -> Route:
        """Return the quickest route between the centers of two towns; `mode` is a key of `MODES`."""
        return shortest(self.roads, start, end, mode)


@cache
def region() -> Region:
    """Return the region, which is always the same."""
    random = Random("sites/region")
    land = make_land(random)
    society = make_society(random, land.towns)
    return Region(
        towns=land.towns,
        counties=land.counties,
        rivers=land.rivers,
        hills=land.hills,
        lakes=land.lakes,
        coast=land.coast,
        roads=make_roads(land.towns),
        people=society.people,
        firms=society.firms,
        buildings=society.buildings,
        events=society.events,
        crafts=society.crafts,
    )
