"""Tasks about orders: looking up their data, and changing their state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.shop_admin.rules import CARRIERS, STATUSES
from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import (
    SITES,
    URL,
    applied,
    customer_page,
    drawn,
    money,
    number,
    one,
    order_page,
    section,
    spoken,
)
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Template,
    at,
    choose,
    click,
    fill,
    rows,
    said,
    stop,
)

_CUSTOMERS = """SELECT accounts.id AS id, first_name || ' ' || last_name AS name FROM accounts
    WHERE role = 'customer' ORDER BY accounts.id"""
_COMMENTS = (
    "Waiting for the second delivery.",
    "Customer asked to wait until Friday.",
    "Address is being checked.",
    "Payment not seen yet.",
    "To be packed together with the next order.",
    "Two pieces are missing in the warehouse.",
)


def _tally(order: int, status: str, *more: str) -> str:
    """Return SQL for an order's status, the number of orders with that status, and further columns."""
    count = f"(SELECT count(*) FROM orders WHERE status = '{status}')"
    return f"SELECT {', '.join(['status', count, *more])} FROM orders WHERE id = {order}"


def _after(databases: Databases, status: str) -> int:
    """Return the number of orders with a status after one more gets it."""
    return number(databases, "SELECT count(*) FROM orders WHERE status = ?", status) + 1


def _latest_total(databases: Databases, random: Random) -> Iterator[Case]:
    for customer in drawn(databases, random, _CUSTOMERS):
        sql = "SELECT total FROM orders WHERE account = ? ORDER BY placed DESC, id DESC LIMIT 2"
        latest = databases["shop"].execute(sql, (customer["id"],)).fetchall()
        if len(latest) == 2 and latest[0]["total"] != latest[1]["total"] and latest[0]["total"] < 1000_00:
            total = money(latest[0]["total"])
            plan = [*customer_page(customer["name"]), stop(f"${total}")]
            yield Case({"customer": customer["name"]}, one(f"account:{customer['id']}"), said(total), plan)


def _tracking(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """SELECT orders.id AS id, carrier, tracking FROM orders JOIN shipments ON order_id = orders.id
        WHERE placed > '2025-01' GROUP BY orders.id HAVING count(*) = 1 ORDER BY orders.id"""
    carriers = [row[0] for row in databases["shop"].execute("SELECT DISTINCT carrier FROM shipments")]
    for order in drawn(databases, random, sql):
        answer = said(order["carrier"], order["tracking"], rivals=carriers)
        plan = [*order_page(order["id"]), stop(f"{order['carrier']}, {order['tracking']}")]
        yield Case({"order": order["id"]}, one(f"order:{order['id']}"), answer, plan)


def _who_ordered(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """SELECT orders.id AS id, account, first_name || ' ' || last_name AS name
        FROM orders JOIN accounts ON accounts.id = account WHERE placed > '2024-06' ORDER BY orders.id"""
    for order in drawn(databases, random, sql):
        judged = at(f"{URL}/customers/{order['account']}")
        plan = [*order_page(order["id"]), click("link", order["name"]), stop()]
        yield Case({"order": order["id"]}, one(f"order:{order['id']}"), judged, plan)


def _show_orders(databases: Databases, random: Random) -> Iterator[Case]:
    first = date(2024, 9, 1)
    for offset in random.sample(range(270), 120):
        begin = first + timedelta(days=offset)
        end = begin + timedelta(days=random.choice((6, 9, 13, 20, 27)))
        status = random.choice([name for name in STATUSES if name != "on hold"])
        judged = at(f"{URL}/orders?status={status}&from={begin}&to={end}")
        filters = [
            choose("Status", status.capitalize()),
            fill("textbox", "Placed from", str(begin)),
            fill("textbox", "Placed to", str(end), enter=True),
        ]
        values = {"status": status, "first": spoken(str(begin)), "last": spoken(str(end))}
        yield Case(values, one(f"day:{begin}"), judged, [*section("Orders", *filters), stop()])


def _ship(databases: Databases, random: Random) -> Iterator[Case]:
    after = _after(databases, "shipped")
    for order in drawn(databases, random, "SELECT id FROM orders WHERE status = 'processing' ORDER BY id"):
        carrier, tracking = random.choice(CARRIERS), f"LK{random.randrange(10**7):07d}"
        of = f"FROM shipments WHERE order_id = {order['id']})"
        query = _tally(order["id"], "shipped", f"(SELECT carrier || ' ' || tracking {of}", f"(SELECT count(*) {of}")
        plan = [
            *order_page(order["id"]),
            click("link", "Ship"),
            choose("Carrier", carrier),
            fill("textbox", "Tracking number", tracking),
            click("button", "Submit shipment"),
            stop(),
        ]
        values = {"order": order["id"], "carrier": carrier, "tracking": tracking}
        judged = rows("shopping_admin", query, ["shipped", after, f"{carrier} {tracking}", 1])
        yield Case(values, one(f"order:{order['id']}"), judged, plan)


def _cancel(databases: Databases, random: Random) -> Iterator[Case]:
    after = _after(databases, "cancelled")
    sql = """SELECT orders.id AS id, account, placed, first_name || ' ' || last_name AS name
        FROM orders JOIN accounts ON accounts.id = account WHERE status IN ('pending', 'processing', 'on hold')
        GROUP BY account, date(placed) HAVING count(*) = 1 ORDER BY orders.id"""
    for order in drawn(databases, random, sql):
        day = order["placed"][:10]
        query = "SELECT count(*) FROM orders WHERE account = ? AND date(placed) = ?"
        if number(databases, query, order["account"], day) > 1:
            continue
        filters = [fill("textbox", name, day) for name in ("Placed from", "Placed to")]
        plan = [
            *applied("Orders", fill("textbox", "Customer", order["name"]), *filters),
            click("link", f"#{order['id']}"),
            click("button", "Cancel order"),
            stop(),
        ]
        values = {"customer": order["name"], "day": spoken(day)}
        judged = rows("shopping_admin", _tally(order["id"], "cancelled"), ["cancelled", after])
        yield Case(values, one(f"order:{order['id']}"), judged, plan)


def _hold(databases: Databases, random: Random) -> Iterator[Case]:
    after = _after(databases, "on hold")
    sql = "SELECT id FROM orders WHERE status IN ('pending', 'processing') ORDER BY id"
    for order in drawn(databases, random, sql):
        comment = random.choice(_COMMENTS)
        note = f"(SELECT text || visible FROM order_comments WHERE order_id = {order['id']} ORDER BY id DESC)"
        judged = rows("shopping_admin", _tally(order["id"], "on hold", note), ["on hold", after, f"{comment}0"])
        plan = [
            *order_page(order["id"]),
            click("button", "Hold"),
            fill("textbox", "New comment", comment),
            click("button", "Add comment"),
            stop(),
        ]
        yield Case({"order": order["id"], "comment": comment}, one(f"order:{order['id']}"), judged, plan)


def _invoice(databases: Databases, random: Random) -> Iterator[Case]:
    after = _after(databases, "processing")
    sql = """SELECT orders.id AS id, total, recipient FROM orders WHERE status = 'pending'
        GROUP BY recipient HAVING count(*) = 1 ORDER BY orders.id"""
    for order in drawn(databases, random, sql):
        query = _tally(order["id"], "processing", f"(SELECT total FROM invoices WHERE order_id = {order['id']})")
        filters = [choose("Status", "Pending"), fill("textbox", "Customer", order["recipient"], enter=True)]
        plan = [
            *section("Orders", *filters),
            click("link", f"#{order['id']}"),
            click("button", "Create invoice"),
            stop(),
        ]
        judged = rows("shopping_admin", query, ["processing", after, order["total"]])
        yield Case({"customer": order["recipient"]}, one(f"order:{order['id']}"), judged, plan)


TEMPLATES = (
    Template(
        "admin/latest-total", SITES,
        "What is the total of the latest order of our customer {{customer}}?", _latest_total,
    ),
    Template(
        "admin/tracking-number", SITES,
        "With which carrier and under which tracking number did we send order #{{order}}?", _tracking, held_out=True,
    ),
    Template(
        "admin/who-ordered", SITES,
        "Open the page of the customer who placed order #{{order}}.", _who_ordered,
    ),
    Template(
        "admin/show-orders", SITES,
        "Show me the list of all {{status}} orders that were placed from {{first}} to {{last}}.", _show_orders,
    ),
    Template(
        "admin/ship-order", SITES,
        "Order #{{order}} is packed: ship it with {{carrier}}, the tracking number is {{tracking}}.", _ship,
    ),
    Template(
        "admin/cancel-order", SITES,
        "{{customer}} called and wants to cancel the order of {{day}}. Please do that.", _cancel,
    ),
    Template(
        "admin/hold-order", SITES,
        "Put order #{{order}} on hold and leave an internal comment on it that reads \"{{comment}}\"",
        _hold, held_out=True,
    ),
    Template(
        "admin/invoice-order", SITES,
        "Write the invoice for the pending order that goes to {{customer}}.", _invoice,
    ),
)  # fmt: skip
