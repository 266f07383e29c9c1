"""How the store searches: every word asked for must be in a product's name, brand, SKU or description."""

from __future__ import annotations

import sqlite3
from typing import Any

_MOST_WORDS = 8
_TEXT = "products.name || ' ' || products.brand || ' ' || products.sku || ' ' || products.description"


def condition(query: str) -> tuple[str, list[Any]]:
    """SQL that holds for the products a query finds, and its values; true for all where the query is empty."""
    words = query.split()[:_MOST_WORDS]
    tests = [f"({_TEXT}) LIKE ? ESCAPE '\\'"] * len(words)
    return " AND ".join(tests) or "1", [pattern(word) for word in words]


def pattern(word: str) -> str:
    """A LIKE pattern, with the backslash as its escape, for what contains the word."""
    for special in "\\%_":
        word = word.replace(special, "\\" + special)
    return f"%{word}%"


def results(db: sqlite3.Connection, query: str) -> int:
    """How many products a query finds."""
    test, values = condition(query)
    return db.execute(f"SELECT count(*) FROM products WHERE active AND {test}", values).fetchone()[0]
