"""The cart: adding, changing and removing lines, coupons, shipping estimates."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.shop.front import Owner, cart_lines, owner, owner_or_new, site
from agentgym_envs.worlds.webarena.sites.shop.product import options_of, product_row
from agentgym_envs.worlds.webarena.sites.shop.rules import METHODS, discount, dollars, shipping_cost
from agentgym_envs.worlds.webarena.sites.web import NotFound, Refused, Visit

_MOST = 99


@dataclass(frozen=True, slots=True)
class Bill:
    """The price of a cart, in cents."""

    lines: list[sqlite3.Row]
    coupon: dict[str, Any] | None
    subtotal: int
    discount: int

    def shipping(self, method: str) -> int:
        """Return the shipping cost of this cart."""
        return shipping_cost(method, self.subtotal - self.discount, self.coupon)

    def total(self, method: str) -> int:
        """Return the total including discount and shipping."""
        return self.subtotal - self.discount + self.shipping(method)


def bill(visit: Visit, buyer: Owner | None) -> Bill:
    """Return the current bill of a cart."""
    lines = cart_lines(visit, buyer)
    subtotal = sum(line["total"] for line in lines)
    coupon = None if buyer is None else _coupon_of(visit, buyer)
    return Bill(lines, coupon, subtotal, discount(coupon, subtotal))


def _coupon_of(visit: Visit, buyer: Owner) -> dict[str, Any] | None:
    if buyer.column == "account":
        code = visit.value("SELECT coupon FROM cart_coupons WHERE account = ?", buyer.id)
    else:
        code = visit.value("SELECT coupon FROM guests WHERE id = ?", buyer.id)
    return _valid_coupon(visit, code or "")


def _valid_coupon(visit: Visit, code: str) -> dict[str, Any] | None:
    today = NOW.strftime("%Y-%m-%d")
    rows = visit.all(
        "SELECT * FROM coupons WHERE code = ? COLLATE NOCASE AND active AND ? BETWEEN starts AND ends", code, today
    )
    return dict(rows[0]) if rows else None


def set_coupon(visit: Visit, buyer: Owner, code: str | None) -> None:
    """Set or remove the coupon of a cart."""
    if buyer.column == "guest":
        visit.run("UPDATE guests SET coupon = ? WHERE id = ?", code, buyer.id)
        return
    visit.run("DELETE FROM cart_coupons WHERE account = ?", buyer.id)
    if code is not None:
        visit.run("INSERT INTO cart_coupons VALUES (?, ?)", buyer.id, code)


@site.get("/cart")
def cart(visit: Visit) -> Response:
    """Show the cart with the total for each shipping method."""
    method = visit.text("method") if visit.text("method") in METHODS else "standard"
    return visit.render("cart.html", bill=bill(visit, owner(visit)), methods=METHODS, method=method)


@site.post("/cart/add")
def add(visit: Visit) -> Response:
    """Add a product with the chosen options to the cart."""
    row = product_row(visit, visit.number("product"))
    chosen: list[str] = []
    for kind, values in options_of(visit, row["id"]).items():
        value = visit.text(f"option-{kind}")
        if value not in [option["value"] for option in values]:
            return visit.redirect(f"/product/{row['id']}", f"Please choose an option for {kind}.")
        chosen.append(f"{kind}: {value}")
    quantity = visit.number("quantity", 1, 1, _MOST)
    put(visit, owner_or_new(visit), row, ", ".join(chosen), quantity)
    return visit.redirect("/cart", f"{row['name']} has been added to your cart.")


def put(visit: Visit, buyer: Owner, product: sqlite3.Row, options: str, quantity: int) -> None:
    """Add pieces of a product to a cart, merging with the line of the same options.

    Raises:
        Refused: If the stock is too low.
    """
    lines = [line for line in cart_lines(visit, buyer) if line["product"] == product["id"]]
    if product["stock"] < sum(line["quantity"] for line in lines) + quantity:
        left = f"Only {product['stock']} of {product['name']} are left." if product["stock"] else ""
        raise Refused(left or f"{product['name']} is out of stock.")
    if any(line["options"] == options for line in lines):
        visit.run(
            f"UPDATE cart_items SET quantity = quantity + ? WHERE {buyer.column} = ? AND product = ? AND options = ?",
            quantity,
            buyer.id,
            product["id"],
            options,
        )
        return
    visit.run(
        f"INSERT INTO cart_items ({buyer.column}, product, options, quantity) VALUES (?, ?, ?, ?)",
        buyer.id,
        product["id"],
        options,
        quantity,
    )


def check_stock(quantities: Iterable[tuple[sqlite3.Row, int]]) -> None:
    """Check that the stock suffices for lines of a cart; lines with different options share their product's stock.

    Raises:
        Refused: If the stock is too low.
    """
    wanted = Counter[int]()
    for line, quantity in quantities:
        wanted[line["product"]] += quantity
        if wanted[line["product"]] > line["stock"]:
            raise Refused(f"Only {line['stock']} of {line['name']} are left.")


@site.post("/cart/update")
def update(visit: Visit) -> Response:
    """Update the quantities of all lines; zero removes a line."""
    buyer = owner_or_new(visit)
    quantities = [
        (line, visit.number(f"quantity-{line['id']}", line["quantity"], 0, _MOST)) for line in cart_lines(visit, buyer)
    ]
    check_stock(quantities)
    for line, quantity in quantities:
        if quantity == 0:
            visit.run("DELETE FROM cart_items WHERE id = ?", line["id"])
        else:
            visit.run("UPDATE cart_items SET quantity = ? WHERE id = ?", quantity, line["id"])
    return visit.redirect("/cart", "Your cart has been updated.")


@site.post("/cart/remove/{item:int}")
def remove(visit: Visit, item: int) -> Response:
    """Remove a line from the cart."""
    buyer = owner_or_new(visit)
    line = next((line for line in cart_lines(visit, buyer) if line["id"] == item), None)
    if line is None:
        raise NotFound("line in your cart")
    visit.run("DELETE FROM cart_items WHERE id = ?", item)
    return visit.redirect("/cart", f"{line['name']} has been removed from your cart.")


@site.post("/cart/coupon")
def coupon(visit: Visit) -> Response:
    """Apply a coupon, or with `remove` take it off."""
    buyer = owner_or_new(visit)
    if visit.text("remove"):
        set_coupon(visit, buyer, None)
        return visit.redirect("/cart", "The coupon has been removed.")
    code = visit.text("code", 40)
    row = _valid_coupon(visit, code)
    if row is None:
        return visit.redirect("/cart", f"The coupon '{code}' is not valid.")
    subtotal = sum(line["total"] for line in cart_lines(visit, buyer))
    if subtotal < row["minimum"]:
        return visit.redirect("/cart", f"The coupon {row['code']} needs a subtotal of {dollars(row['minimum'])}.")
    set_coupon(visit, buyer, row["code"])
    return visit.redirect("/cart", f"The coupon {row['code']} has been applied.")
