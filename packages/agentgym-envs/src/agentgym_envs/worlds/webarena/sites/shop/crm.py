"""The office's records of customers: notes and abandoned carts."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW

_NOTES = (
    "Prefers to be called after five o'clock.",
    "Asked for the printed catalogue; sent one.",
    "Had two broken parcels in a row: pack with extra care.",
    "Buys for a small hotel and may want the wholesale group.",
    "Wants invoices in the name of the firm.",
    "Complained about a late delivery; apologised and gave a coupon.",
    "Collects in person on Saturdays.",
    "Has a new email address coming, will write again.",
    "Polite reminder sent about an open invoice.",
    "Met at the spring fair, interested in garden furniture.",
)


def fill_office(db: sqlite3.Connection, random: Random) -> None:
    """Write notes and abandoned carts of random customers."""
    others = [row[0] for row in db.execute("SELECT id FROM accounts WHERE id > 2 ORDER BY id")]
    for account in random.sample(others, 40):
        created = NOW - timedelta(hours=random.randrange(20, 9000))
        row = (account, random.choice(_NOTES), created.strftime("%Y-%m-%d %H:%M"))
        db.execute("INSERT INTO customer_notes (account, author, text, created) VALUES (?, 'admin', ?, ?)", row)
    goods = [row[0] for row in db.execute(_PLAIN)]
    for account in random.sample(others, 60):
        for product in random.sample(goods, random.choice((1, 1, 2, 3, 4))):
            row = (account, product, random.choice((1, 1, 1, 2, 3)))
            db.execute("INSERT INTO cart_items (account, product, options, quantity) VALUES (?, ?, '', ?)", row)


_PLAIN = """SELECT id FROM products WHERE active = 1 AND stock > 3
    AND NOT EXISTS (SELECT 1 FROM product_options WHERE product = products.id) ORDER BY id"""
