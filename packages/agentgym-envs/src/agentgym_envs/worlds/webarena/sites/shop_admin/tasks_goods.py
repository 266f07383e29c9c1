"""Tasks about products and reviews: prices, stock, availability, moderation."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import edited
from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import (
    SITES,
    applied,
    drawn,
    listed,
    money,
    number,
    one,
    product_page,
    section,
)
from agentgym_envs.worlds.webarena.sites.tasks import (
    Case,
    Databases,
    Step,
    Template,
    both,
    choose,
    click,
    fill,
    rows,
    said,
    stop,
)

_PRODUCTS = "SELECT id, name, sku, price, stock FROM products WHERE id % 6 = 1 AND sale_price IS NULL ORDER BY id"
_SIZES = ("Small", "Large", "Travel", "Family", "Double", "Slim")


def _all(action: str, *more: Step) -> list[Step]:
    """Select all rows, choose the action, apply it."""
    return [
        click("checkbox", "Select all on this page"),
        choose("Action", action),
        *more,
        click("button", "Apply to selected"),
        stop(),
    ]


def _price(databases: Databases, random: Random) -> Iterator[Case]:
    for product in drawn(databases, random, _PRODUCTS):
        price = product["price"] + random.choice((-300, -150, -50, 50, 125, 200, 400)) // 50 * 50 + 49
        plan = [
            *product_page(product["name"]),
            fill("textbox", "Price", f"{price / 100:.2f}"),
            click("button", "Save product"),
            stop(),
        ]
        judged = edited(databases["shop"], "shopping_admin", "product_contents", product["id"], price=price)
        values = {"product": product["name"], "price": f"${money(price)}"}
        if price > 100:
            yield Case(values, one(f"product:{product['name']}"), judged, plan)


def _stock(databases: Databases, random: Random) -> Iterator[Case]:
    for product in drawn(databases, random, _PRODUCTS):
        stock = product["stock"] + random.randint(3, 90)
        label = f"{product['name']} ({product['sku']})"
        judged = edited(databases["shop"], "shopping_admin", "product_contents", product["id"], stock=stock)
        plan = [
            *section("Products", fill("textbox", "SKU", product["sku"], enter=True)),
            click("button", f"Edit stock of {label}: {product['stock']}"),
            fill("textbox", f"Stock of {label}", str(stock), enter=True),
            stop(),
        ]
        values = {"sku": product["sku"], "stock": stock}
        yield Case(values, one(f"product:{product['name']}"), judged, plan)


def _brand_prices(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """SELECT brand, category, categories.name AS name, group_concat(products.id) AS ids
        FROM products JOIN categories ON categories.id = category
        GROUP BY brand, category HAVING count(*) BETWEEN 2 AND 12 AND count(sale_price) = 0
        ORDER BY category, brand"""
    for group in drawn(databases, random, sql):
        percent = random.choice((-20, -15, -10, -5, 5, 10, 20))
        find = "SELECT count(*) FROM products WHERE category = ? AND name LIKE ?"
        ids = sorted(int(product) for product in group["ids"].split(","))
        if number(databases, find, group["category"], f"%{group['brand']}%") != len(ids):
            continue
        mine = listed([str(n) for n in ids])
        query = f"SELECT id, price FROM products WHERE id IN ({mine}) ORDER BY id"
        others = f"SELECT sum(price) FROM products WHERE id NOT IN ({mine})"
        prices = [[row["id"], (row["price"] * (100 + percent) + 50) // 100] for row in databases["shop"].execute(query)]
        find_them = [choose("Category", group["name"]), fill("textbox", "Name", group["brand"])]
        plan = [
            *applied("Products", *find_them),
            *_all("Change price by percent", fill("textbox", "Percent", str(percent))),
        ]
        change = f"{'Lower' if percent < 0 else 'Raise'} the price"
        values = {"change": change, "brand": group["brand"], "category": group["name"], "percent": abs(percent)}
        rest = rows("shopping_admin", others, [number(databases, others)])
        judged = both(rows("shopping_admin", query, *prices), rest)
        yield Case(values, one(f"category:{group['category']}"), judged, plan)


def _disable_sold_out(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """SELECT categories.id AS id, categories.name AS name, count(*) AS number
        FROM products JOIN categories ON categories.id = category WHERE stock = 0 AND active = 1
        GROUP BY categories.id HAVING number <= 15 ORDER BY categories.id"""
    for category in drawn(databases, random, sql):
        mine = f"category = {category['id']} AND stock = 0 AND active = 0"
        query = f"SELECT count(*), sum({mine}) FROM products WHERE active = 0"
        before = number(databases, "SELECT count(*) FROM products WHERE active = 0")
        expected = [before + category["number"], category["number"]]
        filters = [choose("Category", category["name"]), fill("textbox", "Stock to", "0")]
        plan = [*applied("Products", *filters), *_all("Disable")]
        judged = rows("shopping_admin", query, expected)
        yield Case({"category": category["name"]}, one(f"category:{category['id']}"), judged, plan)


def _add_product(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM products")
    sql = """SELECT categories.id AS id, categories.name AS name, brand FROM products
        JOIN categories ON categories.id = category GROUP BY categories.id ORDER BY categories.id"""
    for category in drawn(databases, random, sql):
        good = category["name"].split(" & ")[0].rstrip("s")
        name = f"{category['brand']} {random.choice(_SIZES)} {good}"
        sku, price, stock = f"NEW-{random.randrange(10**5):05d}", random.randrange(500, 9000, 50), random.randint(5, 80)
        query = (
            f"SELECT name, category, price, stock, active, (SELECT count(*) FROM products) FROM products"
            f" WHERE sku = '{sku}'"
        )
        fields = {"Name": name, "SKU": sku, "Price": f"{price / 100:.2f}", "Stock": str(stock)}
        plan = [
            click("link", "Products"),
            click("link", "Add product"),
            *(fill("textbox", label, text) for label, text in fields.items()),
            choose("Category", category["name"]),
            click("button", "Save product"),
            stop(),
        ]
        values = {"name": name, "sku": sku, "category": category["name"], "price": f"${money(price)}", "stock": stock}
        judged = rows("shopping_admin", query, [name, category["id"], price, stock, 1, before + 1])
        yield Case(values, one(f"category:{category['id']}"), judged, plan)


def _reviewers(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """SELECT products.id AS id, products.name AS name, stars, group_concat(nickname, '|') AS nicknames
        FROM reviews JOIN products ON products.id = product WHERE status = 'approved' AND products.id % 5 = 2
        GROUP BY products.id, stars HAVING count(*) BETWEEN 1 AND 3 AND count(*) = count(DISTINCT nickname)
        AND stars < 4 ORDER BY products.id, stars"""
    for found in drawn(databases, random, sql):
        names = found["nicknames"].split("|")
        sql = "SELECT DISTINCT nickname FROM reviews WHERE product = ?"
        everyone = {row["nickname"] for row in databases["shop"].execute(sql, (found["id"],))}
        if len(everyone) == len(names):
            continue  # the page names nobody else
        judged = said(*names, rivals=everyone)
        filters = [
            fill("textbox", "Product", found["name"]),
            choose("Status", "Approved"),
            choose("Stars", str(found["stars"])),
        ]
        stars = f"{found['stars']} star{'s' if found['stars'] > 1 else ''}"
        plan = [*applied("Reviews", *filters), stop(listed(names))]
        yield Case({"product": found["name"], "stars": stars}, one(f"product:{found['name']}"), judged, plan)


_REVIEWS = """SELECT reviews.id AS id, product, products.name AS name, nickname, title FROM reviews
    JOIN products ON products.id = product WHERE reviews.status = '{status}' AND {more}
    GROUP BY product, nickname HAVING count(*) = 1 ORDER BY reviews.id"""


def _approve(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM reviews WHERE status = 'approved'")
    for review in drawn(databases, random, _REVIEWS.format(status="pending", more="1")):
        count = "(SELECT count(*) FROM reviews WHERE status = 'approved')"
        query = f"SELECT status, {count} FROM reviews WHERE id = {review['id']}"
        filters = [fill("textbox", "Product", review["name"]), choose("Status", "Pending")]
        plan = [
            *applied("Reviews", *filters, fill("textbox", "Nickname", review["nickname"])),
            click("link", f"Review {review['id']}"),
            click("button", "Approve"),
            stop(),
        ]
        values = {"product": review["name"], "nickname": review["nickname"]}
        judged = rows("shopping_admin", query, ["approved", before + 1])
        yield Case(values, one(f"product:{review['name']}"), judged, plan)


def _reject_all(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM reviews WHERE status = 'rejected'")
    sql = """SELECT products.id AS id, products.name AS name, group_concat(reviews.id) AS ids, count(*) AS number
        FROM reviews JOIN products ON products.id = product WHERE status = 'pending'
        GROUP BY products.id HAVING number >= 2 ORDER BY products.id"""
    for found in drawn(databases, random, sql):
        mine = f"(SELECT count(*) FROM reviews WHERE status = 'rejected' AND id IN ({found['ids']}))"
        query = f"SELECT count(*), {mine} FROM reviews WHERE status = 'rejected'"
        filters = [fill("textbox", "Product", found["name"]), choose("Status", "Pending")]
        plan = [*applied("Reviews", *filters), *_all("Reject")]
        judged = rows("shopping_admin", query, [before + found["number"], found["number"]])
        yield Case({"product": found["name"]}, one(f"product:{found['name']}"), judged, plan)


def _delete_review(databases: Databases, random: Random) -> Iterator[Case]:
    before = number(databases, "SELECT count(*) FROM reviews")
    for review in drawn(databases, random, _REVIEWS.format(status="approved", more="stars = 1")):
        same = "SELECT count(*) FROM reviews WHERE product = ? AND nickname LIKE ?"
        if number(databases, same, review["product"], f"%{review['nickname']}%") > 1:
            continue
        query = f"SELECT count(*), sum(id = {review['id']}) FROM reviews"
        filters = [fill("textbox", "Product", review["name"]), fill("textbox", "Nickname", review["nickname"])]
        plan = [
            *applied("Reviews", *filters),
            click("link", f"Review {review['id']}"),
            click("button", "Delete review"),
            stop(),
        ]
        values = {"product": review["name"], "nickname": review["nickname"]}
        judged = rows("shopping_admin", query, [before - 1, 0])
        yield Case(values, one(f"product:{review['name']}"), judged, plan)


TEMPLATES = (
    Template("admin/change-price", SITES, "Change the price of {{product}} to {{price}}.", _price),
    Template(
        "admin/set-stock", SITES,
        "We counted the product with the SKU {{sku}}: there are {{stock}} pieces in stock. Correct that.", _stock,
    ),
    Template(
        "admin/brand-prices", SITES,
        "{{change}} of everything by {{brand}} in the category {{category}} by {{percent}} percent.", _brand_prices,
    ),
    Template(
        "admin/disable-sold-out", SITES,
        "Disable all products of the category {{category}} that are out of stock.", _disable_sold_out,
    ),
    Template(
        "admin/add-product", SITES,
        "Add a product to the category {{category}}: it is called {{name}}, has the SKU {{sku}}, costs {{price}}, "
        "and we have {{stock}} of it.", _add_product,
    ),
    Template(
        "admin/reviewers", SITES,
        "Which nicknames have the authors of the approved reviews that gave {{product}} exactly {{stars}}?",
        _reviewers,
    ),
    Template(
        "admin/approve-review", SITES,
        "Approve the pending review of {{product}} that {{nickname}} wrote.", _approve,
    ),
    Template(
        "admin/reject-reviews", SITES, "Reject all reviews of {{product}} that are still pending.", _reject_all,
    ),
    Template(
        "admin/delete-review", SITES,
        "The author, {{nickname}}, wants the review of {{product}} gone: delete it.", _delete_review, held_out=True,
    ),
)  # fmt: skip
