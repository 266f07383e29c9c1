"""Product lists: home, departments, categories, brands, offers, search, suggestions."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.front import site
from agentgym_envs.worlds.webarena.sites.shop.rules import PRICE
from agentgym_envs.worlds.webarena.sites.shop.search import condition, pattern
from agentgym_envs.worlds.webarena.sites.web import Visit, pages

_SIZE = 12
_SORTS = {
    "position": ("Position", "products.id"),
    "price": ("Price: low to high", "cost, products.name"),
    "price-down": ("Price: high to low", "cost DESC, products.name"),
    "name": ("Name", "products.name"),
    "rating": ("Rating", "rating DESC NULLS LAST, reviews DESC, products.name"),
    "newest": ("Newest first", "created DESC, products.id"),
    "bestselling": ("Bestselling", "sold DESC, products.name"),
}
_CARD = f"products.*, {PRICE} AS cost, picture, categories.name AS category_name, categories.slug AS category_slug"
_FROM = "FROM products JOIN categories ON categories.id = category"


@site.get("/")
def home(visit: Visit) -> Response:
    """Show departments, offers and bestsellers."""
    offers = visit.all(
        f"SELECT {_CARD} {_FROM} WHERE active AND sale_price IS NOT NULL AND stock > 0"
        " ORDER BY sale_price * 100 / price, products.id LIMIT 4"
    )
    best = visit.all(f"SELECT {_CARD} {_FROM} WHERE active ORDER BY sold DESC, products.id LIMIT 4")
    newest = visit.all(f"SELECT {_CARD} {_FROM} WHERE active ORDER BY created DESC, products.id LIMIT 4")
    return visit.render("home.html", offers=offers, best=best, newest=newest)


@site.get("/department/{slug}")
def department(visit: Visit, slug: str) -> Response:
    """Show a department with its categories and products."""
    row = visit.one("SELECT * FROM departments WHERE slug = ?", slug, what="department")
    categories = visit.all(
        "SELECT categories.*, (SELECT count(*) FROM products WHERE category = categories.id AND active) AS goods"
        " FROM categories WHERE department = ? ORDER BY id",
        row["id"],
    )
    return _listing(visit, row["name"], "department = ?", [row["id"]], categories=categories)


@site.get("/category/{slug}")
def category(visit: Visit, slug: str) -> Response:
    """List the products of a category."""
    row = visit.one("SELECT * FROM categories WHERE slug = ?", slug, what="category")
    parent = visit.one("SELECT * FROM departments WHERE id = ?", row["department"])
    return _listing(visit, row["name"], "category = ?", [row["id"]], parent=parent)


@site.get("/brand/{name}")
def brand(visit: Visit, name: str) -> Response:
    """List the products of a brand."""
    row = visit.one("SELECT brand FROM products WHERE brand = ?", name, what="brand")
    return _listing(visit, row["brand"], "brand = ?", [name])


@site.get("/offers")
def offers(visit: Visit) -> Response:
    """List the products on sale."""
    return _listing(visit, "Offers", "sale_price IS NOT NULL", [])


@site.get("/search")
def search(visit: Visit) -> Response:
    """List the search results; matches in names rank above matches in descriptions."""
    query = visit.text("q", 200)
    if not query:
        return visit.redirect("/search/advanced")
    test, values = condition(query)
    return _listing(visit, f"Search results for '{query}'", test, values, first=query)


@site.get("/search/advanced")
def advanced(visit: Visit) -> Response:
    """Search by individual fields; without any of them, show the form."""
    fields = {name: visit.text(name, 200) for name in ("name", "sku", "description")}
    low, high = visit.text("from"), visit.text("to")
    if not any((*fields.values(), low, high)):
        return visit.render("advanced.html")
    used = {column: text for column, text in fields.items() if text}
    tests = [f"products.{column} LIKE ? ESCAPE '\\'" for column in used]
    return _listing(visit, "Advanced search", " AND ".join(tests) or "1", [pattern(text) for text in used.values()])


@site.get("/suggest")
def suggest(visit: Visit) -> Response:
    """Return suggestions for the search field's script: products whose name contains every word typed so far."""
    words = visit.text("q", 100).split()[:6]
    if not words:
        return visit.json([])
    tests = " AND ".join(["name LIKE ? ESCAPE '\\'"] * len(words))
    rows = visit.all(
        f"SELECT id, name FROM products WHERE active AND {tests} ORDER BY sold DESC, name LIMIT 6", *map(pattern, words)
    )
    return visit.json([{"name": row["name"], "href": f"/product/{row['id']}"} for row in rows])


def _listing(
    visit: Visit,
    title: str,
    base: str,
    values: list[Any],
    *,
    parent: sqlite3.Row | None = None,
    categories: list[sqlite3.Row] | None = None,
    first: str = "",
) -> Response:
    """Render a list of products, filtered and sorted by the query. A name that contains `first` ranks higher."""
    tests, chosen = _filters(visit)
    where, given = f"active AND {base}", list(values)
    for test, value in tests.values():
        where += f" AND {test}"
        given += [] if value is None else [value]
    sort = visit.text("sort") if visit.text("sort") in _SORTS else "position"
    read = {field: f"{value / 100:g}" if field in ("from", "to") else value for field, (_, value) in tests.items()}
    if read.get("from") == "0":  # every price is at least 0
        read["from"] = None
    read |= {field: visit.text(field, 200) for field in ("q", "name", "sku", "description")}
    read |= {"stock": 1 if "stock" in tests else None, "sort": None if sort == "position" else sort}
    visit.canonical(**read)
    order = _SORTS[sort][1]
    if first and sort == "position":
        order = f"products.name LIKE ? ESCAPE '\\' DESC, {order}"
    shown = pages(visit.value(f"SELECT count(*) {_FROM} WHERE {where}", *given), _SIZE, visit.number("page"))
    named = [pattern(first)] if first and sort == "position" else []
    found = visit.all(
        f"SELECT {_CARD} {_FROM} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
        *given,
        *named,
        _SIZE,
        shown["offset"],
    )
    return visit.render(
        "listing.html",
        title=title,
        goods=found,
        pages=shown,
        parent=parent,
        categories=categories or [],
        sorts=[(key, text) for key, (text, _) in _SORTS.items()],
        sort=sort,
        chosen=chosen,
        facets=_facets(visit, f"active AND {base}", values),
        view="list" if visit.text("view") == "list" else "grid",
        hidden=[pair for pair in visit.query.multi_items() if pair[0] in _KEPT],
    )


_KEPT = ("q", "name", "sku", "description", "brand", "rating", "stock", "sort", "view")


def _filters(visit: Visit) -> tuple[dict[str, tuple[str, Any]], dict[str, str]]:
    """Return the conditions requested in the query by field, and a description of each."""
    tests: dict[str, tuple[str, Any]] = {}
    words: dict[str, str] = {}
    for field in ("brand", "colour", "material"):
        if value := visit.text(field, 60):
            tests[field] = (f"products.{field} = ?", value)
            words[field] = f"{field.capitalize()}: {value}"
    for field, sign, says in (("from", ">=", "From"), ("to", "<=", "Up to")):
        if (dollars := _amount(visit.text(field, 12))) is not None:
            tests[field] = (f"{PRICE} {sign} ?", round(dollars * 100))
            words[field] = f"{says} ${dollars:,.2f}"
    if visit.text("rating") in ("1", "2", "3", "4"):
        tests["rating"] = ("products.rating >= ?", visit.number("rating"))
        words["rating"] = f"{visit.number('rating')} stars and more"
    if visit.text("stock") == "1":
        tests["stock"] = ("stock > 0", None)
        words["stock"] = "In stock"
    return tests, words


def _amount(text: str) -> float | None:
    try:
        value = float(text.replace("$", "").replace(",", ""))
    except ValueError:
        return None
    return value if 0 <= value < 1e7 else None


def _facets(visit: Visit, where: str, values: list[Any]) -> dict[str, list[sqlite3.Row]]:
    """Return the values that a list can be filtered by, with the number of products of each."""
    return {
        field: visit.all(
            f"SELECT products.{field} AS value, count(*) AS goods {_FROM} WHERE {where}"
            f" GROUP BY 1 ORDER BY {'2 DESC, 1' if field == 'brand' else '1'} LIMIT 20",
            *values,
        )
        for field in ("brand", "colour", "material")
    }
