"""What the tasks of the administration share: ways through its pages, and draws from its data."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import date
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.tasks import Databases, Step, click, fill

SITES = ("shopping_admin",)
URL = PLACES["shopping_admin"].url


def drawn(databases: Databases, random: Random, sql: str, *values: Any) -> list[sqlite3.Row]:
    """The rows of a query in random order."""
    found = databases["shop"].execute(sql, values).fetchall()
    random.shuffle(found)
    return found


def number(databases: Databases, sql: str, *values: Any) -> int:
    """The one number a query gives."""
    return databases["shop"].execute(sql, values).fetchone()[0]


def one(*entities: str) -> frozenset[str]:
    """The entities of a case."""
    return frozenset(entities)


def money(amount: int) -> str:
    """Cents as the pages show them, without the sign of the dollar."""
    return f"{amount / 100:,.2f}"


def spoken(day: str) -> str:
    """`2025-06-03` as people say it."""
    moment = date.fromisoformat(day[:10])
    return f"{moment:%B} {moment.day}, {moment.year}"


def month_name(month: str) -> str:
    """`2025-06` as people say it."""
    return f"{date.fromisoformat(month + '-01'):%B %Y}"


def section(name: str, *filters: Step) -> list[Step]:
    """Open a section; the last of the filters presses Enter, which applies them all."""
    return [click("link", name), *filters]


def applied(section_name: str, *filters: Step) -> list[Step]:
    """Open a section and apply filters by the button."""
    return [click("link", section_name), *filters, click("button", "Apply filters")]


def order_page(order: int) -> list[Step]:
    """To the page of an order, by its number."""
    return [*section("Orders", fill("textbox", "Order number", str(order), enter=True)), click("link", f"#{order}")]


def product_page(name: str) -> list[Step]:
    """To the form of a product, by its name."""
    return [*section("Products", fill("textbox", "Name", name, enter=True)), click("link", name)]


def customer_page(name: str) -> list[Step]:
    """To the page of a customer, by the name."""
    return [*section("Customers", fill("textbox", "Name", name, enter=True)), click("link", name)]


def report(name: str, *filters: Step) -> list[Step]:
    """Open a report and apply filters by the button."""
    return [click("link", "Reports"), click("link", f"{name} report"), *filters, click("button", "Apply filters")]


def span(first: str, last: str) -> list[Step]:
    """Fill in the two days of a report."""
    return [fill("textbox", "From", first), fill("textbox", "To", last)]


def months(databases: Databases, random: Random) -> list[str]:
    """The months that are over, such as `2024-05`, in random order."""
    sql = "SELECT DISTINCT substr(placed, 1, 7) FROM orders WHERE placed < '2025-06'"
    return [row[0] for row in drawn(databases, random, sql)]


def last_day(month: str) -> str:
    """The last day of a month."""
    year, number_of_month = int(month[:4]), int(month[5:])
    following = date(year + number_of_month // 12, number_of_month % 12 + 1, 1)
    return date.fromordinal(following.toordinal() - 1).isoformat()


def listed(names: Sequence[str]) -> str:
    """Names in a row, as an answer."""
    return ", ".join(names)
