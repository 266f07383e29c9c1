"""Tasks about routes through several places, and tasks that start on a place's page or with several of them in tabs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from urllib.parse import urlencode

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.map.finding import best
from agentgym_envs.worlds.webarena.sites.map.journeys import MODES, Journey, journey, total
from agentgym_envs.worlds.webarena.sites.map.task_parts import BY, get_directions, in_towns, named, shuffled, towns_of
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Step,
    Template,
    at,
    choose,
    click,
    fill,
    said,
    split_of,
    stop,
    tab,
)

_URL = PLACES["map"].url
_FOUR: Sequence[str] = ("start", "first", "second", "end")
"""The placeholders of routes with two stops."""
_MARGIN = 3_000
"""Minimum difference of two routes in metres, so that it shows in spite of rounding."""
_CLEAR = 90
"""Minimum difference of two walks in seconds."""


def route(places: Sequence[sqlite3.Row], mode: str) -> tuple[str, str]:
    """Return the length and the travel time of a route through places, as the page shows them."""
    return total(_stages(places, mode))


def _stages(places: Sequence[sqlite3.Row], mode: str) -> list[Journey]:
    return [journey(first, last, mode) for first, last in pairwise(places)]


def _trips(databases: Databases, random: Random, count: int) -> Iterator[list[sqlite3.Row]]:
    """Yield some towns of the same split."""
    by_split: dict[str, list[sqlite3.Row]] = {}
    for town in towns_of(databases["map"], random):
        by_split.setdefault(split_of(f"town:{town['name']}"), []).append(town)
    for _ in range(200):
        for towns in by_split.values():
            if len(towns) >= count:
                yield random.sample(towns, count)


def _with_stop(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the time of a route with a stop; adding up its two stages is right, too."""
    for start, middle, end in _trips(databases, random, 3):
        mode = random.choice(sorted(MODES))
        stages = _stages([start, middle, end], mode)
        time = total(stages)[1]
        if sum(round(way.seconds / 60) for way in stages) != round(sum(way.seconds for way in stages) / 60):
            continue
        values = {"start": start["name"], "end": end["name"], "stop": middle["name"], "by": BY[mode]}
        plan = [*get_directions(start["name"], end["name"], mode, middle["name"]), stop(time)]
        yield Case(values, in_towns(start["name"], middle["name"], end["name"]), said(time), plan)


def _show_stops(databases: Databases, random: Random) -> Iterator[Case]:
    for start, first, second, end in _trips(databases, random, 4):
        names = [town["name"] for town in (start, first, second, end)]
        query = {"from": names[0], "stop1": names[1], "stop2": names[2], "to": names[3], "mode": "car"}
        judged = at(
            f"{_URL}/directions?{urlencode(query)}",
            defaults={"mode": "car"},
            any_case=("from", "stop1", "stop2", "to"),
        )
        values = dict(zip(_FOUR, names, strict=True))
        plan = [*get_directions(names[0], names[3], "car", *names[1:3]), stop()]
        yield Case(values, in_towns(*names), judged, plan)


def _better_order(databases: Databases, random: Random) -> Iterator[Case]:
    """Compare the two orders of two stops."""
    for start, first, second, end in _trips(databases, random, 4):
        orders = [[start, first, second, end], [start, second, first, end]]
        short, long = sorted(orders, key=lambda order: sum(way.metres for way in _stages(order, "car")))
        gap = sum(way.metres for way in _stages(long, "car")) - sum(way.metres for way in _stages(short, "car"))
        length = route(short, "car")[0].removesuffix(" km")
        shown = [way.length.removesuffix(" km") for way in _stages(short, "car")]
        if gap < _MARGIN or f"{sum(map(float, shown)):.1f}" != length:
            continue
        names = [place["name"] for place in (start, first, second, end)]
        values = dict(zip(_FOUR, names, strict=True))
        again = [fill("textbox", "Stop 1", names[2]), fill("textbox", "Stop 2", names[1])]
        plan = [
            *get_directions(names[0], names[3], "car", *names[1:3]),
            *again,
            click("button", "Get directions"),
            stop(f"{short[1]['name']}, {length} km"),
        ]
        judged = said(length, short[1]["name"], rivals=(names[1], names[2]), terms=shown)
        yield Case(values, in_towns(*names), judged, plan)


def _to_here(row: sqlite3.Row, start: str, mode: str) -> list[Step]:
    """Get directions to a place from its page."""
    return [
        click("link", f"Directions to {row['name']}"),
        fill("textbox", "From", start),
        choose("Travel by", MODES[mode]),
        click("button", "Get directions"),
    ]


def _from_town(databases: Databases, random: Random) -> Iterator[Case]:
    """Start on the page of a place, and ask for the way to it."""
    db = databases["map"]
    towns = towns_of(db, random)
    for row in shuffled(db, random, ("museum", "hotel", "theatre", "castle", "railway station")):
        place = f"{row['name']}, {row['town']}"
        same = [town for town in towns if town["name"] != row["town"]]
        start, mode = random.choice(same), random.choice(sorted(MODES))
        meant = best(db, place)
        if meant is not None and meant["id"] == row["id"]:
            time = journey(start, row, mode).time
            values = {"start": start["name"], "by": BY[mode]}
            plan = [*_to_here(row, start["name"], mode), stop(time)]
            entities = in_towns(start["name"], row["town"])
            yield Case(values, entities, said(time), plan, start=[f"{_URL}/place/{row['id']}"])


def _nearer(databases: Databases, random: Random) -> Iterator[Case]:
    """Start with two places of a town in tabs, and compare the walks to them."""
    db = databases["map"]
    for start in shuffled(db, random, ("railway station", "university", "hospital")):
        here = [row for row in shuffled(db, random) if row["town"] == start["town"]]
        pair = here[:2]
        names = [f"{row['name']}, {row['town']}" for row in (start, *pair)]
        meant = [best(db, name) for name in names]
        if [row and row["id"] for row in meant] != [row["id"] for row in (start, *pair)]:
            continue
        walks = [journey(start, row, "foot") for row in pair]
        near = min((0, 1), key=lambda index: walks[index].seconds)
        if abs(walks[0].seconds - walks[1].seconds) > _CLEAR:
            answer = f"{pair[near]['name']}, {walks[near].time}"
            plan = [*_to_here(pair[0], names[0], "foot"), tab(1), *_to_here(pair[1], names[0], "foot"), stop(answer)]
            judged = said(pair[near]["name"], walks[near].time, rivals=(row["name"] for row in pair))
            pages = [f"{_URL}/place/{row['id']}" for row in pair]
            yield Case({"start": named(start)}, in_towns(start["town"]), judged, plan, start=pages)


TEMPLATES = (
    Template(
        "map/time-with-stop",
        ("map",),
        "How long does it take to go {{by}} from {{start}} to {{end}} by way of {{stop}}? Answer in the form "
        "2 h 5 min.",
        _with_stop,
    ),
    Template(
        "map/show-stops",
        ("map",),
        "Show me the route by car from {{start}} to {{end}} with stops in {{first}} and then in {{second}}.",
        _show_stops,
    ),
    Template(
        "map/order-of-stops",
        ("map",),
        "I drive from {{start}} to {{end}} and have to stop in {{first}} and in {{second}} on the way, in any order. "
        "Which of the two do I visit first so that the route is shorter, and how many kilometres has it?",
        _better_order,
        held_out=True,
    ),
    Template(
        "map/way-to-this-place",
        ("map",),
        "How long does it take to get {{by}} from {{start}} to this place? Answer in the form 2 h 5 min.",
        _from_town,
    ),
    Template(
        "map/nearer-of-tabs",
        ("map",),
        "To which of the two places in my tabs is the walk from {{start}} shorter, and how long does it take?",
        _nearer,
    ),
)
