"""The invented region that the map shows and the encyclopaedia tells of: its land, towns, roads, people and firms.

`region()` makes it once per process from a fixed seed, in pure Python. Nothing here knows of databases or pages.
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
"""What its people call it."""


@dataclass(frozen=True, slots=True)
class Region:
    """All there is; every tuple in a fixed order."""

    towns: tuple[Town, ...]
    """By name."""
    counties: tuple[County, ...]
    rivers: tuple[River, ...]
    hills: tuple[Hill, ...]
    lakes: tuple[Lake, ...]
    coast: tuple[tuple[float, float], ...]
    """The shore from south to north, in km; the sea lies east of it."""
    roads: tuple[Road, ...]
    people: tuple[Person, ...]
    firms: tuple[Firm, ...]
    """One per brand of `names.BRANDS`."""
    buildings: tuple[Building, ...]
    events: tuple[Event, ...]
    crafts: tuple[Craft, ...]

    def town(self, name: str) -> Town:
        """The town of that name."""
        return next(town for town in self.towns if town.name == name)

    def firm(self, brand: str) -> Firm:
        """The firm behind a brand."""
        return next(firm for firm in self.firms if firm.brand == brand)

    def route(self, start: str, end: str, mode: str) -> Route:
        """The quickest way between the centres of two towns; `mode` is a key of `MODES`."""
        return shortest(self.roads, start, end, mode)


@cache
def region() -> Region:
    """The region, always the same."""
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
