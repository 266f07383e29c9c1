"""The cart: putting things in, changing and removing them, coupons, an estimate of the shipping."""

from __future__ import annotations

import sqlite3
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
    """What a cart comes to, in cents."""

    lines: list[sqlite3.Row]
    coupon: dict[str, Any] | None
    subtotal: int
    discount: int

    def shipping(self, method: str) -> int:
        """What a shipping method costs for this cart."""
        return shipping_cost(method, self.subtotal - self.discount, self.coupon)

    def total(self, method: str) -> int:
        """All of it."""
        return self.subtotal - self.discount + self.shipping(method)


def bill(visit: Visit, whose: Owner | None) -> Bill:
    """What the cart comes to at present."""
    lines = cart_lines(visit, whose)
    subtotal = sum(line["total"] for line in lines)
    coupon = None if whose is None else _coupon_of(visit, whose)
    return Bill(lines, coupon, subtotal, discount(coupon, subtotal))


def _coupon_of(visit: Visit, whose: Owner) -> dict[str, Any] | None:
    if whose.column == "account":
        code = visit.value("SELECT coupon FROM cart_coupons WHERE account = ?", whose.id)
    else:
        code = visit.value("SELECT coupon FROM guests WHERE id = ?", whose.id)
    return _valid_coupon(visit, code or "")


def _valid_coupon(visit: Visit, code: str) -> dict[str, Any] | None:
    today = NOW.strftime("%Y-%m-%d")
    rows = visit.all(
        "SELECT * FROM coupons WHERE code = ? COLLATE NOCASE AND active AND ? BETWEEN starts AND ends", code, today
    )
    return dict(rows[0]) if rows else None


def set_coupon(visit: Visit, whose: Owner, code: str | None) -> None:
    """Put a coupon into a cart, or take it out."""
    if whose.column == "guest":
        visit.run("UPDATE guests SET coupon = ? WHERE id = ?", code, whose.id)
        return
    visit.run("DELETE FROM cart_coupons WHERE account = ?", whose.id)
    if code is not None:
        visit.run("INSERT INTO cart_coupons VALUES (?, ?)", whose.id, code)


@site.get("/cart")
def cart(visit: Visit) -> Response:
    """What is in the cart, and what it comes to with each way of shipping."""
    method = visit.text("method") if visit.text("method") in METHODS else "standard"
    return visit.render("cart.html", bill=bill(visit, owner(visit)), methods=METHODS, method=method)


@site.post("/cart/add")
def add(visit: Visit) -> Response:
    """Put a product with its chosen options into the cart."""
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


def put(visit: Visit, whose: Owner, product: sqlite3.Row, options: str, quantity: int) -> None:
    """Put pieces of a product into a cart, to those of the same options that are there.

    Raises:
        Refused: when there are fewer in stock.
    """
    present = visit.value(
        f"SELECT coalesce(sum(quantity), 0) FROM cart_items WHERE {whose.column} = ? AND product = ? AND options = ?",
        whose.id,
        product["id"],
        options,
    )
    if product["stock"] < present + quantity:
        left = f"Only {product['stock']} of {product['name']} are left." if product["stock"] else ""
        raise Refused(left or f"{product['name']} is out of stock.")
    if present:
        visit.run(
            f"UPDATE cart_items SET quantity = quantity + ? WHERE {whose.column} = ? AND product = ? AND options = ?",
            quantity,
            whose.id,
            product["id"],
            options,
        )
        return
    visit.run(
        f"INSERT INTO cart_items ({whose.column}, product, options, quantity) VALUES (?, ?, ?, ?)",
        whose.id,
        product["id"],
        options,
        quantity,
    )


@site.post("/cart/update")
def update(visit: Visit) -> Response:
    """Take over the quantities of all lines; nought removes a line."""
    whose = owner_or_new(visit)
    for line in cart_lines(visit, whose):
        quantity = visit.number(f"quantity-{line['id']}", line["quantity"], 0, _MOST)
        if quantity > line["stock"]:
            raise Refused(f"Only {line['stock']} of {line['name']} are left.")
        if quantity == 0:
            visit.run("DELETE FROM cart_items WHERE id = ?", line["id"])
        else:
            visit.run("UPDATE cart_items SET quantity = ? WHERE id = ?", quantity, line["id"])
    return visit.redirect("/cart", "Your cart has been updated.")


@site.post("/cart/remove/{item:int}")
def remove(visit: Visit, item: int) -> Response:
    """Take a line out of the cart."""
    whose = owner_or_new(visit)
    line = next((line for line in cart_lines(visit, whose) if line["id"] == item), None)
    if line is None:
        raise NotFound("line in your cart")
    visit.run("DELETE FROM cart_items WHERE id = ?", item)
    return visit.redirect("/cart", f"{line['name']} has been removed from your cart.")


@site.post("/cart/coupon")
def coupon(visit: Visit) -> Response:
    """Use a coupon, or with `remove` no longer."""
    whose = owner_or_new(visit)
    if visit.text("remove"):
        set_coupon(visit, whose, None)
        return visit.redirect("/cart", "The coupon has been removed.")
    code = visit.text("code", 40)
    row = _valid_coupon(visit, code)
    if row is None:
        return visit.redirect("/cart", f"The coupon '{code}' is not valid.")
    subtotal = sum(line["total"] for line in cart_lines(visit, whose))
    if subtotal < row["minimum"]:
        return visit.redirect("/cart", f"The coupon {row['code']} needs a subtotal of {dollars(row['minimum'])}.")
    set_coupon(visit, whose, row["code"])
    return visit.redirect("/cart", f"The coupon {row['code']} has been applied.")
