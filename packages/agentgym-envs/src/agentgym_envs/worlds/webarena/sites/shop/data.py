"""Fills the store's database: products, people, orders, reviews, and the office's records."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.names import BRANDS
from agentgym_envs.worlds.webarena.sites.shop.catalogue import categories, fill_catalogue
from agentgym_envs.worlds.webarena.sites.shop.crm import fill_office
from agentgym_envs.worlds.webarena.sites.shop.history import fill_orders
from agentgym_envs.worlds.webarena.sites.shop.people import fill_people
from agentgym_envs.worlds.webarena.sites.shop.review_texts import fill_reviews
from agentgym_envs.worlds.webarena.sites.shop.search import results

_COUPONS = (
    ("WELCOME10", "Ten percent off for everybody new", "percent", 10, 0, "2022-01-01", "2026-12-31", 1),
    ("JUNE15", "Fifteen percent in June, from $50", "percent", 15, 50_00, "2025-06-01", "2025-06-30", 1),
    ("FIVEOFF", "Five dollars off from $30", "amount", 5_00, 30_00, "2025-01-01", "2025-12-31", 1),
    ("TWENTY", "Twenty dollars off from $150", "amount", 20_00, 150_00, "2025-04-01", "2025-09-30", 1),
    ("SHIPFREE", "Free standard delivery", "shipping", 0, 0, "2025-05-01", "2025-07-31", 1),
    ("GARDENPARTY", "Eight percent for guests of our garden party", "percent", 8, 20_00, "2025-05-15", "2025-08-15", 1),
    ("LOYAL20", "A fifth off for loyal customers, from $200", "percent", 20, 200_00, "2025-01-01", "2025-12-31", 1),
    ("SPRING25", "A quarter off in spring", "percent", 25, 40_00, "2025-03-01", "2025-05-31", 1),
    ("WINTER10", "Ten dollars off in winter", "amount", 10_00, 60_00, "2024-12-01", "2025-02-28", 1),
    ("AUTUMN12", "Twelve percent in autumn", "percent", 12, 0, "2024-09-01", "2024-11-30", 0),
    ("STAFF30", "For our own people", "percent", 30, 0, "2022-01-01", "2026-12-31", 0),
    ("LATEJULY", "Ten percent at the end of July", "percent", 10, 25_00, "2025-07-20", "2025-07-31", 1),
)
_NOTES = ("for the kitchen", "birthday of Rosa", "wait for a sale", "ask Oscar first", "for the summer house", "")
_MESSAGES = (
    ("Where is my parcel?", "The tracking page has said the same thing for four days. Could you have a look?"),
    ("Wrong colour", "I ordered the sage one and received navy. What should I do?"),
    ("Invoice for the office", "Could you send me an invoice with the name of our firm on it?"),
    ("Spare part", "The lid of my canister broke. Do you sell the lid on its own?"),
    ("Opening hours", "Can I collect an order on Sundays?"),
    ("Thank you", "The lamp arrived well packed, and a day early. It looks splendid."),
    ("Address change", "I have moved to another town. Can the parcel still be sent there?"),
    ("Gift card", "My gift card says it has expired, but I bought it in May."),
    ("Bulk order", "We need sixty mugs for our café. Is there a price for that?"),
    ("Size advice", "Do the boots come out small? I am between two sizes."),
)


def fill(db: sqlite3.Connection, random: Random) -> None:
    """Write all rows."""
    fill_catalogue(db, random)
    fill_people(db, random)
    fill_reviews(db, random)
    marks = ", ".join("?" * 8)
    db.executemany(f"INSERT INTO coupons VALUES ({marks}, 0)", _COUPONS)
    fill_orders(db, random)
    db.execute("UPDATE coupons SET uses = (SELECT count(*) FROM orders WHERE coupon = code)")
    _shopper(db, random)
    _wishes(db, random)
    _search_terms(db, random)
    _messages(db, random)
    fill_office(db, random)


def _shopper(db: sqlite3.Connection, random: Random) -> None:
    """Write the shopper's wish list, and reviews of products that she bought."""
    wanted = random.sample([row[0] for row in db.execute("SELECT id FROM products WHERE stock > 0 ORDER BY id")], 16)
    for days, product in enumerate(wanted, start=2):
        added = (NOW - timedelta(days=days * 9)).strftime("%Y-%m-%d %H:%M")
        row = (1, product, random.choice(_NOTES), added)
        db.execute("INSERT INTO wish_items (account, product, note, added) VALUES (?, ?, ?, ?)", row)
    bought = db.execute(
        "SELECT product, placed FROM order_items JOIN orders ON orders.id = order_id"
        " WHERE account = 1 AND status = 'complete' GROUP BY product ORDER BY placed"
    ).fetchall()
    for (product, placed), words in zip(bought[::4], _OWN_REVIEWS, strict=False):
        db.execute(
            "INSERT INTO reviews (product, account, nickname, title, text, stars, created, status)"
            " VALUES (?, 1, 'Emma H.', ?, ?, ?, date(?, '+9 days'), 'approved')",
            (product, *words, placed[:10]),
        )


_OWN_REVIEWS = (
    ("A quiet pleasure", "I use it on most mornings and it has never let me down.", 5),
    ("Good, but slow to arrive", "The thing itself is fine; the parcel took its time.", 4),
    ("Smaller than expected", "Well made, but do read the measurements before you order.", 3),
    ("Glad I waited for the offer", "At the reduced price I can't complain at all.", 4),
    ("Sturdy", "Dropped it twice on a stone floor. Not a mark.", 5),
    ("Not my colour after all", "On the screen it looked warmer. The quality is good.", 3),
    ("A present that was liked", "My brother wouldn't give it back, so I take that as praise.", 5),
    ("Came apart", "After a month one seam gave up. Repaired it myself.", 2),
    ("Does what it should", "No fuss, no extras, a fair price.", 4),
    ("Would order again", "Ordered a second one for the summer house.", 5),
    ("Hm", "Neither good nor bad. It stays in the drawer mostly.", 3),
)


def _wishes(db: sqlite3.Connection, random: Random) -> None:
    products = [row[0] for row in db.execute("SELECT id FROM products ORDER BY id")]
    for (account,) in db.execute("SELECT id FROM accounts WHERE id > 2 ORDER BY id").fetchall():
        for product in random.sample(products, random.choice((0, 0, 1, 2, 4))):
            added = (NOW - timedelta(days=random.randrange(1, 300))).strftime("%Y-%m-%d %H:%M")
            row = (account, product, added)
            db.execute("INSERT INTO wish_items (account, product, added) VALUES (?, ?, ?)", row)


def _search_terms(db: sqlite3.Connection, random: Random) -> None:
    """Write past search terms with their actual numbers of results."""
    goods = [good.lower() for category in categories() for good in category.goods]
    terms = random.sample(goods, 90) + [brand.lower() for brand in random.sample(BRANDS, 25)]
    terms += ["gift", "sale", "trampoline", "bamboo", "walnut table", "wool", "rain", "quiet", "grill", "gutter"]
    for term in dict.fromkeys(terms):
        used = (NOW - timedelta(days=int(random.expovariate(0.05)))).strftime("%Y-%m-%d")
        row = (term, 1 + int(random.expovariate(0.02)), results(db, term), used)
        db.execute("INSERT INTO search_terms VALUES (?, ?, ?, ?)", row)


def _messages(db: sqlite3.Connection, random: Random) -> None:
    people = db.execute(
        "SELECT id, first_name || ' ' || last_name, email FROM accounts WHERE id > 2 ORDER BY id"
    ).fetchall()
    for number in range(30):
        account, name, email = random.choice(people)
        subject, text = _MESSAGES[number % len(_MESSAGES)]
        created = NOW - timedelta(hours=9 * (30 - number) + random.randrange(9))
        row = (account, name, email, subject, text, created.strftime("%Y-%m-%d %H:%M"), int(number < 22))
        columns = "account, name, email, subject, text, created, answered"
        db.execute(f"INSERT INTO messages ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
