"""Tasks that the administration makes impossible, with the wording of achievable ones; the answer is `N/A`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.shop_admin import tasks_orders, tasks_people
from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import drawn, one, order_page_of, section, spoken
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, fill, stop, unachievable

_ACHIEVABLE = {template.name: template for template in (*tasks_orders.TEMPLATES, *tasks_people.TEMPLATES)}
_PHONES = """SELECT (SELECT count(*) FROM accounts WHERE phone = :phone) + (SELECT count(*) FROM addresses
    WHERE phone = :phone) + (SELECT count(*) FROM orders WHERE phone = :phone)"""


def _cancel_sent(databases: Databases, random: Random) -> Iterator[Case]:
    """Ask to cancel an order that has left the house."""
    sql = """SELECT orders.id AS id, account, placed, status, first_name || ' ' || last_name AS name
        FROM orders JOIN accounts ON accounts.id = account WHERE status IN ('shipped', 'complete')
        AND placed > '2025-03' ORDER BY orders.id"""
    for order in drawn(databases, random, sql):
        if way := order_page_of(databases, dict(order)):
            reason = f"The order is {order['status']}, and only orders that weren't shipped can be cancelled."
            values = {"customer": order["name"], "day": spoken(order["placed"][:10])}
            yield Case(values, one(f"order:{order['id']}"), unachievable(reason), [*way, stop("N/A")])


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
