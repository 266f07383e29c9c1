"""The shop's `Site` and what all its pages need: the cart's owner and lines, and the filters of the templates."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, cast

from markupsafe import Markup

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.shop.pictures import picture
from agentgym_envs.worlds.webarena.sites.shop.rules import PRICE, dollars
from agentgym_envs.worlds.webarena.sites.web import Site, Visit

site = Site("shopping", Path(__file__).parent)
_GUEST_COOKIE = "guest"
_EXTRA = (
    "(SELECT coalesce(sum(extra), 0) FROM product_options AS o WHERE o.product = products.id AND"
    " instr(', ' || cart_items.options || ',', ', ' || o.kind || ': ' || o.value || ',') > 0)"
)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a cart: the column of `cart_items` that refers to it (`account` or `guest`), and its value."""

    column: str
    id: int


def owner(visit: Visit) -> Owner | None:
    """Return the owner of the visitor's cart, or None for a guest without a cart."""
    if visit.account is not None:
        return Owner("account", visit.account["id"])
    return guest(visit)


def guest(visit: Visit) -> Owner | None:
    """Return the guest that the browser's cookie identifies."""
    cookie = visit.request.cookies.get(_GUEST_COOKIE, "")
    number = int(cookie) if cookie.isdecimal() and len(cookie) < 9 else 0
    known = visit.value("SELECT id FROM guests WHERE id = ?", number)
    return None if known is None else Owner("guest", known)


def owner_or_new(visit: Visit) -> Owner:
    """Return the owner of the visitor's cart, creating a guest if needed."""
    known = owner(visit)
    if known is None:
        known = Owner("guest", visit.run("INSERT INTO guests (coupon) VALUES (NULL)"))
        visit.remember(_GUEST_COOKIE, str(known.id))
    return known


def cart_lines(visit: Visit, buyer: Owner | None) -> list[sqlite3.Row]:
    """Return the lines of a cart with `name`, `stock`, the `unit` price and the `total`."""
    if buyer is None:
        return []
    unit = f"({PRICE} + {_EXTRA})"
    return visit.all(
        f"SELECT cart_items.*, products.name, sku, stock, colour, picture, {unit} AS unit, {unit} * quantity AS total"
        " FROM cart_items JOIN products ON products.id = product JOIN categories ON categories.id = category"
        f" WHERE cart_items.{buyer.column} = ? ORDER BY cart_items.id",
        buyer.id,
    )


def _cart_count(visit: Visit) -> int:
    buyer = owner(visit)
    if buyer is None:
        return 0
    return visit.value(f"SELECT coalesce(sum(quantity), 0) FROM cart_items WHERE {buyer.column} = ?", buyer.id)


def _departments(visit: Visit) -> list[sqlite3.Row]:
    return visit.all("SELECT * FROM departments ORDER BY id")


def _picture(row: sqlite3.Row) -> Markup:
    """Return the drawing of a product; the row has `picture` and `colour`."""
    return Markup(picture(row["picture"], row["colour"], escape(f"{row['colour']} {row['picture']}", quote=True)))


def _stars(rating: float | None) -> str:
    """Format a mean rating."""
    return "not rated yet" if rating is None else f"{rating:.1f} out of 5"


def _day(moment: str) -> str:
    """Format a date or timestamp of the database, such as `3 June 2025`."""
    year, month, day = moment[:10].split("-")
    names = "January February March April May June July August September October November December".split()  # noqa: SIM905
    return f"{int(day)} {names[int(month) - 1]} {year}"


def moment() -> str:
    """Return the current time in the database's format."""
    return NOW.strftime("%Y-%m-%d %H:%M")


cast("dict[str, Any]", site.templates.globals).update(cart_count=_cart_count, departments=_departments)
cast("dict[str, Any]", site.templates.filters).update(
    dollars=dollars, picture=_picture, stars=_stars, day=_day, parsed=json.loads
)
