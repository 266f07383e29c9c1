"""Tasks that end with an answer or on a page and change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from agentgym_envs.worlds.webarena.sites.shop.rules import PRICE
from agentgym_envs.worlds.webarena.sites.shop.task_helpers import (
    SHOPPING,
    about,
    amount,
    goods,
    open_category,
    open_order,
    open_product,
    own_orders,
    values,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, at, choose, click, fill, said, stop

_SHOP = "http://shop.example"
_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_SEVERAL_KINDS = "(SELECT count(DISTINCT kind) FROM product_options WHERE product = products.id) > 1"


def _cost_with_option(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["shop"]
    for row in goods(databases, random, f"{PRICE} < 80000 AND NOT ({_SEVERAL_KINDS})"):
        options = db.execute("SELECT * FROM product_options WHERE product = ? AND extra > 0", (row["id"],)).fetchall()
        if options:
            option = random.choice(options)
            answer = amount(row["cost"] + option["extra"])
            wanted = f"{option['kind'].lower()} {option['value']}"
            plan = [*open_product(row["name"]), stop(f"${answer}")]
            yield Case({"product": row["name"], "option": wanted}, about(row), said(answer), plan)


def _specification(databases: Databases, random: Random) -> Iterator[Case]:
    specs = [json.loads(text) for text in values(databases["shop"], "SELECT specifications FROM products ORDER BY id")]
    different = {key: len({known.get(key) for known in specs}) for known in specs for key in known}
    for row in goods(databases, random):
        known = json.loads(row["specifications"])
        named = [key for key, value in known.items() if len(value) > 4 and different[key] > 5]
        if named:
            key = random.choice(named)
            plan = [*open_product(row["name"]), stop(known[key])]
            yield Case({"product": row["name"], "property": key}, about(row), said(exact=known[key]), plan)


def _cheapest(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["shop"]
    for row in goods(databases, random):
        of_brand = (row["category"], row["brand"])
        rows = db.execute(
            f"SELECT name, {PRICE} AS cost FROM products WHERE category = ? AND brand = ? AND active ORDER BY cost",
            of_brand,
        ).fetchall()
        if len(rows) > 2 and rows[0]["cost"] < rows[1]["cost"]:
            plan = [
                *open_category(row),
                choose("Brand", f"{row['brand']} ({len(rows)})"),
                click("button", "Apply filters"),
                choose("Sort by", "Price: low to high"),
                click("button", "Sort"),
                stop(rows[0]["name"]),
            ]
            holes = {"brand": row["brand"], "category": row["category_name"]}
            entities = frozenset({f"shelf:{row['category_name']}/{row['brand']}"})
            names = [other["name"] for other in rows]
            yield Case(holes, entities, said(rows[0]["name"], rivals=names), plan)


def _price_gap(databases: Databases, random: Random) -> Iterator[Case]:
    for first, second in pairwise(goods(databases, random, f"{PRICE} < 90000", most=300)):
        more, less = sorted((first, second), key=lambda row: -row["cost"])
        if (more["cost"] - less["cost"]) % 10:  # an agent might leave out the cents of a round amount
            answer = amount(more["cost"] - less["cost"])
            judged = said(answer, terms=(amount(more["cost"]), amount(less["cost"])))
            plan = [*open_product(more["name"]), *open_product(less["name"]), stop(f"${answer}")]
            yield Case({"one": more["name"], "other": less["name"]}, about(more) | about(less), judged, plan)


def _only_reviewer(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["shop"]
    for row in goods(databases, random, "reviews BETWEEN 4 AND 20", most=300):
        stars = random.choice((1, 2, 3))
        sql = "SELECT nickname FROM reviews WHERE product = ? AND stars = ? AND status = 'approved'"
        names = values(db, sql, row["id"], stars)
        if len(names) == 1:
            number = f"{stars} star{'s' if stars > 1 else ''}"
            plan = [*open_product(row["name"]), click("link", f"{number} (1)"), stop(names[0])]
            everyone = values(db, "SELECT nickname FROM reviews WHERE product = ?", row["id"])
            judged = said(names[0], rivals=everyone)
            yield Case({"product": row["name"], "stars": number}, about(row), judged, plan)


def _who_mentions(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["shop"]
    words = (
        "battery",
        "noise",
        "smell",
        "size",
        "weight",
        "sound",
        "colour",
        "packaging",
        "skin",
        "fit",
        "instructions",
    )
    for row in goods(databases, random, "reviews BETWEEN 5 AND 12", most=400):
        reviews = db.execute(
            "SELECT nickname, text FROM reviews WHERE product = ? AND status = 'approved' ORDER BY id",
            (row["id"],),
        ).fetchall()
        for word in random.sample(words, len(words)):
            naming = [review["nickname"] for review in reviews if word in review["text"].lower()]
            whole = [review for review in reviews if word in review["text"].lower().strip(".").replace(",", "").split()]
            if 1 <= len(naming) <= 3 and len(naming) == len(whole) and len(set(naming)) == len(naming):
                turns = [click("link", "Next")] if len(reviews) > 6 else []
                plan = [*open_product(row["name"]), *turns, stop(", ".join(naming))]
                judged = said(*naming, rivals=(review["nickname"] for review in reviews))
                yield Case({"product": row["name"], "word": word}, about(row), judged, plan)
                break


def _order_total(databases: Databases, random: Random) -> Iterator[Case]:
    for row in random.sample(found := own_orders(databases, "status <> 'cancelled'"), len(found)):
        plan = [*open_order(row["name"], row["id"]), stop(f"${amount(row['total'])}")]
        yield Case({"product": row["name"]}, about(row), said(amount(row["total"])), plan)


def _month_spent(databases: Databases, random: Random) -> Iterator[Case]:
    sql = (
        "SELECT substr(placed, 1, 7) AS month, sum(CASE WHEN status <> 'cancelled' THEN total ELSE 0 END) AS spent,"
        " max((SELECT count(*) FROM orders AS o WHERE o.account = 1 AND o.placed > orders.placed)) / 10 AS last_page"
        " FROM orders WHERE account = 1 GROUP BY 1 HAVING spent % 10 > 0 ORDER BY 1"
    )
    placed = "SELECT total FROM orders WHERE account = 1 AND status <> 'cancelled' AND placed LIKE ? ORDER BY id"
    for row in random.sample(found := databases["shop"].execute(sql).fetchall(), len(found)):
        year, month = row["month"].split("-")
        judged = said(amount(row["spent"]), terms=map(amount, values(databases["shop"], placed, f"{row['month']}-%")))
        named = f"{_MONTHS[int(month) - 1]} {year}"
        turns = [click("link", "Next")] * row["last_page"]
        plan = [click("link", "My account"), click("link", "My orders"), *turns, stop(f"${amount(row['spent'])}")]
        yield Case({"month": named}, frozenset({f"month:{named}"}), judged, plan)


def _tracking(databases: Databases, random: Random) -> Iterator[Case]:
    where = "EXISTS (SELECT 1 FROM shipments WHERE order_id = orders.id)"
    for row in random.sample(found := own_orders(databases, where), len(found)):
        [number] = values(databases["shop"], "SELECT tracking FROM shipments WHERE order_id = ?", row["id"])
        plan = [*open_order(row["name"], row["id"]), stop(number)]
        yield Case({"product": row["name"]}, about(row), said(number), plan)


def _guest_carrier(databases: Databases, random: Random) -> Iterator[Case]:
    sql = (
        "SELECT orders.id, email, tracking FROM orders JOIN shipments ON order_id = orders.id"
        " WHERE account IS NULL OR account <> 1 ORDER BY orders.id"
    )
    for row in random.sample(databases["shop"].execute(sql).fetchall(), 150):
        plan = [
            click("link", "Track an order"),
            fill("textbox", "Order number", str(row["id"])),
            fill("textbox", "E-mail of the order", row["email"]),
            click("button", "Track order"),
            stop(row["tracking"]),
        ]
        holes = {"number": row["id"], "email": row["email"]}
        yield Case(holes, frozenset({f"order:{row['id']}"}), said(row["tracking"]), plan)


def _narrowed(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random):
        most = max(10, row["cost"] // 1000 * 10 + 10)
        plan = [
            *open_category(row),
            choose("Brand", _brand_option(databases, row["category"], row["brand"])),
            fill("textbox", "Price up to ($)", str(most)),
            click("button", "Apply filters"),
            stop(),
        ]
        holes = {"category": row["category_name"], "brand": row["brand"], "most": most}
        entities = frozenset({f"shelf:{row['category_name']}/{row['brand']}"})
        url = f"{_SHOP}/category/{row['category_slug']}?brand={row['brand']}&to={most}"
        yield Case(holes, entities, at(url), plan)


def _brand_option(databases: Databases, category: int, brand: str) -> str:
    sql = "SELECT count(*) FROM products WHERE category = ? AND brand = ? AND active"
    return f"{brand} ({values(databases['shop'], sql, category, brand)[0]})"


def _sorted(databases: Databases, random: Random) -> Iterator[Case]:
    wishes = {
        "the most expensive first": ("price-down", "Price: high to low"),
        "the cheapest first": ("price", "Price: low to high"),
        "the best rated first": ("rating", "Rating"),
        "the newest first": ("newest", "Newest first"),
        "what sells best first": ("bestselling", "Bestselling"),
    }
    sql = (
        "SELECT categories.name AS category_name, categories.slug AS category_slug, departments.name AS department_name"
        " FROM categories JOIN departments ON departments.id = department ORDER BY categories.id"
    )
    for row in random.sample(found := databases["shop"].execute(sql).fetchall(), len(found)):
        wish, (key, text) = random.choice(list(wishes.items()))
        plan = [*open_category(row), choose("Sort by", text), click("button", "Sort"), stop()]
        entities = frozenset({f"category:{row['category_name']}"})
        holes = {"category": row["category_name"], "order": wish}
        yield Case(holes, entities, at(f"{_SHOP}/category/{row['category_slug']}?sort={key}"), plan)


def _by_sku(databases: Databases, random: Random) -> Iterator[Case]:
    for row in goods(databases, random):
        plan = [
            click("link", "Advanced search"),
            fill("textbox", "SKU", row["sku"], enter=True),
            click("link", row["name"]),
            stop(),
        ]
        yield Case({"sku": row["sku"]}, about(row), at(f"{_SHOP}/product/{row['id']}"), plan)


READING = (
    Template("shop/cost-with-option", SHOPPING, "What does the {{product}} cost in {{option}}?", _cost_with_option),
    Template(
        "shop/specification",
        SHOPPING,
        "What do the specifications of the {{product}} say under '{{property}}'? Answer just as written there.",
        _specification,
    ),
    Template(
        "shop/cheapest-of-brand",
        SHOPPING,
        "Which {{brand}} product in the category {{category}} is the cheapest at present?",
        _cheapest,
    ),
    Template(
        "shop/price-gap",
        SHOPPING,
        "By how many dollars is the {{one}} dearer than the {{other}}? Take the present prices without options.",
        _price_gap,
    ),
    Template(
        "shop/only-reviewer",
        SHOPPING,
        "There is just one review of the {{product}} with {{stars}}. Under which nickname was it written?",
        _only_reviewer,
    ),
    Template(
        "shop/who-mentions",
        SHOPPING,
        "Tell me the nicknames of all reviewers of the {{product}} who use the word '{{word}}' in the text"
        " of their review.",
        _who_mentions,
        held_out=True,
    ),
    Template(
        "shop/order-total",
        SHOPPING,
        "How much did I pay in total for the order in which I bought the {{product}}?",
        _order_total,
    ),
    Template(
        "shop/month-spent",
        SHOPPING,
        "Add up the totals of the orders I placed in {{month}}, leaving out cancelled ones.",
        _month_spent,
    ),
    Template("shop/tracking", SHOPPING, "Find the tracking number of the parcel with my {{product}}.", _tracking),
    Template(
        "shop/guest-tracking",
        SHOPPING,
        "A friend gave me her order number {{number}} and her e-mail address {{email}}."
        " What is the tracking number of her parcel?",
        _guest_carrier,
        held_out=True,
    ),
    Template(
        "shop/narrowed",
        SHOPPING,
        "Show me what {{brand}} has in the category {{category}} for ${{most}} at most, using the filters.",
        _narrowed,
    ),
    Template("shop/sorted", SHOPPING, "List the category {{category}}, {{order}}.", _sorted),
    Template("shop/by-sku", SHOPPING, "Open the page of the product with the SKU {{sku}}.", _by_sku),
)
"""Templates of this module."""
