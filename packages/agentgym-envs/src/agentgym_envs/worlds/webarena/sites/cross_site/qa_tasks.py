"""Questions whose answer requires several sites."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from agentgym_envs.worlds.webarena.sites.cross_site.steps import (
    driving,
    firm_of,
    in_shop,
    money,
    on_map,
    on_wiki,
    only_place,
    shuffled_towns,
    site,
    time_by_car,
    town_fact,
    towns,
)
from agentgym_envs.worlds.webarena.sites.region import region
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Template,
    choose,
    click,
    fill,
    said,
    split_of,
    stop,
)
from agentgym_envs.worlds.webarena.sites.wiki.article import number, town_title
from agentgym_envs.worlds.webarena.sites.wiki.tasks import mayors

_SOLD = "SELECT *, coalesce(sale_price, price) AS cost FROM products WHERE active AND name GLOB '* *' ORDER BY id"
_KINDS = ("hospital", "library", "railway station", "cinema", "police station", "post office", "university")


def _products(db: sqlite3.Connection, random: Random) -> list[sqlite3.Row]:
    rows = db.execute(_SOLD).fetchall()
    random.shuffle(rows)
    return rows


def _drive_from_maker(databases: Databases, random: Random) -> Iterator[Case]:
    ends = [town.name for town in region().towns]
    for product in _products(databases["shop"], random)[:1500]:
        firm, end = region().firm(product["brand"]), random.choice(ends)
        if end != firm.seat:
            time = time_by_car(databases["map"], firm.seat, end)
            plan = [*in_shop(product), *on_wiki(firm.name), *driving(firm.seat, end), stop(time)]
            entities = towns(end) | {f"product:{product['name']}", f"brand:{firm.brand}"}
            yield Case({"product": product["name"], "end": end}, entities, said(time), plan)


def _founder_of_maker(databases: Databases, random: Random) -> Iterator[Case]:
    for product in _products(databases["shop"], random)[:800]:
        firm = region().firm(product["brand"])
        answer = f"{firm.founder}, {firm.founded}"
        judged = said(firm.founder, str(firm.founded), rivals=(firm.founder for firm in region().firms))
        plan = [*in_shop(product), *on_wiki(firm.name), stop(answer)]
        entities = frozenset({f"product:{product['name']}", f"brand:{firm.brand}"})
        yield Case({"product": product["name"]}, entities, judged, plan)


def _order_to_town(databases: Databases, random: Random) -> Iterator[Case]:
    rows = databases["shop"].execute("SELECT id, town FROM orders ORDER BY id").fetchall()
    random.shuffle(rows)
    people = {town.name: town.population for town in region().towns}
    for row in [row for row in rows if row["town"] in people]:
        plan = [
            click("link", "Orders"),
            fill("textbox", "Order number", str(row["id"]), enter=True),
            *on_wiki(town_title(row["town"])),
            stop(number(people[row["town"]])),
        ]
        entities = towns(row["town"]) | {f"order:{row['id']}"}
        yield Case({"order": row["id"]}, entities, said(number(people[row["town"]])), plan)


def _order_to_place(databases: Databases, random: Random) -> Iterator[Case]:
    rows = databases["shop"].execute("SELECT id, town FROM orders ORDER BY id").fetchall()
    random.shuffle(rows)
    for row in rows[:900]:
        place = only_place(databases["map"], row["town"], random.sample(_KINDS, len(_KINDS)))
        if place is not None and place["phone"]:
            plan = [
                click("link", "Orders"),
                fill("textbox", "Order number", str(row["id"]), enter=True),
                *on_map(f"{place['kind']} in {row['town']}"),
                click("link", place["name"]),
                stop(place["phone"]),
            ]
            entities = towns(row["town"]) | {f"order:{row['id']}"}
            yield Case({"order": row["id"], "kind": place["kind"]}, entities, said(place["phone"]), plan)


def _commute(databases: Databases, random: Random) -> Iterator[Case]:
    """Look up a person's town on their profile at the code host, then the drive from there."""
    rows = databases["code"].execute("SELECT name, full_name, location FROM accounts ORDER BY id").fetchall()
    random.shuffle(rows)
    names = {town.name for town in region().towns}
    for row in [row for row in rows if row["location"] in names]:
        for end in random.sample(sorted(names - {row["location"]}), 3):
            time = time_by_car(databases["map"], row["location"], end)
            plan = [site("gitlab", f"/{row['name']}"), *driving(row["location"], end), stop(time)]
            entities = towns(end) | {f"user:{row['name']}"}
            yield Case({"person": row["full_name"], "user": row["name"], "end": end}, entities, said(time), plan)


def _dearest_of_town(databases: Databases, random: Random) -> Iterator[Case]:
    """Look up a town's firm, then its brand, then the highest price in the shop."""
    for town in shuffled_towns(random):
        firm = firm_of(town.name)
        if firm is None:
            continue
        rows = databases["shop"].execute(
            "SELECT *, coalesce(sale_price, price) AS cost FROM products WHERE brand = ? AND active ORDER BY cost DESC",
            (firm.brand,),
        )
        first, second, *others = rows.fetchall()
        if first["cost"] > second["cost"]:
            plan = [
                *on_wiki(town_title(town.name)),
                click("link", firm.name),
                site("shopping", f"/brand/{firm.brand}"),
                choose("Sort by", "Price: high to low"),
                click("button", "Sort"),
                stop(f"{first['name']}, {money(first['cost'])}"),
            ]
            rivals = [row["name"] for row in (second, *others)]
            judged = said(first["name"], money(first["cost"]).removeprefix("$"), rivals=rivals)
            yield Case({"town": town.name}, towns(town.name), judged, plan)


def _open_at_birthplace(databases: Databases, random: Random) -> Iterator[Case]:
    """Find the only place of a kind in a person's town of birth."""
    asked = [(person, kind) for person in region().people for kind in ("museum", "library", "cinema", "swimming pool")]
    sql = "SELECT kind, name FROM places UNION SELECT kind, hours FROM places"
    found = databases["map"].execute(sql).fetchall()
    names = {kind: {row["name"] for row in found if row["kind"] == kind} for _, kind in asked}
    for person, kind in random.sample(asked, len(asked)):
        place = only_place(databases["map"], person.town, (kind,))
        if place is not None:
            plan = [
                *on_wiki(person.name)[1:],
                *on_map(f"{place['kind']} in {person.town}"),
                click("link", place["name"]),
                stop(f"{place['name']}: {place['hours']}"),
            ]
            values = {"calling": person.calling, "person": person.name, "kind": place["kind"]}
            entities = towns(person.town) | {f"person:{person.name}"}
            judged = said(place["name"], place["hours"], rivals=names[kind])
            yield Case(values, entities, judged, plan)


def _nearer_maker(databases: Databases, random: Random) -> Iterator[Case]:
    """Compare the driving times to the head offices of two brands."""
    firms = list(region().firms)
    for _ in range(12):
        random.shuffle(firms)
        for one, other in pairwise(firms):
            for home in random.sample(region().towns, 6):
                # Computing routes is slow, and a held-out template uses only cases of the test split.
                if {split_of(entity) for entity in _about(home.name, one.brand, other.brand)} == {"test"}:
                    yield from _compared(databases, home.name, one.brand, other.brand)


def _about(home: str, one: str, other: str) -> frozenset[str]:
    return towns(home) | {f"brand:{one}", f"brand:{other}"}


def _compared(databases: Databases, home: str, one: str, other: str) -> Iterator[Case]:
    first, second = region().firm(one), region().firm(other)
    if len({first.seat, second.seat, home}) < 3:
        return
    seconds = {firm.seat: region().route(home, firm.seat, "car").seconds for firm in (first, second)}
    near, far = sorted((first, second), key=lambda firm: seconds[firm.seat])
    if seconds[far.seat] - seconds[near.seat] < 300:
        return
    time = time_by_car(databases["map"], home, near.seat)
    plan = [
        *on_wiki(first.name)[1:],
        *on_wiki(second.name)[1:],
        *driving(home, first.seat),
        *driving(home, second.seat)[1:],
        stop(f"{near.brand}, {time}"),
    ]
    judged = said(near.brand, time, rivals=(far.brand,))
    yield Case({"a": one, "b": other, "home": home}, _about(home, one, other), judged, plan)


def _mayor_of_seat(databases: Databases, random: Random) -> Iterator[Case]:
    others = mayors(databases["wiki"])
    for product in _products(databases["shop"], random)[:800]:
        firm = region().firm(product["brand"])
        mayor = town_fact(databases["wiki"], firm.seat, "Mayor")
        plan = [*in_shop(product), *on_wiki(firm.name), click("link", firm.seat), stop(mayor)]
        entities = frozenset({f"product:{product['name']}", f"brand:{firm.brand}"})
        yield Case({"product": product["name"]}, entities, said(mayor, rivals=others), plan)


TEMPLATES = (
    Template(
        "across/drive-from-maker",
        ("shopping", "wikipedia", "map"),
        "How long does Wayfinder say it takes to drive to {{end}} from the town where the maker of the {{product}} "
        "(sold at Larkspur) has its head office? Answer in the form 2 h 5 min.",
        _drive_from_maker,
    ),
    Template(
        "across/founder-of-maker",
        ("shopping", "wikipedia"),
        "Who founded the firm that makes the {{product}} sold at Larkspur, and in which year, according to Gazetteer?",
        _founder_of_maker,
    ),
    Template(
        "across/order-to-town",
        ("shopping_admin", "wikipedia"),
        "How many people live in the town that order #{{order}} is shipped to, according to Gazetteer?",
        _order_to_town,
    ),
    Template(
        "across/order-to-place",
        ("shopping_admin", "map"),
        "What is the phone number of the {{kind}} in the town that order #{{order}} is shipped to? Ask Wayfinder.",
        _order_to_place,
    ),
    Template(
        "across/commute",
        ("gitlab", "map"),
        "How long would {{person}} ({{user}} on Workbench) need to drive from where they live to {{end}}, according to "
        "Wayfinder? Answer in the form 2 h 5 min.",
        _commute,
    ),
    Template(
        "across/mayor-of-seat",
        ("shopping", "wikipedia"),
        "Who is mayor of the town where the firm behind Larkspur's {{product}} has its head office?",
        _mayor_of_seat,
    ),
    Template(
        "across/opening-at-birthplace",
        ("wikipedia", "map"),
        "The {{calling}} {{person}} is known to Gazetteer. In the town of birth Wayfinder has one {{kind}}: "
        "give its name and opening hours as written there.",
        _open_at_birthplace,
    ),
    Template(
        "across/dearest-of-town",
        ("wikipedia", "shopping"),
        "Gazetteer knows one firm with its head office in {{town}}. What is the most expensive product of its brand at "
        "Larkspur, and what does it cost at present?",
        _dearest_of_town,
        held_out=True,
    ),
    Template(
        "across/nearer-maker",
        ("wikipedia", "map"),
        "I live in {{home}} and want to visit the head office of the firm behind {{a}} or of the one behind {{b}}, "
        "whichever is the shorter drive in time. Which brand's is it, and how long does the drive take (2 h 5 min)?",
        _nearer_maker,
        held_out=True,
    ),
)
