"""Building blocks of the admin site's tasks: queries and navigation steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.tasks import Databases, Step, click, fill

SITES = ("shopping_admin",)
URL = PLACES["shopping_admin"].url


def drawn(databases: Databases, random: Random, sql: str, *values: Any) -> list[sqlite3.Row]:
    """Return the rows of a query in random order."""
    found = databases["shop"].execute(sql, values).fetchall()
    random.shuffle(found)
    return found


def number(databases: Databases, sql: str, *values: Any) -> int:
    """Return the single number that a query selects."""
    return databases["shop"].execute(sql, values).fetchone()[0]


def one(*entities: str) -> frozenset[str]:
    """Return the entities of a case."""
    return frozenset(entities)


def money(amount: int) -> str:
    """Format cents as the pages do, without the dollar sign."""
    return f"{amount / 100:,.2f}"


def spoken(day: str) -> str:
    """Format `2025-06-03` in words: `June 3, 2025`."""
    moment = date.fromisoformat(day[:10])
    return f"{moment:%B} {moment.day}, {moment.year}"


def month_name(month: str) -> str:
    """Format `2025-06` in words: `June 2025`."""
    return f"{date.fromisoformat(month + '-01'):%B %Y}"


def section(name: str, *filters: Step) -> list[Step]:
    """Open a section; the last filter presses Enter, which applies all of them."""
    return [click("link", name), *filters]


def applied(section_name: str, *filters: Step) -> list[Step]:
    """Open a section and apply filters with the button."""
    return [click("link", section_name), *filters, click("button", "Apply filters")]


def order_page(order: int) -> list[Step]:
    """Navigate to an order by its number."""
    return [*section("Orders", fill("textbox", "Order number", str(order), enter=True)), click("link", f"#{order}")]


def order_page_of(databases: Databases, order: Mapping[str, Any]) -> list[Step]:
    """Navigate to an order by the `name` of its customer and its day; empty if these fit several orders."""
    day = order["placed"][:10]
    that_day = "SELECT count(*) FROM orders WHERE account = ? AND date(placed) = ?"
    same_name = "SELECT count(*) FROM accounts WHERE first_name || ' ' || last_name = ?"
    if number(databases, that_day, order["account"], day) > 1 or number(databases, same_name, order["name"]) > 1:
        return []
    days = [fill("textbox", name, day) for name in ("Placed from", "Placed to")]
    return [*applied("Orders", fill("textbox", "Customer", order["name"]), *days), click("link", f"#{order['id']}")]


def product_page(name: str) -> list[Step]:
    """Navigate to a product's form by its name."""
    return [*section("Products", fill("textbox", "Name", name, enter=True)), click("link", name)]


def customer_page(name: str) -> list[Step]:
    """Navigate to a customer by name."""
    return [*section("Customers", fill("textbox", "Name", name, enter=True)), click("link", name)]


def report(name: str, *filters: Step) -> list[Step]:
    """Open a report and apply filters with the button."""
    return [click("link", "Reports"), click("link", f"{name} report"), *filters, click("button", "Apply filters")]


def span(first: str, last: str) -> list[Step]:
    """Fill in the first and last day of a report."""
    return [fill("textbox", "From", first), fill("textbox", "To", last)]


def months(databases: Databases, random: Random) -> list[str]:
    """Return the past months, such as `2024-05`, in random order."""
    sql = "SELECT DISTINCT substr(placed, 1, 7) FROM orders WHERE placed < '2025-06'"
    return [row[0] for row in drawn(databases, random, sql)]


def last_day(month: str) -> str:
    """Return the last day of a month."""
    year, number_of_month = int(month[:4]), int(month[5:])
    following = date(year + number_of_month // 12, number_of_month % 12 + 1, 1)
    return date.fromordinal(following.toordinal() - 1).isoformat()


def listed(names: Sequence[str]) -> str:
    """Join names with commas, as an answer."""
    return ", ".join(names)
