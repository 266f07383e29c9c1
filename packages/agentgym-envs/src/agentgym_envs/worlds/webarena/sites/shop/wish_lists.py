"""The wish list: products with notes, which can be moved to the cart."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.basket import put
from agentgym_envs.worlds.webarena.sites.shop.front import Owner, moment, site
from agentgym_envs.worlds.webarena.sites.shop.product import options_of, product_row
from agentgym_envs.worlds.webarena.sites.shop.rules import PRICE
from agentgym_envs.worlds.webarena.sites.web import Visit, pages

_SIZE = 10


@site.get("/wishlist")
def wishlist(visit: Visit) -> Response:
    """Show the wish list."""
    me = visit.signed_in()["id"]
    shown = pages(visit.value("SELECT count(*) FROM wish_items WHERE account = ?", me), _SIZE, visit.number("page"))
    rows = visit.all(
        f"SELECT wish_items.*, products.name, stock, colour, picture, {PRICE} AS cost FROM wish_items"
        " JOIN products ON products.id = product JOIN categories ON categories.id = category"
        " WHERE account = ? ORDER BY added DESC, wish_items.id DESC LIMIT ? OFFSET ?",
        me,
        _SIZE,
        shown["offset"],
    )
    return visit.render("wishlist.html", items=rows, pages=shown, place_in="wishlist")


@site.post("/wishlist/add")
def add(visit: Visit) -> Response:
    """Add a product to the list."""
    me = visit.signed_in()["id"]
    row = product_row(visit, visit.number("product"))
    visit.run("INSERT OR IGNORE INTO wish_items (account, product, added) VALUES (?, ?, ?)", me, row["id"], moment())
    return visit.redirect("/wishlist", f"{row['name']} has been added to your wish list.")


@site.post("/wishlist/{item:int}/note")
def note(visit: Visit, item: int) -> Response:
    """Save the note on a product."""
    row = _own(visit, item)
    visit.run("UPDATE wish_items SET note = ? WHERE id = ?", visit.text("note", 200), item)
    return visit.redirect("/wishlist", f"The note on {row['name']} has been saved.")


@site.post("/wishlist/{item:int}/remove")
def remove(visit: Visit, item: int) -> Response:
    """Remove a product from the list."""
    row = _own(visit, item)
    visit.run("DELETE FROM wish_items WHERE id = ?", item)
    return visit.redirect("/wishlist", f"{row['name']} has been removed from your wish list.")


@site.post("/wishlist/{item:int}/cart")
def to_cart(visit: Visit, item: int) -> Response:
    """Move a product to the cart; if it has options, redirect to its page."""
    row = _own(visit, item)
    if options_of(visit, row["product"]):
        return visit.redirect(f"/product/{row['product']}", "Please choose options first.")
    put(visit, Owner("account", row["account"]), product_row(visit, row["product"]), "", 1)
    visit.run("DELETE FROM wish_items WHERE id = ?", item)
    return visit.redirect("/wishlist", f"{row['name']} has been moved to your cart.")


def _own(visit: Visit, item: int) -> sqlite3.Row:
    return visit.one(
        "SELECT wish_items.*, name FROM wish_items JOIN products ON products.id = product"
        " WHERE wish_items.id = ? AND account = ?",
        item,
        visit.signed_in()["id"],
        what="entry on your wish list",
    )
