"""A product's page, its reviews, and the comparison of products."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.front import moment, owner, owner_or_new, site
from agentgym_envs.worlds.webarena.sites.shop.rules import PRICE
from agentgym_envs.worlds.webarena.sites.web import Visit, pages

_REVIEWS = 6
_MOST_COMPARED = 4
_ORDERS = {
    "newest": ("Newest first", "created DESC, id DESC"),
    "oldest": ("Oldest first", "created, id"),
    "best": ("Most stars first", "stars DESC, created DESC, id DESC"),
    "worst": ("Fewest stars first", "stars, created DESC, id DESC"),
}


def product_row(visit: Visit, product: int) -> sqlite3.Row:
    """Return an active product with its current `cost`, category and department."""
    return visit.one(
        f"SELECT products.*, {PRICE} AS cost, picture, categories.name AS category_name,"
        " categories.slug AS category_slug, departments.name AS department_name, departments.slug AS department_slug"
        " FROM products JOIN categories ON categories.id = category JOIN departments ON departments.id = department"
        " WHERE products.id = ? AND active",
        product,
        what="product",
    )


def options_of(visit: Visit, product: int) -> dict[str, list[sqlite3.Row]]:
    """Return a product's options by kind."""
    found: dict[str, list[sqlite3.Row]] = {}
    for row in visit.all("SELECT * FROM product_options WHERE product = ? ORDER BY id", product):
        found.setdefault(row["kind"], []).append(row)
    return found


@site.get("/product/{product:int}")
def product(visit: Visit, product: int) -> Response:
    """Show a product."""
    row = product_row(visit, product)
    visit.canonical()
    where, values = "product = ? AND status = 'approved'", [product]
    stars = visit.number("stars", 0, 0, 5)
    if stars:
        where, values = f"{where} AND stars = ?", [product, stars]
    order = visit.text("order") if visit.text("order") in _ORDERS else "newest"
    shown = pages(visit.value(f"SELECT count(*) FROM reviews WHERE {where}", *values), _REVIEWS, visit.number("page"))
    reviews = visit.all(
        f"SELECT * FROM reviews WHERE {where} ORDER BY {_ORDERS[order][1]} LIMIT ? OFFSET ?",
        *values,
        _REVIEWS,
        shown["offset"],
    )
    counts = dict(
        visit.db.execute(
            "SELECT stars, count(*) FROM reviews WHERE product = ? AND status = 'approved' GROUP BY 1", (product,)
        ).fetchall()
    )
    return visit.render(
        "product.html",
        product=row,
        options=options_of(visit, product),
        reviews=reviews,
        pages=shown,
        counts=counts,
        stars=stars,
        order=order,
        orders=[(key, text) for key, (text, _) in _ORDERS.items()],
        problems=[],
    )


@site.get("/product/{product:int}/quick")
def quick_view(visit: Visit, product: int) -> Response:
    """Render the content of the quick view's dialog."""
    return visit.render("quick.html", product=product_row(visit, product), options=options_of(visit, product))


@site.get("/product/{product:int}/review")
def review_form(visit: Visit, product: int) -> Response:
    """Show the form for a review."""
    return visit.render("review.html", product=product_row(visit, product), problems=[])


@site.post("/product/{product:int}/review")
def add_review(visit: Visit, product: int) -> Response:
    """Submit a review; it is shown after the office approves it."""
    row = product_row(visit, product)
    stars = visit.number("stars", 0, 0, 5)
    given = {name: visit.text(name, 2000) for name in ("nickname", "title", "text")}
    problems = [f"Please fill in the field {field}." for field, text in given.items() if not text]
    problems += [] if stars else ["Please choose how many stars you give."]
    if problems:
        return visit.render("review.html", 422, product=row, problems=problems)
    visit.run(
        "INSERT INTO reviews (product, account, nickname, title, text, stars, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
        product,
        visit.account["id"] if visit.account else None,
        given["nickname"],
        given["title"],
        given["text"],
        stars,
        moment()[:10],
    )
    return visit.redirect(f"/product/{product}", "Thank you. Your review will be shown once we have read it.")


@site.get("/compare")
def compare(visit: Visit) -> Response:
    """Show the chosen products in a comparison table."""
    buyer = owner(visit)
    goods = [] if buyer is None else [product_row(visit, number) for number in _compared(visit, buyer.column, buyer.id)]
    return visit.render("compare.html", goods=goods)


@site.post("/compare/add")
def compare_add(visit: Visit) -> Response:
    """Add a product to the comparison; the oldest one is dropped if it is full."""
    row = product_row(visit, visit.number("product"))
    buyer = owner_or_new(visit)
    present = _compared(visit, buyer.column, buyer.id)
    if row["id"] not in present:
        for number in present[: max(0, len(present) - _MOST_COMPARED + 1)]:
            visit.run(f"DELETE FROM compare_items WHERE {buyer.column} = ? AND product = ?", buyer.id, number)
        visit.run(f"INSERT INTO compare_items ({buyer.column}, product) VALUES (?, ?)", buyer.id, row["id"])
    return visit.redirect("/compare", f"{row['name']} has been added to the comparison.")


@site.post("/compare/remove")
def compare_remove(visit: Visit) -> Response:
    """Remove a product from the comparison."""
    buyer = owner_or_new(visit)
    visit.run(f"DELETE FROM compare_items WHERE {buyer.column} = ? AND product = ?", buyer.id, visit.number("product"))
    return visit.redirect("/compare")


def _compared(visit: Visit, column: str, number: int) -> list[int]:
    rows = visit.all(
        "SELECT product FROM compare_items JOIN products ON products.id = product AND active"
        f" WHERE {column} = ? ORDER BY compare_items.id",
        number,
    )
    return [row["product"] for row in rows]
