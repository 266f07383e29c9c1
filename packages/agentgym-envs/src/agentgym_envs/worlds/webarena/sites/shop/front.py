"""The shop's `Site`, and what every page of it needs: whose cart it is, what is in it, and the words templates use."""

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
    """Whom a cart belongs to: the column of `cart_items` that names them (`account` or `guest`), and its value."""

    column: str
    id: int


def owner(visit: Visit) -> Owner | None:
    """Whose cart the visitor has, or None for a guest who has not put anything into one."""
    if visit.account is not None:
        return Owner("account", visit.account["id"])
    return guest(visit)


def guest(visit: Visit) -> Owner | None:
    """The guest that this browser's cookie names."""
    cookie = visit.request.cookies.get(_GUEST_COOKIE, "")
    number = int(cookie) if cookie.isdecimal() and len(cookie) < 9 else 0
    known = visit.value("SELECT id FROM guests WHERE id = ?", number)
    return None if known is None else Owner("guest", known)


def owner_or_new(visit: Visit) -> Owner:
    """Whose cart the visitor has; a guest without one gets one."""
    known = owner(visit)
    if known is None:
        known = Owner("guest", visit.run("INSERT INTO guests (coupon) VALUES (NULL)"))
        visit.remember(_GUEST_COOKIE, str(known.id))
    return known


def cart_lines(visit: Visit, whose: Owner | None) -> list[sqlite3.Row]:
    """The lines of a cart, with `name`, `stock`, the `unit` price of each and its `total`."""
    if whose is None:
        return []
    unit = f"({PRICE} + {_EXTRA})"
    return visit.all(
        f"SELECT cart_items.*, products.name, sku, stock, colour, picture, {unit} AS unit, {unit} * quantity AS total"
        " FROM cart_items JOIN products ON products.id = product JOIN categories ON categories.id = category"
        f" WHERE cart_items.{whose.column} = ? ORDER BY cart_items.id",
        whose.id,
    )


def _cart_count(visit: Visit) -> int:
    whose = owner(visit)
    if whose is None:
        return 0
    return visit.value(f"SELECT coalesce(sum(quantity), 0) FROM cart_items WHERE {whose.column} = ?", whose.id)


def _departments(visit: Visit) -> list[sqlite3.Row]:
    return visit.all("SELECT * FROM departments ORDER BY id")


def _picture(row: sqlite3.Row) -> Markup:
    """The drawing of a product; the row has `picture` and `colour`."""
    return Markup(picture(row["picture"], row["colour"], escape(f"{row['colour']} {row['picture']}", quote=True)))


def _stars(rating: float | None) -> str:
    """A mean rating as it is written."""
    return "not rated yet" if rating is None else f"{rating:.1f} out of 5"


def _day(moment: str) -> str:
    """A day or moment of the database as people read it, such as `3 June 2025`."""
    year, month, day = moment[:10].split("-")
    names = "January February March April May June July August September October November December".split()  # noqa: SIM905
    return f"{int(day)} {names[int(month) - 1]} {year}"


def moment() -> str:
    """Now, as the database keeps it."""
    return NOW.strftime("%Y-%m-%d %H:%M")


cast("dict[str, Any]", site.templates.globals).update(cart_count=_cart_count, departments=_departments)
cast("dict[str, Any]", site.templates.filters).update(
    dollars=dollars, picture=_picture, stars=_stars, day=_day, parsed=json.loads
)
