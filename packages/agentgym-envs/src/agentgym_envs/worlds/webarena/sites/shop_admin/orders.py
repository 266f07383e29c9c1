"""Orders: the list, the page of one with its history, and its state transitions.

pending -> invoice -> processing -> ship -> shipped -> complete
pending, processing <-> on hold;  those three -> cancelled;  processing, shipped, complete -> refund -> returned
"""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import get, now, post
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, listing
from agentgym_envs.worlds.webarena.sites.shop_admin.rules import CARRIERS, STATUSES
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

_FROM = {
    "hold": ("pending", "processing"),
    "unhold": ("on hold",),
    "cancel": ("pending", "processing", "on hold"),
    "invoice": ("pending",),
    "ship": ("processing",),
    "complete": ("shipped",),
    "refund": ("processing", "shipped", "complete"),
}
"""States in which each action is possible."""
GRID = Grid(
    select="""SELECT orders.*, coalesce(accounts.first_name || ' ' || accounts.last_name, orders.recipient) AS customer
        FROM orders LEFT JOIN accounts ON accounts.id = orders.account""",
    columns=(
        Column("Order", "id"),
        Column("Placed", "placed"),
        Column("Customer", "customer"),
        Column("Town", "town"),
        Column("Coupon"),
        Column("Status", "status"),
        Column("Total", "total", right=True),
    ),
    filters=(
        Filter("number", "Order number", "orders.id = ?", "count"),
        Filter(
            "customer",
            "Customer",
            "coalesce(accounts.first_name || ' ' || accounts.last_name, '') || ' ' || orders.recipient || ' '"
            " || orders.email LIKE ? ESCAPE '\\'",
        ),
        Filter("status", "Status", "orders.status = ?", "choice", tuple((s, s.capitalize()) for s in STATUSES)),
        Filter("from", "Placed from", "date(orders.placed) >= ?", "day"),
        Filter("to", "Placed to", "date(orders.placed) <= ?", "day"),
        Filter("least", "Total from", "orders.total >= ?", "money"),
        Filter("most", "Total to", "orders.total <= ?", "money"),
        Filter("coupon", "Coupon", "orders.coupon LIKE ? ESCAPE '\\'"),
    ),
    order="placed",
)


@get("/orders")
def orders(visit: Visit) -> Response:
    """List all orders."""
    return visit.render("orders.html", list=listing(visit, GRID))


@get("/orders/{order:int}")
def order_page(visit: Visit, order: int) -> Response:
    """Show an order with all its records."""
    found = _order(visit, order)
    return visit.render(
        "order.html",
        order=found,
        items=_items(visit, order),
        customer=visit.db.execute("SELECT * FROM accounts WHERE id = ?", (found["account"],)).fetchone(),
        invoice=_first(visit, "invoices", order),
        refund=_first(visit, "refunds", order),
        shipments=visit.all("SELECT * FROM shipments WHERE order_id = ? ORDER BY id", order),
        returns=visit.all("SELECT * FROM returns WHERE order_id = ? ORDER BY id", order),
        comments=visit.all("SELECT * FROM order_comments WHERE order_id = ? ORDER BY created DESC, id DESC", order),
        possible=[
            action
            for action, states in _FROM.items()
            if found["status"] in states and not (action == "refund" and _first(visit, "refunds", order))
        ],
    )


@post("/orders/{order:int}/hold")
def hold(visit: Visit, order: int) -> Response:
    """Put the order on hold."""
    return _moved(visit, order, "hold", "on hold", "is on hold now")


@post("/orders/{order:int}/unhold")
def unhold(visit: Visit, order: int) -> Response:
    """Resume the order in its previous state."""
    status = "processing" if _first(visit, "invoices", order) else "pending"
    return _moved(visit, order, "unhold", status, "is no longer on hold")


@post("/orders/{order:int}/cancel")
def cancel(visit: Visit, order: int) -> Response:
    """Cancel the order and return its products to stock."""
    answer = _moved(visit, order, "cancel", "cancelled", "was cancelled")
    for item in visit.all("SELECT product, quantity FROM order_items WHERE order_id = ?", order):
        visit.run("UPDATE products SET stock = stock + ? WHERE id = ?", item["quantity"], item["product"])
    return answer


@post("/orders/{order:int}/invoice")
def invoice(visit: Visit, order: int) -> Response:
    """Create the invoice for the whole order."""
    answer = _moved(visit, order, "invoice", "processing", "has an invoice now")
    visit.run(
        "INSERT INTO invoices (order_id, total, created) SELECT id, total, ? FROM orders WHERE id = ?", now(), order
    )
    return answer


@post("/orders/{order:int}/complete")
def complete(visit: Visit, order: int) -> Response:
    """Mark the order as delivered."""
    return _moved(visit, order, "complete", "complete", "is complete")


@get("/orders/{order:int}/ship")
def ship_page(visit: Visit, order: int) -> Response:
    """Show the form for a shipment."""
    found = _order(visit, order)
    _check(found, "ship")
    return _ship_form(visit, found, "", "", [])


@post("/orders/{order:int}/ship")
def ship(visit: Visit, order: int) -> Response:
    """Ship the whole order with a carrier."""
    found = _order(visit, order)
    _check(found, "ship")
    carrier, tracking = visit.text("carrier"), visit.text("tracking", 60)
    errors = [] if carrier in CARRIERS else ["Choose a carrier."]
    errors += [] if tracking else ["Enter the tracking number."]
    if errors:
        return _ship_form(visit, found, carrier, tracking, errors)
    visit.run(
        "INSERT INTO shipments (order_id, carrier, tracking, shipped) VALUES (?, ?, ?, ?)",
        order, carrier, tracking, now(),
    )  # fmt: skip
    return _moved(visit, order, "ship", "shipped", f"was shipped with {carrier}")


@get("/orders/{order:int}/refund")
def refund_page(visit: Visit, order: int) -> Response:
    """Show the form for a refund."""
    return _refund_form(visit, _refundable(visit, order), "", [])


@post("/orders/{order:int}/refund")
def refund(visit: Visit, order: int) -> Response:
    """Refund the whole order, which accepts a return requested by the customer, or a single item of it."""
    found = _refundable(visit, order)
    reason, chosen = visit.text("reason", 300), visit.text("item", 20)
    items = {str(item["id"]): item for item in _items(visit, order)}
    errors = [] if chosen in ("", *items) else ["Choose an item of the order."]
    errors += [] if reason else ["Enter a reason."]
    if errors:
        return _refund_form(visit, found, reason, errors)
    item = items.get(chosen)
    amount = found["total"] if item is None else min(item["price"] * item["quantity"], found["total"])
    visit.run(
        "INSERT INTO refunds (order_id, item, total, reason, created) VALUES (?, ?, ?, ?, ?)",
        order, item and item["id"], amount, reason, now(),
    )  # fmt: skip
    if item is not None:
        return visit.redirect(f"/orders/{order}", f"{item['name']} was refunded.")
    visit.run("UPDATE returns SET status = 'accepted' WHERE order_id = ? AND status = 'open'", order)
    return _moved(visit, order, "refund", "returned", "was refunded")


@post("/orders/{order:int}/comment")
def comment(visit: Visit, order: int) -> Response:
    """Add a comment to the order's history."""
    _order(visit, order)
    text, author = visit.text("text", 2000), visit.signed_in()["name"]
    if not text:
        raise Refused("A comment needs some text.")
    visit.run(
        "INSERT INTO order_comments (order_id, author, text, visible, created) VALUES (?, ?, ?, ?, ?)",
        order, author, text, int(bool(visit.text("visible"))), now(),
    )  # fmt: skip
    return visit.redirect(f"/orders/{order}", "The comment was added.")


RETURNS = Grid(
    select="""SELECT returns.*, orders.recipient AS customer, orders.total AS total
        FROM returns JOIN orders ON orders.id = returns.order_id""",
    columns=(
        Column("Order", "order_id"),
        Column("Asked for", "created"),
        Column("Customer", "customer"),
        Column("Reason", "reason"),
        Column("Comment"),
        Column("Total", "total", right=True),
        Column("Status", "status"),
        Column("Decision"),
    ),
    filters=(
        Filter("customer", "Customer", "orders.recipient LIKE ? ESCAPE '\\'"),
        Filter("reason", "Reason", "returns.reason LIKE ? ESCAPE '\\'"),
        Filter(
            "status", "Status", "returns.status = ?", "choice",
            (("open", "Open"), ("accepted", "Accepted"), ("declined", "Declined")),
        ),
    ),
    order="created",
)  # fmt: skip


@get("/returns")
def returns(visit: Visit) -> Response:
    """List the returns requested by customers."""
    return visit.render("returns.html", list=listing(visit, RETURNS))


@post("/returns/{number:int}/decline")
def decline(visit: Visit, number: int) -> Response:
    """Decline a return."""
    found = visit.one("SELECT * FROM returns WHERE id = ?", number, what="return")
    if found["status"] != "open":
        raise Refused(f"This return is {found['status']} already.")
    visit.run("UPDATE returns SET status = 'declined' WHERE id = ?", number)
    return visit.redirect("/returns", f"The return of order {found['order_id']} was declined.")


def _refund_form(visit: Visit, order: sqlite3.Row, reason: str, errors: list[str]) -> Response:
    status = 422 if errors else 200
    items = _items(visit, order["id"])
    return visit.render("order_refund.html", status, order=order, items=items, reason=reason, errors=errors)


def _refundable(visit: Visit, order: int) -> sqlite3.Row:
    """Return the order; refuses if it can't be refunded, or was before, in part or whole."""
    found = _order(visit, order)
    _check(found, "refund")
    if _first(visit, "refunds", order):
        raise Refused(f"Order {order} was refunded already.")
    return found


def _items(visit: Visit, order: int) -> list[sqlite3.Row]:
    return visit.all(
        "SELECT order_items.*, products.name, products.sku FROM order_items"
        " JOIN products ON products.id = product WHERE order_id = ? ORDER BY order_items.id",
        order,
    )


def _ship_form(visit: Visit, order: sqlite3.Row, carrier: str, tracking: str, errors: list[str]) -> Response:
    offered = [(name, name) for name in CARRIERS]
    typed = {"carrier": carrier, "tracking": tracking, "errors": errors}
    return visit.render("order_ship.html", 422 if errors else 200, order=order, carriers=offered, **typed)


def _order(visit: Visit, order: int) -> sqlite3.Row:
    return visit.one("SELECT * FROM orders WHERE id = ?", order, what="order")


def _first(visit: Visit, table: str, order: int) -> sqlite3.Row | None:
    return visit.db.execute(f"SELECT * FROM {table} WHERE order_id = ?", (order,)).fetchone()


def _check(order: sqlite3.Row, action: str) -> None:
    if order["status"] not in _FROM[action]:
        raise Refused(f"Order {order['id']} is {order['status']}: it can't be dealt with in this way ({action}).")


def _moved(visit: Visit, order: int, action: str, status: str, what: str) -> Response:
    found = _order(visit, order)
    _check(found, action)
    visit.run("UPDATE orders SET status = ? WHERE id = ?", status, order)
    return visit.redirect(f"/orders/{order}", f"Order {order} {what}.")
