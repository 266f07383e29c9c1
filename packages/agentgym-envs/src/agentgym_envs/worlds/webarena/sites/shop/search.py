"""The store's search: a product's name, brand, SKU or description must contain every word."""

from __future__ import annotations

import sqlite3
from typing import Any

_MOST_WORDS = 8
_TEXT = "products.name || ' ' || products.brand || ' ' || products.sku || ' ' || products.description"


def condition(query: str) -> tuple[str, list[Any]]:
    """Return the SQL condition for the results of a query and its values; an empty query matches everything."""
    words = query.split()[:_MOST_WORDS]
    tests = [f"({_TEXT}) LIKE ? ESCAPE '\\'"] * len(words)
    return " AND ".join(tests) or "1", [pattern(word) for word in words]


def pattern(word: str) -> str:
    """Return the LIKE pattern for texts that contain the word, with the backslash as its escape."""
    for special in "\\%_":
        word = word.replace(special, "\\" + special)
    return f"%{word}%"


def results(db: sqlite3.Connection, query: str) -> int:
    """Return the number of products that a query finds."""
    test, values = condition(query)
    return db.execute(f"SELECT count(*) FROM products WHERE active AND {test}", values).fetchone()[0]
