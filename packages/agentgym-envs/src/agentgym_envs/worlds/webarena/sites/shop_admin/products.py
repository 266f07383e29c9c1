"""Products: the list, the form, and bulk changes.

In the list, JavaScript allows editing the stock in place and ticking all boxes with one click.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import cents, count, get, now, post, selected
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, Option, listing
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

STATES = (("1", "Enabled"), ("0", "Disabled"))
GRID = Grid(
    select="""SELECT products.*, categories.name AS category_name
        FROM products JOIN categories ON categories.id = products.category""",
    columns=(
        Column("ID", "id"),
        Column("Name", "name"),
        Column("SKU", "sku"),
        Column("Category", "category_name"),
        Column("Price", "price", right=True),
        Column("Sale price", "sale_price", right=True),
        Column("Stock", "stock", right=True),
        Column("Status", "active"),
    ),
    filters=(
        Filter("name", "Name", "products.name LIKE ? ESCAPE '\\'"),
        Filter("sku", "SKU", "products.sku LIKE ? ESCAPE '\\'"),
        Filter("category", "Category", "products.category = ?", "choice"),
        Filter("active", "Status", "products.active = ?", "choice", STATES),
        Filter("cheapest", "Price from", "products.price >= ?", "money"),
        Filter("dearest", "Price to", "products.price <= ?", "money"),
        Filter("fewest", "Stock from", "products.stock >= ?", "count"),
        Filter("most", "Stock to", "products.stock <= ?", "count"),
    ),
    order="id",
    down=False,
)
_TEXTS = ("name", "sku", "brand", "colour", "material", "description")
_MASS = ("enable", "disable", "price", "delete")


@get("/products")
def products(visit: Visit) -> Response:
    """List all products."""
    return visit.render("products.html", list=listing(visit, GRID, {"category": _categories(visit)}))


@get("/products/new")
def new_product(visit: Visit) -> Response:
    """Show the form for a new product."""
    empty = dict.fromkeys((*_TEXTS, "price", "sale_price", "stock"), "")
    return _form(visit, None, empty | {"category": "", "active": "1"}, [])


@get("/products/{product:int}")
def product_page(visit: Visit, product: int) -> Response:
    """Show the form for a product."""
    found = visit.one("SELECT * FROM products WHERE id = ?", product, what="product")
    typed = {key: str(found[key]) for key in (*_TEXTS, "stock", "category", "active")}
    prices = {key: "" if found[key] is None else f"{found[key] / 100:.2f}" for key in ("price", "sale_price")}
    return _form(visit, found, typed | prices, [])


@post("/products/new")
def create_product(visit: Visit) -> Response:
    """Create a product."""
    typed, values, errors = _read(visit, 0)
    if errors:
        return _form(visit, None, typed, errors)
    values |= {"specifications": "{}", "created": now()}
    names = ", ".join(values)
    holes = ", ".join("?" * len(values))
    product = visit.run(f"INSERT INTO products ({names}) VALUES ({holes})", *values.values())
    return visit.redirect(f"/products/{product}", f"The product {values['name']} was added.")


@post("/products/{product:int}")
def change_product(visit: Visit, product: int) -> Response:
    """Save a product."""
    found = visit.one("SELECT * FROM products WHERE id = ?", product, what="product")
    typed, values, errors = _read(visit, product)
    if errors:
        return _form(visit, found, typed, errors)
    changes = ", ".join(f"{name} = ?" for name in values)
    visit.run(f"UPDATE products SET {changes} WHERE id = ?", *values.values(), product)
    return visit.redirect(f"/products/{product}", f"The product {values['name']} was saved.")


@post("/products/{product:int}/stock")
def change_stock(visit: Visit, product: int) -> Response:
    """Change the stock from within the list; returns JSON to a script."""
    found = visit.one("SELECT name FROM products WHERE id = ?", product, what="product")
    stock = count(visit.text("stock"))
    if stock is None:
        return visit.json({"error": "The stock is a whole number from 0 to 1000000."})
    visit.run("UPDATE products SET stock = ? WHERE id = ?", stock, product)
    return visit.json({"stock": stock, "notice": f"The stock of {found['name']} is {stock} now."})


@post("/products/mass")
def change_products(visit: Visit) -> Response:
    """Apply an action to all selected products."""
    chosen, action = selected(visit), visit.text("action")
    if not chosen:
        raise Refused("No product was selected: tick the boxes in front of the products first.")
    if action not in _MASS:
        raise Refused("Choose what to do with the selected products.")
    done = {"enable": _enable, "disable": _disable, "price": _change_prices, "delete": _delete}[action](visit, chosen)
    return visit.redirect(visit.text("back"), done)


def _enable(visit: Visit, chosen: list[int]) -> str:
    visit.run(f"UPDATE products SET active = 1 WHERE id IN ({_holes(chosen)})", *chosen)
    return f"{_many(chosen)} enabled."


def _disable(visit: Visit, chosen: list[int]) -> str:
    visit.run(f"UPDATE products SET active = 0 WHERE id IN ({_holes(chosen)})", *chosen)
    return f"{_many(chosen)} disabled."


def _change_prices(visit: Visit, chosen: list[int]) -> str:
    """Change prices, rounded to the cent; drop a sale price that would no longer be lower than the price."""
    text = visit.text("percent").removesuffix("%").strip()
    if not re.fullmatch(r"[+-]?\d{1,3}", text, re.ASCII) or not -90 <= int(text) <= 500:
        raise Refused("The change in percent is a whole number from -90 to 500, such as -10 or 5.")
    percent = int(text)
    for product in chosen:
        visit.run("UPDATE products SET price = (price * ? + 50) / 100 WHERE id = ?", 100 + percent, product)
        visit.run("UPDATE products SET sale_price = NULL WHERE id = ? AND sale_price >= price", product)
    return f"{_many(chosen)} changed in price by {percent:+d}%."


def _delete(visit: Visit, chosen: list[int]) -> str:
    ordered = visit.value(
        f"SELECT count(DISTINCT product) FROM order_items WHERE product IN ({_holes(chosen)})", *chosen
    )
    if ordered:
        raise Refused(
            f"{ordered} of the selected products were ordered before, and orders keep their products: nothing was "
            "deleted. Disable them instead."
        )
    visit.run(f"DELETE FROM products WHERE id IN ({_holes(chosen)})", *chosen)
    return f"{_many(chosen)} deleted."


def _holes(chosen: list[int]) -> str:
    return ", ".join("?" * len(chosen))


def _many(chosen: list[int]) -> str:
    return "1 product was" if len(chosen) == 1 else f"{len(chosen)} products were"


def _categories(visit: Visit) -> list[Option]:
    return [(str(row["id"]), row["name"]) for row in visit.all("SELECT id, name FROM categories ORDER BY name")]


def _form(visit: Visit, found: sqlite3.Row | None, typed: Mapping[str, str], errors: list[str]) -> Response:
    values: dict[str, Any] = {"product": found, "typed": typed, "errors": errors, "states": STATES}
    if found is not None:
        values["sold"] = visit.value(
            "SELECT coalesce(sum(quantity), 0) FROM order_items JOIN orders ON orders.id = order_id"
            " WHERE product = ? AND status <> 'cancelled'",
            found["id"],
        )
    return visit.render("product.html", 422 if errors else 200, categories=_categories(visit), **values)


def _read(visit: Visit, product: int) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Return the submitted texts, the values for the database, and the errors."""
    keys = (*_TEXTS, "price", "sale_price", "stock", "category", "active")
    typed = {key: visit.text(key, 4000) for key in keys}
    price, sale, stock = cents(typed["price"]), cents(typed["sale_price"]), count(typed["stock"])
    category = count(typed["category"])
    taken = visit.value("SELECT id FROM products WHERE sku = ? AND id <> ?", typed["sku"], product)
    wrong = {
        "Enter a name.": not typed["name"],
        "Enter a SKU.": not typed["sku"],
        "Another product has this SKU.": taken is not None,
        "The price is an amount such as 24.50.": price is None,
        "The sale price is an amount below the price, or empty.": bool(typed["sale_price"])
        and (sale is None or price is None or sale >= price),
        "The stock is a whole number from 0 to 1000000.": stock is None,
        "Choose a category.": visit.value("SELECT id FROM categories WHERE id = ?", category) is None,
    }
    values: dict[str, Any] = {key: typed[key] for key in _TEXTS}
    values |= {"price": price, "sale_price": sale, "stock": stock, "category": category}
    return typed, values | {"active": int(typed["active"] == "1")}, [text for text, holds in wrong.items() if holds]
