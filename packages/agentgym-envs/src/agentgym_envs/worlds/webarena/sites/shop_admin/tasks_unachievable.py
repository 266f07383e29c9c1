"""Tasks that the administration makes impossible, with the wording of achievable ones; the answer is `N/A`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.shop_admin import tasks_orders, tasks_people
from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import (
    applied,
    drawn,
    number,
    one,
    section,
    spoken,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, click, fill, stop, unachievable

_ACHIEVABLE = {template.name: template for template in (*tasks_orders.TEMPLATES, *tasks_people.TEMPLATES)}
_PHONES = """SELECT (SELECT count(*) FROM accounts WHERE phone = :phone) + (SELECT count(*) FROM addresses
    WHERE phone = :phone) + (SELECT count(*) FROM orders WHERE phone = :phone)"""


def _cancel_sent(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask to cancel an order that has left the house."""
    sql = """SELECT orders.id AS id, account, placed, status, first_name || ' ' || last_name AS name
        FROM orders JOIN accounts ON accounts.id = account WHERE status IN ('shipped', 'complete')
        AND placed > '2025-03' ORDER BY orders.id"""
    for order in drawn(databases, random, sql):
        day = order["placed"][:10]
        query = "SELECT count(*) FROM orders WHERE account = ? AND date(placed) = ?"
        same_name = "SELECT count(*) FROM accounts WHERE first_name || ' ' || last_name = ?"
        if number(databases, query, order["account"], day) > 1 or number(databases, same_name, order["name"]) > 1:
            continue
        filters = [fill("textbox", name, day) for name in ("Placed from", "Placed to")]
        plan = [
            *applied("Orders", fill("textbox", "Customer", order["name"]), *filters),
            click("link", f"#{order['id']}"),
            stop("N/A"),
        ]
        judged = unachievable(f"The order is {order['status']}, and only orders that weren't shipped can be cancelled.")
        yield Case({"customer": order["name"], "day": spoken(day)}, one(f"order:{order['id']}"), judged, plan)


def _unknown_phone(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask for the customer with a phone number that nobody has."""
    for last in random.sample(range(1000, 10_000), 200):
        phone = f"555-{last}"
        if databases["shop"].execute(_PHONES, {"phone": phone}).fetchone()[0] == 0:
            judged = unachievable(f"No customer has the phone number {phone}.")
            plan = [*section("Customers", fill("textbox", "Phone", phone, enter=True)), stop("N/A")]
            yield Case({"phone": phone}, one(f"phone:{phone}"), judged, plan)


TEMPLATES = (
    _ACHIEVABLE["admin/cancel-order"].unachievable(_cancel_sent),
    _ACHIEVABLE["admin/customer-by-phone"].unachievable(_unknown_phone),
)
