"""Tasks about statistics: sales by period, search terms, cancellations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.shop_admin.task_parts import (
    SITES,
    applied,
    drawn,
    last_day,
    listed,
    money,
    month_name,
    months,
    number,
    one,
    report,
    section,
    span,
    spoken,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, choose, click, fill, said, stop

_KEPT = "status <> 'cancelled'"
_SOLD = f"""SELECT products.name, sum(quantity) AS pieces, sum(quantity * order_items.price) AS revenue
    FROM order_items JOIN orders ON orders.id = order_id JOIN products ON products.id = product
    WHERE {_KEPT} AND date(placed) BETWEEN ? AND ?"""


def _monthly_orders(databases: Databases, random: Random) -> Iterator[Case]:
    for month in months(databases, random):
        count = number(databases, f"SELECT count(*) FROM orders WHERE {_KEPT} AND substr(placed, 1, 7) = ?", month)
        plan = report("Sales", *span(f"{month}-01", last_day(month)))
        values = {"month": month_name(month)}
        yield Case(values, one(f"month:{month}"), said(exact=str(count)), [*plan, stop(str(count))])


def _weekly_revenue(databases: Databases, random: Random) -> Iterator[Case]:
    first = date(2023, 7, 3)
    for week in random.sample(range(100), 100):
        days = (f"{first + timedelta(weeks=week)}", f"{first + timedelta(weeks=week, days=6)}")
        sql = f"SELECT sum(total) FROM orders WHERE {_KEPT} AND date(placed) BETWEEN ? AND ?"
        amount = money(number(databases, sql, *days))
        plan = report("Sales", *span(*days), choose("Per", "Week"))
        yield Case({"monday": spoken(days[0])}, one(f"day:{days[0]}"), said(amount), [*plan, stop(f"${amount}")])


def _category_bestseller(databases: Databases, random: Random) -> Iterator[Case]:
    for category in drawn(databases, random, "SELECT id, name FROM categories ORDER BY id"):
        year = random.choice(("2023", "2024"))
        days = (f"{year}-01-01", f"{year}-12-31")
        sql = f"{_SOLD} AND category = ? GROUP BY products.id ORDER BY pieces DESC"
        best = databases["shop"].execute(sql, (*days, category["id"])).fetchall()
        if len(best) > 1 and best[0]["pieces"] > best[1]["pieces"]:
            name = best[0]["name"]
            plan = report("Bestsellers", *span(*days), choose("Category", category["name"]))
            values = {"category": category["name"], "year": year}
            judged = said(name, rivals=(row["name"] for row in best))
            yield Case(values, one(f"category:{category['id']}"), judged, [*plan, stop(name)])


def _top_revenue(databases: Databases, random: Random) -> Iterator[Case]:
    for month in months(databases, random):
        days = (f"{month}-01", last_day(month))
        sql = f"{_SOLD} GROUP BY products.id ORDER BY revenue DESC"
        best = databases["shop"].execute(sql, days).fetchall()
        if best[2]["revenue"] > best[3]["revenue"]:
            names = [row["name"] for row in best[:3]]
            turn = click("link", "Sort by Revenue")
            judged = said(*names, rivals=(row["name"] for row in best))
            plan = [*report("Bestsellers", *span(*days)), turn, turn, stop(listed(names))]
            yield Case({"month": month_name(month)}, one(f"month:{month}"), judged, plan)


def _most_cancelled(databases: Databases, random: Random) -> Iterator[Case]:
    ordered = sorted(months(databases, random))
    spans = [(first, last) for n, last in enumerate(ordered) for first in ordered[max(0, n - 18) : n]]
    random.shuffle(spans)
    asked = Counter[str]()  # answers so far; few customers cancel often, and none should be the answer to most tasks
    for first, last in spans:
        days = (f"{first}-01", last_day(last))
        sql = """SELECT first_name || ' ' || last_name AS name, accounts.email AS email, count(*) AS number
            FROM orders JOIN accounts ON accounts.id = orders.account
            WHERE status = 'cancelled' AND date(placed) BETWEEN ? AND ?
            GROUP BY accounts.id ORDER BY number DESC"""
        found = databases["shop"].execute(sql, days).fetchall()
        if found[0]["number"] > found[1]["number"] and asked[found[0]["email"]] < 3:
            asked[found[0]["email"]] += 1
            turn = click("link", "Sort by Cancelled orders")
            answer = [found[0]["name"], found[0]["email"]]
            plan = [*report("Best customers", *span(*days)), turn, turn, stop(listed(answer))]
            values = {"first": month_name(first), "last": month_name(last)}
            judged = said(*answer, rivals=(row["name"] for row in found))
            yield Case(values, one(f"month:{last}"), judged, plan)


def _search_uses(databases: Databases, random: Random) -> Iterator[Case]:
    for row in drawn(databases, random, "SELECT term, uses FROM search_terms ORDER BY term"):
        plan = [
            click("link", "Reports"),
            click("link", "Search terms report"),
            fill("textbox", "Search term", row["term"], enter=True),
        ]
        uses = str(row["uses"])
        values = {"term": row["term"]}
        yield Case(values, one(f"term:{row['term']}"), said(exact=uses), [*plan, stop(uses)])


def _running_out(databases: Databases, random: Random) -> Iterator[Case]:
    for category in drawn(databases, random, "SELECT id, name FROM categories ORDER BY id"):
        most = random.randint(2, 9)
        sql = "SELECT sku FROM products WHERE category = ? AND stock <= ? ORDER BY id"
        codes = [row["sku"] for row in databases["shop"].execute(sql, (category["id"], most))]
        if 1 <= len(codes) <= 5:
            choice = choose("Category", category["name"])
            plan = applied("Products", choice, fill("textbox", "Stock to", str(most)))
            values = {"category": category["name"], "most": most}
            yield Case(values, one(f"category:{category['id']}"), said(*codes), [*plan, stop(listed(codes))])


def _review_words(databases: Databases, random: Random) -> Iterator[Case]:
    texts = " ".join(row["text"] for row in drawn(databases, random, "SELECT text FROM reviews WHERE id % 20 = 3"))
    words = sorted({word.strip(".,:;!?'\"").lower() for word in texts.split()})
    words = [word for word in words if len(word) > 4 and word.isalpha() and word.isascii()]
    random.shuffle(words)
    for word in words:
        status = random.choice(("approved", "pending", "rejected"))
        count = number(
            databases,
            "SELECT count(*) FROM reviews WHERE status = ? AND title || ' ' || text LIKE ?", status, f"%{word}%",
        )  # fmt: skip
        if 4 <= count <= 400:
            find = fill("textbox", "Words in the review", word, enter=True)
            plan = section("Reviews", choose("Status", status.capitalize()), find)
            values = {"word": word, "status": status}
            yield Case(values, one(f"word:{word}"), said(exact=str(count)), [*plan, stop(str(count))])


TEMPLATES = (
    Template(
        "admin/monthly-orders", SITES,
        "How many orders were placed in {{month}}, leaving out cancelled ones? Answer with the number alone.",
        _monthly_orders,
    ),
    Template(
        "admin/weekly-revenue", SITES,
        "What was the revenue of the week that began on Monday, {{monday}}? Give the amount as the sales report "
        "has it.",
        _weekly_revenue, held_out=True,
    ),
    Template(
        "admin/category-bestseller", SITES,
        "Which product of the category {{category}} sold the most pieces in {{year}}?",
        _category_bestseller,
    ),
    Template(
        "admin/top-revenue", SITES,
        "Name the three products that brought in the most revenue in {{month}}.",
        _top_revenue,
    ),
    Template(
        "admin/most-cancelled", SITES,
        "Who has the most cancelled orders of all customers, counting orders placed from the beginning of {{first}} to "
        "the end of {{last}}? Tell me the name and the email address.",
        _most_cancelled,
    ),
    Template(
        "admin/search-uses", SITES,
        "How often have visitors searched the shop for \"{{term}}\"? Answer with the number alone.",
        _search_uses,
    ),
    Template(
        "admin/running-out", SITES,
        "Give me the SKUs of all products in the category {{category}} of which we have {{most}} or fewer in stock.",
        _running_out,
    ),
    Template(
        "admin/review-words", SITES,
        "How many {{status}} reviews contain \"{{word}}\" in their title or text? Answer with the number alone.",
        _review_words,
    ),
)  # fmt: skip
