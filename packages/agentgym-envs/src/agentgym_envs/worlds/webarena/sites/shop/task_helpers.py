"""Building blocks of the shop's tasks: queries and navigation steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.shop.rules import PRICE
from agentgym_envs.worlds.webarena.sites.tasks import Databases, Step, click, fill

SHOPPING = ("shopping",)
PLAIN = "NOT EXISTS (SELECT 1 FROM product_options WHERE product = products.id)"
"""SQL condition: the product has no options."""
CART = (
    "SELECT name, options, quantity FROM cart_items JOIN products ON products.id = product"
    " WHERE account = 1 ORDER BY name, options"
)
"""SQL for the contents of the shopper's cart."""
ORDERED = (
    "SELECT name, options, quantity, recipient, street, postcode, town, shipping_method, payment_method, status"
    " FROM orders JOIN order_items ON order_id = orders.id JOIN products ON products.id = product"
    " WHERE account = 1 AND placed = '2025-06-16 09:30' AND status <> 'cancelled' ORDER BY order_items.id"
)
"""SQL for the shopper's orders since the episode began, except those that she has cancelled again."""


def goods(databases: Databases, random: Random, where: str = "1", most: int = 150) -> Iterator[sqlite3.Row]:
    """Yield products that satisfy a condition, in random order, with their `cost`, category and department."""
    rows = databases["shop"].execute(
        f"SELECT products.*, {PRICE} AS cost, categories.name AS category_name, categories.slug AS category_slug,"
        " departments.name AS department_name FROM products JOIN categories ON categories.id = category"
        f" JOIN departments ON departments.id = department WHERE active AND {where} ORDER BY products.id"
    )
    found = rows.fetchall()
    yield from random.sample(found, min(most, len(found)))


def about(row: sqlite3.Row) -> frozenset[str]:
    """Return the entity of a case about one product."""
    return frozenset({f"product:{row['name']}"})


def amount(cents: int) -> str:
    """Format an amount without a currency sign."""
    return f"{cents / 100:,.2f}"


def open_product(name: str) -> list[Step]:
    """Search for a product and open it."""
    return [fill("searchbox", "Search the store", name, enter=True), click("link", name)]


def open_category(row: sqlite3.Row) -> list[Step]:
    """Open the category of a product."""
    return [click("link", row["department_name"]), click("link", row["category_name"])]


def own_orders(databases: Databases, where: str = "1") -> list[sqlite3.Row]:
    """Return the shopper's orders, one row per product; only products that she ordered once."""
    return (
        databases["shop"]
        .execute(
            "SELECT orders.*, products.name FROM orders JOIN order_items ON order_id = orders.id"
            " JOIN products ON products.id = product WHERE account = 1"
            " AND (SELECT count(*) FROM order_items AS i JOIN orders AS o ON o.id = i.order_id"
            f" WHERE o.account = 1 AND i.product = products.id) = 1 AND {where} ORDER BY order_items.id"
        )
        .fetchall()
    )


def open_order(name: str, number: int) -> list[Step]:
    """Find the shopper's order of a product and open it."""
    return [
        click("link", "My account"),
        click("link", "My orders"),
        fill("textbox", "Product in the order", name),
        click("button", "Filter orders"),
        click("link", str(number)),
    ]


def values(db: sqlite3.Connection, sql: str, *given: Any) -> list[Any]:
    """Return the first column of a query."""
    return [row[0] for row in db.execute(sql, given)]
