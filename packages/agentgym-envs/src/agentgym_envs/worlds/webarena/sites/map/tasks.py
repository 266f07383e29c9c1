"""The map's task templates."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations
from random import Random
from urllib.parse import urlencode

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.map import tasks_routes
from agentgym_envs.worlds.webarena.sites.map.finding import best, closest, distance, find
from agentgym_envs.worlds.webarena.sites.map.journeys import MODES, journey
from agentgym_envs.worlds.webarena.sites.map.kinds import KINDS
from agentgym_envs.worlds.webarena.sites.map.task_parts import (
    BY,
    get_directions,
    in_towns,
    named,
    names,
    open_place,
    search,
    shuffled,
    towns_of,
)
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Step,
    Template,
    at,
    back,
    click,
    said,
    stop,
)

_URL = PLACES["map"].url
_APART = 0.08
"""Minimum margin in km between the nearest and the second-nearest place, so that the answer is unambiguous."""


def _details(column: str) -> Callable[[Databases, Random], Iterator[Case]]:
    def cases(databases: Databases, random: Random) -> Iterator[Case]:
        db = databases["map"]
        # Answers have only one phone number or postcode; opening hours have several words and times.
        others = [row["hours"] for row in db.execute("SELECT DISTINCT hours FROM places")] if column == "hours" else []
        for row in shuffled(db, random):
            steps = open_place(db, row)
            if steps is not None and row[column]:
                judged = said(row[column], rivals=others)
                yield Case({"place": named(row)}, in_towns(row["town"]), judged, [*steps, stop(row[column])])

    return cases


def _travel_times(databases: Databases, random: Random) -> Iterator[Case]:
    towns = towns_of(databases["map"], random)
    pairs = list(permutations(towns, 2))
    random.shuffle(pairs)
    for start, end in pairs:
        mode = random.choice(sorted(MODES))
        time = journey(start, end, mode).time
        values = {"start": start["name"], "end": end["name"], "by": BY[mode]}
        plan = [*get_directions(start["name"], end["name"], mode), stop(time)]
        yield Case(values, in_towns(start["name"], end["name"]), said(time), plan)


def _distances_in_town(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["map"]
    for start in shuffled(db, random, ("museum", "hotel", "railway station")):
        ends = shuffled(db, random, ("theatre", "library", "park", "restaurant", "hospital"))
        for end in [row for row in ends if row["town"] == start["town"]][:1]:
            names = (f"{start['name']}, {start['town']}", f"{end['name']}, {end['town']}")
            meant = [best(db, name) for name in names]
            length = journey(start, end, "foot").length
            if [row and row["id"] for row in meant] == [start["id"], end["id"]] and length.endswith("km"):
                values = {"start": start["name"], "end": end["name"], "town": start["town"]}
                plan = [*get_directions(*names, "foot"), stop(length.removesuffix(" km"))]
                yield Case(values, in_towns(start["town"]), said(exact=length.removesuffix(" km")), plan)


def _nearest(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["map"]
    for row in shuffled(db, random, ("hotel", "railway station", "hospital", "university")):
        kind = random.choice(
            [kind for kind in ("pharmacy", "museum", "café", "restaurant", "bakery") if kind != row["kind"]]
        )
        query = f"{KINDS[kind].plural} near {row['name']}, {row['town']}"
        results = find(db, query)
        if results.near is None or results.near["id"] != row["id"]:
            continue
        first, second = results.found[:2]
        gap = distance(second.place, row) - distance(first.place, row)
        if first.place["town"] == row["town"] and gap > _APART and first.place["kind"] == second.place["kind"] == kind:
            values = {"kind": kind, "place": named(row)}
            answer = first.place["name"]
            judged = said(answer, rivals=names(db, "kind = ?", kind))
            yield Case(values, in_towns(row["town"]), judged, [search(query), stop(answer)])


def _coordinates(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["map"]
    for row in shuffled(db, random, ("museum", "theatre", "castle", "abbey", "restaurant", "pub", "school")):
        lat, lon = f"{row['lat']:.5f}", f"{row['lon']:.5f}"
        first, second = closest(db, float(lat), float(lon), 2)
        if first.place["id"] == row["id"] and (second.km or 0.0) > _APART:
            plan = [search(f"{lat}, {lon}"), stop(row["name"])]
            judged = said(row["name"], rivals=names(db, "town = ?", row["town"]))
            yield Case({"lat": lat, "lon": lon}, in_towns(row["town"]), judged, plan)


def _show_directions(databases: Databases, random: Random) -> Iterator[Case]:
    towns = towns_of(databases["map"], random)
    pairs = list(permutations(towns, 2))
    random.shuffle(pairs)
    for start, end in pairs:
        mode = random.choice(("bike", "foot"))
        query = urlencode({"from": start["name"], "to": end["name"], "mode": mode})
        judged = at(f"{_URL}/directions?{query}", any_case=("from", "to"))
        values = {"start": start["name"], "end": end["name"], "by": BY[mode]}
        plan = [*get_directions(start["name"], end["name"], mode), stop()]
        yield Case(values, in_towns(start["name"], end["name"]), judged, plan)


def _show_place(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["map"]
    for row in shuffled(db, random):
        query = f"{row['kind']} {row['street']} in {row['town']}"
        found = [one.place["id"] for one in find(db, query).found]
        if found == [row["id"]]:
            values = {"kind": row["kind"], "street": row["street"], "town": row["town"]}
            plan = [search(query), click("link", row["name"]), stop()]
            yield Case(values, in_towns(row["town"]), at(f"{_URL}/place/{row['id']}"), plan)


def _on_the_way(databases: Databases, random: Random) -> Iterator[Case]:
    towns = towns_of(databases["map"], random)
    pairs = list(combinations(towns, 2))
    random.shuffle(pairs)
    for start, end in pairs:
        between = journey(start, end, "car").towns[1:-1]
        if 2 <= len(between) <= 4:
            values = {"start": start["name"], "end": end["name"]}
            judged = said(*between, rivals={town["name"] for town in towns} - {start["name"], end["name"]})
            plan = [*get_directions(start["name"], end["name"], "car"), stop(", ".join(between))]
            yield Case(values, in_towns(start["name"], end["name"]), judged, plan)


def _accessible(databases: Databases, random: Random) -> Iterator[Case]:
    """Find the only fully accessible place of a kind in a town, which requires opening each."""
    db = databases["map"]
    for town in towns_of(db, random):
        for kind in random.sample(("restaurant", "café", "pub", "pharmacy", "museum"), 5):
            rows = _in_town(db, town["name"], kind)
            fit = [row for row in rows if row["wheelchair"] == "yes"]
            if len(rows) > 1 and len(fit) == 1:
                plan = [*_look_at_each(town["name"], kind, rows), stop(fit[0]["name"])]
                values = {"kind": kind, "kinds": KINDS[kind].plural, "town": town["name"]}
                yield Case(values, in_towns(town["name"]), said(exact=fit[0]["name"]), plan)
                break


def _most_stars(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["map"]
    for town in towns_of(db, random):
        rows = sorted(_in_town(db, town["name"], "hotel"), key=lambda row: -row["stars"])
        if len(rows) > 1 and rows[0]["stars"] > rows[1]["stars"]:
            plan = [*_look_at_each(town["name"], "hotel", rows), stop(f"{rows[0]['name']}, {rows[0]['phone']}")]
            judged = said(rows[0]["name"], rows[0]["phone"], rivals=(row["name"] for row in rows))
            yield Case({"town": town["name"]}, in_towns(town["name"]), judged, plan)


def _two_stages(databases: Databases, random: Random) -> Iterator[Case]:
    towns = towns_of(databases["map"], random)
    for _ in range(2000):
        a, b, c = random.sample(towns, 3)
        shown = [journey(*ends, "car").length.removesuffix(" km") for ends in ((a, b), (b, c))]
        total = f"{sum(map(float, shown)):.1f}"
        if total != tasks_routes.route([a, b, c], "car")[0].removesuffix(" km"):
            continue  # a route with a stop shows another total, as it rounds once
        values = {"a": a["name"], "b": b["name"], "c": c["name"]}
        plan = [
            *get_directions(a["name"], b["name"], "car"),
            *get_directions(b["name"], c["name"], "car"),
            stop(f"{total} km"),
        ]
        yield Case(values, in_towns(a["name"], b["name"], c["name"]), said(total, terms=shown), plan)


def _in_town(db: sqlite3.Connection, town: str, kind: str) -> list[sqlite3.Row]:
    return db.execute("SELECT * FROM places WHERE town = ? AND kind = ? ORDER BY name", (town, kind)).fetchall()


def _look_at_each(town: str, kind: str, rows: Sequence[sqlite3.Row]) -> list[Step]:
    steps = [search(f"{KINDS[kind].plural} in {town}")]
    for row in rows:
        steps += [click("link", row["name"]), back()]
    return steps[:-1]


TEMPLATES = (
    Template("map/phone", ("map",), "What is the phone number of {{place}}?", _details("phone")),
    Template("map/hours", ("map",), "When is {{place}} open? Answer as Wayfinder writes it.", _details("hours")),
    Template("map/postcode", ("map",), "I want to write a letter to {{place}}: which postcode?", _details("postcode")),
    Template(
        "map/travel-time",
        ("map",),
        "How long does it take to go {{by}} from {{start}} to {{end}}? Answer in the form 2 h 5 min.",
        _travel_times,
    ),
    Template(
        "map/walk-in-town",
        ("map",),
        "How many kilometres is the walk from {{start}} to {{end}}, both in {{town}}? Answer with the number alone, as "
        "directions show it.",
        _distances_in_town,
    ),
    Template("map/nearest", ("map",), "Which {{kind}} is the nearest to {{place}}? Give its name.", _nearest),
    Template("map/coordinates", ("map",), "What is the name of the place at {{lat}}, {{lon}}?", _coordinates),
    Template(
        "map/show-directions", ("map",), "Show me the directions from {{start}} to {{end}} {{by}}.", _show_directions
    ),
    Template("map/show-place", ("map",), "Open the page of the {{kind}} on {{street}} in {{town}}.", _show_place),
    Template(
        "map/on-the-way",
        ("map",),
        "Through which towns does one drive on the way from {{start}} to {{end}}? List those in between.",
        _on_the_way,
    ),
    Template(
        "map/accessible",
        ("map",),
        "Of the {{kinds}} in {{town}}, just one has wheelchair access without limits. Answer with its name only.",
        _accessible,
    ),
    Template(
        "map/most-stars",
        ("map",),
        "Find the hotel with the most stars in {{town}}; give its name and phone number.",
        _most_stars,
        held_out=True,
    ),
    Template(
        "map/two-stages",
        ("map",),
        "I drive from {{a}} to {{b}} and from there to {{c}}. How many kilometres is that in all, adding up the two "
        "distances shown?",
        _two_stages,
        held_out=True,
    ),
    *tasks_routes.TEMPLATES,
)
