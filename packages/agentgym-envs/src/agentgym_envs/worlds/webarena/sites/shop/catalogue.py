"""Generates the store's products from `catalogue.txt`, which lists product types and texts per category.

A category has six lines: name, price range in dollars, drawing and review aspects; the product types; the materials;
the specifications; the options (`Size: S, M +300`, surcharge in cents); sentences of the descriptions.
"""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.names import BRANDS
from agentgym_envs.worlds.webarena.sites.shop.pictures import COLOURS

_PER_CATEGORY = 50
_SERIES = tuple(
    "Alba Anker Aria Arne Bay Birk Bodil Brook Cairn Calla Cove Dale Dune Eira Elm Fell Fenn Flint Garda Glen Hale "
    "Haven Isla Jura Kelda Lark Lido Loam Luna Mica Moss Nori Nova Oslo Otter Pico Rill Runa Sol Tarn Tide Torv Vale "
    "Vega Wharf".split()
)
_OPENINGS = (
    "A {good} of {material} for every day.",
    "The {good} that stays: plain, honest, of {material}.",
    "Our buyers tried this {good} for a month and didn't want to give it back.",
    "From a small workshop comes this {good}, made of {material}.",
    "New lines for an old friend: the {good}, here in {material}.",
    "A well-made {good}, pleasant to use and easy to keep.",
)
_OPENINGS_OF_SEVERAL = (
    "Everyday {good} of {material}.",
    "The {good} that stay: plain, honest, of {material}.",
    "Our buyers tried these {good} for a month and didn't want to give them back.",
    "Well-made {good} from a small workshop, here in {material}.",
)
_ENDINGS = (0, 50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Category:
    """One entry of `catalogue.txt`."""

    department: str
    name: str
    low: int
    high: int
    picture: str
    aspects: tuple[str, ...]
    goods: tuple[str, ...]
    materials: tuple[str, ...]
    specifications: dict[str, tuple[str, ...]]
    options: dict[str, dict[str, int]]
    sentences: tuple[str, ...]


def categories() -> list[Category]:
    """Return all categories, ordered by department."""
    text = Path(__file__).with_name("catalogue.txt").read_text(encoding="utf-8")
    found: list[Category] = []
    for part in text.split("[")[1:]:
        department, _, body = part.partition("]\n")
        lines = body.splitlines()
        found += [_category(department, lines[i : i + 6]) for i in range(0, len(lines), 6)]
    return found


def _category(department: str, lines: list[str]) -> Category:
    name, prices, picture, aspects = (word.strip() for word in lines[0].split("|"))
    low, high = map(int, prices.split("-"))
    pairs = (pair.split("=") for pair in lines[3].split("; "))
    return Category(
        department=department,
        name=name,
        low=low,
        high=high,
        picture=picture,
        aspects=tuple(aspects.split()),
        goods=tuple(lines[1].split("; ")),
        materials=tuple(lines[2].split(", ")),
        specifications={key: tuple(values.split("/")) for key, values in pairs},
        options={} if lines[4] == "-" else dict(map(_option, lines[4].split("; "))),
        sentences=tuple(lines[5].split("; ")),
    )


def _option(text: str) -> tuple[str, dict[str, int]]:
    kind, _, values = text.partition(": ")
    parsed = (value.partition(" +") for value in values.split(", "))
    return kind, {value: int(extra or 0) for value, _, extra in parsed}


def slug(name: str) -> str:
    """Convert a name to a URL path component."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower().replace("'", "")).split())


def fill_catalogue(db: sqlite3.Connection, random: Random) -> None:
    """Write departments, categories, products and their options."""
    departments: dict[str, int] = {}
    taken: set[str] = set()
    for number, category in enumerate(categories(), start=1):
        name = category.department
        if name not in departments:
            departments[name] = len(departments) + 1
            db.execute("INSERT INTO departments VALUES (?, ?, ?)", (departments[name], name, slug(name)))
        row = (number, departments[name], category.name, slug(category.name), category.picture)
        db.execute("INSERT INTO categories VALUES (?, ?, ?, ?, ?)", row)
        brands = random.sample(BRANDS, 12)
        for _ in range(_PER_CATEGORY + random.randint(-6, 6)):
            _add_product(db, random, number, category, random.choice(brands), taken)


def _add_product(
    db: sqlite3.Connection, random: Random, number: int, category: Category, brand: str, taken: set[str]
) -> None:
    good = random.choice(category.goods)
    name = _new_name(random, brand, good, taken)
    colours = category.options.get("Colour")
    optional = random.random() < 0.75
    options = category.options if optional else {}
    colour = random.choice(tuple(colours) if colours else tuple(COLOURS))
    price = _price(random, category, good)
    sale = _rounded(random, price * random.choice((0.7, 0.75, 0.8, 0.85))) if random.random() < 0.15 else None
    material = random.choice(category.materials)
    chosen = {key: random.choice(values) for key, values in category.specifications.items() if key not in options}
    # The digits tell nothing about the id or the category, with which the URL of the product's page could be guessed.
    code = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    sku = f"{brand[:3].upper()}-{code // 10_000 % 100:02d}{random.randrange(1000):03d}-{code % 10_000:04d}"
    created = NOW - timedelta(days=int(1100 * random.random() ** 1.5), hours=1)
    product = db.execute(
        "INSERT INTO products (sku, name, brand, category, price, sale_price, stock, colour, material, description,"
        " specifications, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            sku,
            name,
            brand,
            number,
            price,
            sale if sale is not None and sale < price else None,
            0 if random.random() < 0.07 else random.choice((3, 8, 15, 24, 40, 60, 95, 140)) + random.randrange(10),
            colour,
            material,
            _description(random, category, good, material),
            json.dumps(chosen, ensure_ascii=False, separators=(",", ":")),
            created.strftime("%Y-%m-%d"),
        ),
    ).lastrowid
    rows = [(product, kind, value, extra) for kind, values in options.items() for value, extra in values.items()]
    db.executemany("INSERT INTO product_options (product, kind, value, extra) VALUES (?, ?, ?, ?)", rows)


def _new_name(random: Random, brand: str, good: str, taken: set[str]) -> str:
    while (name := f"{brand} {random.choice(_SERIES)} {good}") in taken:
        pass
    taken.add(name)
    return name


def _price(random: Random, category: Category, good: str) -> int:
    """Draw a price in the category's range, more often a low one; products of a type have similar prices."""
    kind = (category.goods.index(good) * 5 % 6) / 6
    share = 0.5 * kind + 0.5 * random.random() ** 1.6
    return _rounded(random, 100 * category.low * (category.high / category.low) ** share)


def _rounded(random: Random, cents: float) -> int:
    return max(100, int(cents) // 100 * 100 + random.choice(_ENDINGS) - (100 if cents > 1000 else 0))


def _description(random: Random, category: Category, good: str, material: str) -> str:
    several = good.endswith("s") and not good.endswith("ss")
    opening = random.choice(_OPENINGS_OF_SEVERAL if several else _OPENINGS)
    sentences = random.sample(category.sentences, 2)
    return " ".join((opening.format(good=good.lower(), material=material), *sentences))
