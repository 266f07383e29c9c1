"""A customer's orders: the list, one order, its invoice, and reordering, cancelling and returning."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.basket import put
from agentgym_envs.worlds.webarena.sites.shop.front import Owner, moment, site
from agentgym_envs.worlds.webarena.sites.shop.rules import REASONS
from agentgym_envs.worlds.webarena.sites.shop.search import pattern
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit, pages

_SIZE = 10
_STATUSES = ("pending", "processing", "on hold", "shipped", "complete", "cancelled", "returned")


@site.get("/account/orders")
def orders(visit: Visit) -> Response:
    """List the customer's orders, newest first, filtered by status and content."""
    account = visit.signed_in()
    where, values = "account = ?", [account["id"]]
    status, words = visit.text("status"), visit.text("q", 100)
    if status in _STATUSES:
        where, values = f"{where} AND status = ?", [*values, status]
    if words:
        named = "SELECT order_id FROM order_items JOIN products ON products.id = product WHERE name LIKE ? ESCAPE '\\'"
        where, values = f"{where} AND orders.id IN ({named})", [*values, pattern(words)]
    shown = pages(visit.value(f"SELECT count(*) FROM orders WHERE {where}", *values), _SIZE, visit.number("page"))
    found = visit.all(
        "SELECT orders.*, (SELECT sum(quantity) FROM order_items WHERE order_id = orders.id) AS pieces"
        f" FROM orders WHERE {where} ORDER BY placed DESC LIMIT ? OFFSET ?",
        *values,
        _SIZE,
        shown["offset"],
    )
    return visit.render(
        "orders.html", orders=found, pages=shown, statuses=_STATUSES, chosen=status, words=words, place_in="orders"
    )


@site.get("/account/orders/{number:int}")
def order(visit: Visit, number: int) -> Response:
    """Show an order."""
    row = _own(visit, number)
    return visit.render("order.html", **order_page(visit, row), place_in="orders")


@site.get("/account/orders/{number:int}/invoice")
def invoice(visit: Visit, number: int) -> Response:
    """Show the printable invoice of an order."""
    row = _own(visit, number)
    return visit.render("invoice.html", **order_page(visit, row))


def order_page(visit: Visit, row: sqlite3.Row) -> dict[str, Any]:
    """Return the values for the pages of an order."""
    return {
        "order": row,
        "items": visit.all(
            "SELECT order_items.*, name, sku, order_items.price * quantity AS total FROM order_items"
            " JOIN products ON products.id = product WHERE order_id = ? ORDER BY order_items.id",
            row["id"],
        ),
        "shipments": visit.all("SELECT * FROM shipments WHERE order_id = ?", row["id"]),
        "comments": visit.all("SELECT * FROM order_comments WHERE order_id = ? AND visible ORDER BY id", row["id"]),
        "returns": visit.all("SELECT * FROM returns WHERE order_id = ? ORDER BY id", row["id"]),
        "reasons": REASONS,
    }


@site.post("/account/orders/{number:int}/reorder")
def reorder(visit: Visit, number: int) -> Response:
    """Add all products of an order to the cart."""
    row = _own(visit, number)
    buyer = Owner("account", row["account"])
    for item in visit.all("SELECT * FROM order_items WHERE order_id = ? ORDER BY id", number):
        product = visit.one("SELECT * FROM products WHERE id = ?", item["product"])
        if not product["active"]:
            raise Refused(f"{product['name']} is not sold any more.")
        put(visit, buyer, product, item["options"], item["quantity"])
    return visit.redirect("/cart", f"The items of order {number} have been added to your cart.")


@site.post("/account/orders/{number:int}/cancel")
def cancel(visit: Visit, number: int) -> Response:
    """Cancel a pending order; its products return to stock."""
    row = _own(visit, number)
    if row["status"] != "pending":
        raise Refused(f"Order {number} is {row['status']} and can't be cancelled.")
    visit.run("UPDATE orders SET status = 'cancelled' WHERE id = ?", number)
    for item in visit.all("SELECT product, quantity FROM order_items WHERE order_id = ?", number):
        changed = (item["quantity"], item["quantity"], item["product"])
        visit.run("UPDATE products SET stock = stock + ?, sold = max(0, sold - ?) WHERE id = ?", *changed)
    return visit.redirect(f"/account/orders/{number}", f"Order {number} has been cancelled.")


@site.post("/account/orders/{number:int}/return")
def ask_return(visit: Visit, number: int) -> Response:
    """Request a return, which the office decides on."""
    row = _own(visit, number)
    if row["status"] != "complete":
        raise Refused(f"Order {number} is {row['status']}; only complete orders can be returned.")
    if visit.value("SELECT count(*) FROM returns WHERE order_id = ?", number):
        raise Refused(f"A return has been requested for order {number} already.")
    reason = visit.text("reason")
    if reason not in REASONS:
        return visit.redirect(f"/account/orders/{number}", "Please choose a reason for the return.")
    visit.run(
        "INSERT INTO returns (order_id, reason, comment, status, created) VALUES (?, ?, ?, 'open', ?)",
        number,
        reason,
        visit.text("comment", 1000),
        moment(),
    )
    return visit.redirect(f"/account/orders/{number}", f"Your return request for order {number} has been received.")


@site.get("/track")
def track(visit: Visit) -> Response:
    """Show an order's status to anyone with its number and e-mail address."""
    number, email = visit.number("number", 0), visit.text("email", 120)
    asked = bool(visit.text("number") or email)
    rows = visit.all("SELECT * FROM orders WHERE id = ? AND email = ? COLLATE NOCASE", number, email)
    found: dict[str, Any] = order_page(visit, rows[0]) if rows else {"order": None}
    return visit.render("track.html", asked=asked, **found)


def _own(visit: Visit, number: int) -> sqlite3.Row:
    account = visit.signed_in()
    return visit.one("SELECT * FROM orders WHERE id = ? AND account = ?", number, account["id"], what="order")
