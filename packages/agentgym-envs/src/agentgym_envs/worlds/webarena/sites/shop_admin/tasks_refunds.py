"""Tasks that refund orders, and tasks that start on the page of an order or a customer."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import (
    SITES,
    URL,
    drawn,
    money,
    number,
    one,
    order_page_of,
    spoken,
)
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Template,
    choose,
    click,
    fill,
    rows,
    split_of,
    stop,
    tab,
)

_REASONS = (
    "Arrived broken",
    "Lost in the post",
    "Wrong colour sent",
    "Delivered too late",
    "A part was missing",
    "Sent back unopened",
)
_REFUNDABLE = "status IN ('processing', 'shipped', 'complete') AND orders.id NOT IN (SELECT order_id FROM refunds)"
_NOTES = (
    "Wants to pay by invoice",
    "Asks for a paper catalogue",
    "Prefers deliveries in the evening",
    "Is moving soon",
)


def _refund(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM refunds")
    sql = f"""SELECT orders.id AS id, account, placed, total, first_name || ' ' || last_name AS name
        FROM orders JOIN accounts ON accounts.id = account WHERE {_REFUNDABLE} AND placed > '2025-02'
        ORDER BY orders.id"""
    for order in drawn(databases, random, sql):
        day, reason = order["placed"][:10], random.choice(_REASONS)
        way = order_page_of(databases, dict(order))
        if not way:
            continue
        plan = [
            *way,
            click("link", "Refund"),
            fill("textbox", "Reason", reason),
            click("button", "Refund"),
            stop(),
        ]
        made = (
            "SELECT status, refunds.total, reason, item, (SELECT count(*) FROM refunds) FROM refunds"
            f" JOIN orders ON orders.id = order_id WHERE order_id = {order['id']}"
        )
        judged = rows("shopping_admin", made, ["returned", order["total"], reason, None, before + 1])
        values = {"customer": order["name"], "day": spoken(day), "reason": reason}
        yield Case(values, one(f"order:{order['id']}"), judged, plan)


def _refund_item(databases: Databases, random: Random) -> Iterator[Case]:
    """Start on the page of an order, and refund one of its items."""
    before = number(databases, "SELECT count(*) FROM refunds")
    sql = f"""SELECT orders.id AS id, status FROM orders WHERE {_REFUNDABLE} AND placed > '2024-06' AND discount = 0
        ORDER BY orders.id"""
    items = """SELECT order_items.*, name FROM order_items JOIN products ON products.id = product WHERE order_id = ?
        ORDER BY order_items.id"""
    for order in drawn(databases, random, sql):
        found = databases["shop"].execute(items, (order["id"],)).fetchall()
        if len(found) < 2 or len({item["name"] for item in found}) < len(found):
            continue
        item, reason = random.choice(found), random.choice(_REASONS)
        amount = item["price"] * item["quantity"]
        plan = [
            click("link", "Refund"),
            choose("What to refund", f"{item['quantity']} × {item['name']}: ${money(amount)}"),
            fill("textbox", "Reason", reason),
            click("button", "Refund"),
            stop(),
        ]
        made = (
            "SELECT status, item, refunds.total, reason, (SELECT count(*) FROM refunds) FROM refunds"
            f" JOIN orders ON orders.id = order_id WHERE order_id = {order['id']}"
        )
        judged = rows("shopping_admin", made, [order["status"], item["id"], amount, reason, before + 1])
        values = {"product": item["name"], "reason": reason}
        yield Case(values, one(f"order:{order['id']}"), judged, plan, start=[f"{URL}/orders/{order['id']}"])


def _note_here(databases: Databases, random: Random) -> Iterator[Case]:
    """Start on the page of a customer, and write a note there."""
    before = number(databases, "SELECT count(*) FROM customer_notes")
    for customer in drawn(databases, random, "SELECT id FROM accounts WHERE role = 'customer' AND id > 2 ORDER BY id"):
        text = f"{random.choice(_NOTES)}, call number {random.randint(100, 999)}"
        mine = f"(SELECT text FROM customer_notes WHERE account = {customer['id']} ORDER BY id DESC)"
        judged = rows("shopping_admin", f"SELECT count(*), {mine} FROM customer_notes", [before + 1, text])
        plan = [fill("textbox", "New note", text), click("button", "Add note"), stop()]
        pages = [f"{URL}/customers/{customer['id']}"]
        yield Case({"text": text}, one(f"account:{customer['id']}"), judged, plan, start=pages)


def _hold_largest(databases: Databases, random: Random) -> Iterator[Case]:
    """Start with the pages of three orders in tabs."""
    after = number(databases, "SELECT count(*) FROM orders WHERE status = 'on hold'") + 1
    by_split: dict[str, list[tuple[int, int]]] = {}
    sql = "SELECT id, total FROM orders WHERE status IN ('pending', 'processing') ORDER BY id"
    for order in drawn(databases, random, sql):
        by_split.setdefault(split_of(f"order:{order['id']}"), []).append((order["total"], order["id"]))
    for _ in range(40):
        for orders in by_split.values():
            some = random.sample(orders, 3)
            if len({total for total, _ in some}) < 3:
                continue
            word, goal = random.choice((("highest", max(some)), ("lowest", min(some))))
            back = [tab(index)] if (index := some.index(goal)) < 2 else []
            plan = [tab(1), tab(2), *back, click("button", "Hold"), stop()]
            count = "(SELECT count(*) FROM orders WHERE status = 'on hold')"
            query = f"SELECT status, {count} FROM orders WHERE id = {goal[1]}"
            judged = rows("shopping_admin", query, ["on hold", after])
            numbers = [order for _, order in some]
            pages = [f"{URL}/orders/{order}" for order in numbers]
            entities = one(*(f"order:{order}" for order in numbers))
            yield Case({"extreme": word}, entities, judged, plan, start=pages)


TEMPLATES = (
    Template(
        "admin/refund-order", SITES,
        "{{customer}} gets the money back for the whole order of {{day}}. Refund it, with the reason \"{{reason}}\".",
        _refund,
    ),
    Template(
        "admin/refund-item", SITES,
        "Refund only the {{product}} of this order, with the reason \"{{reason}}\".", _refund_item,
    ),
    Template(
        "admin/note-here", SITES, "Leave a note on this customer that says \"{{text}}\".", _note_here,
    ),
    Template(
        "admin/hold-one-of-tabs", SITES,
        "Three orders are open in my tabs. Put the one with the {{extreme}} total on hold.", _hold_largest,
    ),
)  # fmt: skip
