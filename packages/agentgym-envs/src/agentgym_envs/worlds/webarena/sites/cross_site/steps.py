"""Steps on each site, and the look-ups that cross-site tasks share."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.map.finding import find
from agentgym_envs.worlds.webarena.sites.map.journeys import journey
from agentgym_envs.worlds.webarena.sites.region import MODES, Firm, Town, region
from agentgym_envs.worlds.webarena.sites.tasks import Step, choose, click, fill, go
from agentgym_envs.worlds.webarena.sites.wiki.article import town_title
from agentgym_envs.worlds.webarena.sites.wiki.tasks import facts


def site(key: str, path: str = "/") -> Step:
    """Navigate to a site."""
    return go(PLACES[key].url + path)


def on_wiki(title: str) -> list[Step]:
    """Navigate to the encyclopedia and look up a title."""
    return [site("wikipedia"), fill("searchbox", "Search Gazetteer", title, enter=True)]


def on_map(query: str) -> list[Step]:
    """Navigate to the map and search."""
    return [site("map"), fill("searchbox", "Search places", query, enter=True)]


def driving(start: str, end: str) -> list[Step]:
    """Navigate to the map and request directions by car."""
    return [
        site("map"),
        fill("textbox", "From", start),
        fill("textbox", "To", end),
        choose("Travel by", MODES["car"]),
        click("button", "Get directions"),
    ]


def in_shop(product: sqlite3.Row) -> list[Step]:
    """Search the store for a product and open it."""
    return [fill("searchbox", "Search the store", product["name"], enter=True), click("link", product["name"])]


def towns(*names: str) -> frozenset[str]:
    """Return the entities of towns."""
    return frozenset(f"town:{name}" for name in names)


def shuffled_towns(random: Random) -> list[Town]:
    """Return all towns in random order."""
    found = list(region().towns)
    random.shuffle(found)
    return found


def firm_of(town: str) -> Firm | None:
    """Return the only firm with its head office in a town, or None if there isn't exactly one."""
    firms = [firm for firm in region().firms if firm.seat == town]
    return firms[0] if len(firms) == 1 else None


def town_fact(db: sqlite3.Connection, town: str, label: str) -> str:
    """Return a fact from the infobox of a town's article."""
    return facts(db, town_title(town))[label]


def time_by_car(db: sqlite3.Connection, start: str, end: str) -> str:
    """Return the driving time between two towns as the map shows it."""
    rows = {row["name"]: row for row in db.execute("SELECT * FROM places WHERE kind = 'town'")}
    return journey(rows[start], rows[end], "car").time


def only_place(db: sqlite3.Connection, town: str, kinds: Sequence[str]) -> sqlite3.Row | None:
    """Return a place of the first kind with exactly one place in the town that a search by kind identifies, or None."""
    for kind in kinds:
        found = [one.place for one in find(db, f"{kind} in {town}").found]
        same = [row for row in found if row["kind"] == kind]
        if len(same) == 1 and sum(row["name"] == same[0]["name"] for row in found) == 1:
            return same[0]
    return None


def money(cents: int) -> str:
    """Format a price as the store does: `$1,234.50`."""
    return f"${cents / 100:,.2f}"
