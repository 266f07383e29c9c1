"""Generates the reviews from `reviews.txt`: titles by number of stars, sentences by aspect."""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.names import FIRST_NAMES, LAST_NAMES
from agentgym_envs.worlds.webarena.sites.shop.catalogue import Category, categories

_TARGET = 10_000
_COLUMNS = "product, account, nickname, title, text, stars, created, status"
_INSERT = f"INSERT INTO reviews ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_HANDLES = tuple("Copper Quiet Rainy Sunny Velvet Paper Winter Salty Early Little Northern Wild".split())
_ANIMALS = tuple("otter heron badger magpie hare finch walrus fox moth wren pike toad".split())
Sentences = dict[str, tuple[str, ...]]
Row = tuple[int, int | None, str, str, str, int, str, str]
"""Product, account, nickname, title, text, stars, day, status."""


def sentences() -> Sentences:
    """Return the sentences by heading; an aspect's praise is under `noise +`, its criticism under `noise -`."""
    found: Sentences = {}
    for part in Path(__file__).with_name("reviews.txt").read_text(encoding="utf-8").split("[")[1:]:
        heading, _, body = part.partition("]\n")
        for line in body.splitlines():
            mark, words = (f" {line[0]}", line[2:]) if line.startswith(("+ ", "- ")) else ("", line)
            found[heading + mark] = tuple(words.split("; "))
    return found


def fill_reviews(db: sqlite3.Connection, random: Random) -> None:
    """Write about 10,000 reviews; products have between 0 and 30."""
    kinds = {category.name: category for category in categories()}
    products = db.execute(
        "SELECT products.id, products.name, brand, created, categories.name FROM products"
        " JOIN categories ON categories.id = category ORDER BY products.id"
    ).fetchall()
    customers = db.execute("SELECT id, first_name, last_name FROM accounts WHERE id > 2 ORDER BY id").fetchall()
    phrases = sentences()
    rows = [
        _review(random, phrases, product, kinds[product[4]], customers, quality)
        for product in products
        for quality in [random.triangular(-0.9, 1.2, 0.7)]
        for _ in range(min(30, int(random.expovariate(len(products) / _TARGET) + 0.35)))
    ]
    rows.sort(key=lambda row: row[6])
    db.executemany(_INSERT, rows)


def _review(
    random: Random,
    phrases: Sentences,
    product: tuple[int, str, str, str, str],
    kind: Category,
    customers: list[tuple[int, str, str]],
    quality: float,
) -> Row:
    number, name, brand, created, _ = product
    stars = min(5, max(1, round(random.gauss(3.1 + 1.5 * quality, 1.1))))
    text = _text(random, phrases, kind, stars).format(
        thing=name.split(" ", 2)[2].lower(),
        brand=brand,
        who=random.choice(phrases["who"]),
        time=random.choice(phrases["time"]),
    )
    first = datetime.fromisoformat(created)
    day = first + timedelta(days=random.randrange((NOW - first).days + 1))
    account, nickname = _author(random, customers)
    status = "approved"
    if (NOW - day).days < 30 and random.random() < 0.2:
        status = "pending"
    elif random.random() < 0.008:
        status = "rejected"
    title = random.choice(phrases[f"title {stars}"])
    return number, account, nickname, title, text, stars, day.strftime("%Y-%m-%d"), status


def _text(random: Random, phrases: Sentences, kind: Category, stars: int) -> str:
    """Return sentences on one or two aspects, positive for many stars, sometimes with an opening and a closing."""
    aspects = random.sample(kind.aspects, random.choice((1, 2)))
    parts = [random.choice(phrases["open"])] if random.random() < 0.4 else []
    for aspect in aspects:
        mark = "+" if random.random() < (0.02, 0.15, 0.5, 0.85, 1.0)[stars - 1] else "-"
        parts.append(random.choice(phrases[f"{aspect} {mark}"]))
    if random.random() < 0.25:
        parts.append(random.choice(phrases[f"close {stars}"]))
    return " ".join(parts)


def _author(random: Random, customers: list[tuple[int, str, str]]) -> tuple[int | None, str]:
    if random.random() < 0.4:
        account, first, last = random.choice(customers)
        return account, f"{first} {last[0]}."
    if random.random() < 0.5:
        return None, f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}"
    return None, f"{random.choice(_HANDLES)}{random.choice(_ANIMALS)}{random.randint(1, 99)}"
