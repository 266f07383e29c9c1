"""Tasks that start on a page inside the shop, or with several products in tabs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from random import Random
from urllib.parse import urlencode

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.names import BRANDS
from agentgym_envs.worlds.webarena.sites.shop.rules import PRICE
from agentgym_envs.worlds.webarena.sites.shop.search import condition
from agentgym_envs.worlds.webarena.sites.shop.task_helpers import CART, PLAIN, SHOPPING, about, goods
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Step,
    Template,
    choose,
    click,
    fill,
    rows,
    said,
    split_of,
    stop,
    tab,
)

_URL = PLACES["shopping"].url


def _page_of(row: sqlite3.Row) -> str:
    return f"{_URL}/product/{row['id']}"


def _this_to_cart(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random, f"stock > 20 AND {PLAIN}"):
        quantity = random.randint(3, 19)
        plan = [fill("textbox", "Quantity", str(quantity)), click("button", "Add to cart"), stop()]
        judged = rows("shopping", CART, [row["name"], "", quantity])
        yield Case({"quantity": quantity}, about(row), judged, plan, start=[_page_of(row)])


def _cheapest_found(databases: Databases, random: Random) -> Iterator[Case]:
    """Start on a page of search results, of which there are more."""
    for brand in random.sample(BRANDS, len(BRANDS)):
        test, given = condition(brand)
        sql = f"SELECT name, {PRICE} AS cost FROM products WHERE active AND {test} ORDER BY cost"
        found = databases["shop"].execute(sql, given).fetchall()
        if len(found) > 15 and found[0]["cost"] < found[1]["cost"]:
            plan = [choose("Sort by", "Price: low to high"), click("button", "Sort"), stop(found[0]["name"])]
            judged = said(found[0]["name"], rivals=(row["name"] for row in found))
            pages = [f"{_URL}/search?{urlencode({'q': brand})}"]
            yield Case({"number": len(found)}, frozenset({f"brand:{brand}"}), judged, plan, start=pages)


def _in_tabs(databases: Databases, random: Random, where: str, count: int) -> Iterator[list[sqlite3.Row]]:
    """Yield products of one category and one split, which a task opens in tabs."""
    groups: dict[tuple[int, str], list[sqlite3.Row]] = {}
    for row in goods(databases, random, where, most=2000):
        groups.setdefault((row["category"], split_of(f"product:{row['name']}")), []).append(row)
    found = [
        group[first : first + count] for group in groups.values() for first in range(0, len(group) - count + 1, count)
    ]
    random.shuffle(found)
    yield from found


def _looks(count: int) -> list[Step]:
    """Look at all tabs but the first, in which the episode starts."""
    return [tab(index) for index in range(1, count)]


def _cheapest_tab(databases: Databases, random: Random) -> Iterator[Case]:
    for some in _in_tabs(databases, random, "1", 3):
        cheap, other = sorted(some, key=lambda row: row["cost"])[:2]
        if cheap["cost"] < other["cost"]:
            judged = said(cheap["name"], rivals=(row["name"] for row in some))
            entities = frozenset(entity for row in some for entity in about(row))
            plan = [*_looks(3), stop(cheap["name"])]
            values = {"category": some[0]["category_name"]}
            yield Case(values, entities, judged, plan, start=[_page_of(row) for row in some])


def _most_reviewed_tab(databases: Databases, random: Random) -> Iterator[Case]:
    for some in _in_tabs(databases, random, f"stock > 20 AND {PLAIN}", 3):
        most, other = sorted(some, key=lambda row: -row["reviews"])[:2]
        if most["reviews"] > other["reviews"]:
            quantity = random.randint(2, 9)
            back = [tab(index)] if (index := some.index(most)) < 2 else []
            plan = [
                *_looks(3),
                *back,
                fill("textbox", "Quantity", str(quantity)),
                click("button", "Add to cart"),
                stop(),
            ]
            entities = frozenset(entity for row in some for entity in about(row))
            judged = rows("shopping", CART, [most["name"], "", quantity])
            values = {"quantity": quantity, "category": some[0]["category_name"]}
            yield Case(values, entities, judged, plan, start=[_page_of(row) for row in some])


STARTING = (
    Template("shop/this-to-cart", SHOPPING, "Put {{quantity}} of this product into my cart.", _this_to_cart),
    Template(
        "shop/cheapest-found",
        SHOPPING,
        "Which of the {{number}} products that I found here is the cheapest at present? Give its name.",
        _cheapest_found,
    ),
    Template(
        "shop/cheapest-of-tabs",
        SHOPPING,
        "I have three products of the category {{category}} open in tabs. Which of them is the cheapest at present,"
        " without options? Give its name.",
        _cheapest_tab,
    ),
    Template(
        "shop/most-reviewed-of-tabs",
        SHOPPING,
        "Of the three products in my tabs, all from {{category}}, put {{quantity}} of the one with the most reviews"
        " into my cart.",
        _most_reviewed_tab,
        held_out=True,
    ),
)
"""Templates of this module."""
