"""Generates the store's order history, including the shopper's own orders."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.names import FIRST_NAMES, LAST_NAMES
from agentgym_envs.worlds.webarena.sites.shop.people import postcode
from agentgym_envs.worlds.webarena.sites.shop.rules import METHODS, PAYMENTS, REASONS, discount, shipping_cost

_ORDERS = 2465
_SHOPPER_ORDERS = 35
_FIRST_NUMBER = 20001
_CARRIERS = ("Ridgeway Parcel", "Swift Post", "Harrier Express")
_COMMENTS = (
    "Please leave it with the neighbour at number 12.",
    "It's a present: no price on the slip, please.",
    "The bell is broken, please knock.",
    "Customer called and asked when it will arrive.",
    "Packed in two boxes because of the size.",
    "Customer asked to have it delivered after five o'clock.",
)
_RETURN_WORDS = ("It came with a crack.", "I ordered one size too large.", "The colour is not what I expected.", "")


class _Good(NamedTuple):
    """A product that an order may contain."""

    id: int
    price: int
    created: str


class _Buyer(NamedTuple):
    """A customer and their address."""

    account: int | None
    email: str
    address: tuple[str, str, str, str, str]


class _Shop:
    """The data that orders are drawn from."""

    def __init__(self, db: sqlite3.Connection, random: Random) -> None:
        self.db = db
        self.random = random
        rows = db.execute("SELECT id, coalesce(sale_price, price), created FROM products ORDER BY id")
        self.goods = [_Good(*row) for row in rows]
        found = db.execute("SELECT * FROM coupons WHERE code <> 'STAFF30' ORDER BY code")
        names = [column[0] for column in found.description]
        self.coupons: list[Mapping[str, Any]] = [dict(zip(names, row, strict=True)) for row in found]
        self.popularity = list(accumulate(0.2 + random.expovariate(1.0) ** 2 for _ in self.goods))
        self.options: dict[int, dict[str, list[tuple[str, int]]]] = {}
        for product, kind, value, extra in db.execute(
            "SELECT product, kind, value, extra FROM product_options ORDER BY id"
        ):
            self.options.setdefault(product, {}).setdefault(kind, []).append((value, extra))

    def good(self, day: str) -> _Good:
        """Draw a product that was already sold on that day."""
        while (good := self.random.choices(self.goods, cum_weights=self.popularity)[0]).created > day:
            pass
        return good

    def chosen(self, product: int) -> tuple[str, int]:
        """Draw options of a product; return them as an order names them, and their surcharge."""
        picked = {kind: self.random.choice(values) for kind, values in self.options.get(product, {}).items()}
        return ", ".join(f"{kind}: {value}" for kind, (value, _) in picked.items()), sum(e for _, e in picked.values())


def fill_orders(db: sqlite3.Connection, random: Random) -> None:
    """Write orders with items, shipments, comments, returns, invoices and refunds, oldest first."""
    shop = _Shop(db, random)
    buyers = _buyers(db)
    days, weights = _days()
    dates = [_moment(random, day) for day in random.choices(days, weights, k=_ORDERS)]
    drawn = [(placed, _draw_buyer(random, buyers, placed)) for placed in dates]
    own = [_Buyer(row[0], row[1], row[2:]) for row in _addresses(db) if row[0] == 1]
    drawn += [(placed, random.choices(own, (6, 2, 1, 1))[0]) for placed in _shopper_dates(random)]
    drawn.sort(key=lambda order: order[0])
    for number, (placed, buyer) in enumerate(drawn, start=_FIRST_NUMBER):
        _add_order(shop, number, placed, buyer)
    db.execute(
        "UPDATE products SET sold = (SELECT coalesce(sum(quantity), 0) FROM order_items"
        " JOIN orders ON orders.id = order_id WHERE product = products.id AND status <> 'cancelled')"
    )


def _addresses(db: sqlite3.Connection) -> list[tuple[int, str, str, str, str, str, str]]:
    return db.execute(
        "SELECT accounts.id, email, recipient, street, town, postcode, addresses.phone FROM addresses"
        " JOIN accounts ON accounts.id = account ORDER BY addresses.id"
    ).fetchall()


def _buyers(db: sqlite3.Connection) -> list[tuple[str, _Buyer]]:
    joined = dict(db.execute("SELECT id, joined FROM accounts"))
    return [(joined[row[0]], _Buyer(row[0], row[1], row[2:])) for row in _addresses(db) if row[0] != 1]


def _days() -> tuple[Sequence[date], Sequence[float]]:
    """Return the days since 2023 and their weights: orders increase over the years and before the holidays."""
    first = date(2023, 1, 2)
    days = [first + timedelta(days=n) for n in range((NOW.date() - first).days)]
    return days, [1 + n / 500 + (0.9 if day.month in (11, 12) else 0) for n, day in enumerate(days)]


def _moment(random: Random, day: date) -> datetime:
    return datetime(day.year, day.month, day.day, random.randint(6, 23), random.randrange(60))


def _shopper_dates(random: Random) -> list[datetime]:
    """Return the dates of the shopper's orders over two years, including some in the last days."""
    recent = [datetime(2025, 6, 16, 7, 41), datetime(2025, 6, 15, 20, 12), datetime(2025, 6, 13, 18, 3)]
    recent += [datetime(2025, 6, 11, 12, 30), datetime(2025, 6, 6, 21, 55)]
    step = 700 / (_SHOPPER_ORDERS - len(recent))
    first = date(2023, 6, 20)
    days = (first + timedelta(days=int(n * step + random.random() * step)) for n in range(_SHOPPER_ORDERS - 5))
    return [_moment(random, day) for day in days] + recent


def _draw_buyer(random: Random, buyers: list[tuple[str, _Buyer]], placed: datetime) -> _Buyer:
    """Draw a customer who already had an account at that time, or else a guest."""
    joined, buyer = random.choice(buyers)
    if joined <= placed.strftime("%Y-%m-%d %H:%M") and random.random() < 0.95:
        return buyer
    first, last = random.choice(FIRST_NAMES), random.choice(LAST_NAMES)
    _, street, town, _, phone = buyer.address
    return _Buyer(
        None, f"{first}.{last}@mail.example".lower(), (f"{first} {last}", street, town, postcode(town), phone)
    )


def _status(random: Random, placed: datetime) -> str:
    age = (NOW - placed).total_seconds() / 86400
    if age < 12:
        return "pending"
    if age < 36:
        return random.choice(("processing", "processing", "processing", "shipped", "on hold"))
    if age < 48:
        return "shipped"
    return random.choices(("complete", "cancelled", "returned"), (87, 8, 5))[0]


def _add_order(shop: _Shop, number: int, placed: datetime, buyer: _Buyer) -> None:
    random, db = shop.random, shop.db
    items: dict[int, tuple[str, int, int]] = {}
    for _ in range(random.choices((1, 2, 3, 4), (38, 32, 20, 10))[0]):
        good = shop.good(placed.strftime("%Y-%m-%d"))
        options, extra = shop.chosen(good.id)
        items[good.id] = (options, good.price + extra, random.choices((1, 2, 3, 4), (80, 13, 4, 3))[0])
    subtotal = sum(price * quantity for _, price, quantity in items.values())
    method = random.choices(list(METHODS), (70, 18, 12))[0]
    coupon = _coupon(shop, placed, subtotal) if random.random() < 0.14 else None
    shipping = shipping_cost(method, subtotal, coupon)
    code, off = (None, 0) if coupon is None else (coupon["code"], discount(coupon, subtotal))
    status = _status(random, placed)
    when = placed.strftime("%Y-%m-%d %H:%M")
    payment = random.choices(list(PAYMENTS.values()), (60, 20, 14, 6))[0]
    row = (number, buyer.account, buyer.email, *buyer.address, status, when, METHODS[method].name, shipping, payment)
    total = subtotal - off + shipping
    marks = ", ".join("?" * 17)
    db.execute(f"INSERT INTO orders VALUES ({marks})", (*row, code, off, subtotal, total))
    db.executemany(
        "INSERT INTO order_items (order_id, product, options, price, quantity) VALUES (?, ?, ?, ?, ?)",
        [(number, product, *item) for product, item in items.items()],
    )
    _add_records(shop, number, placed, status, total)


def _coupon(shop: _Shop, placed: datetime, subtotal: int) -> Mapping[str, Any] | None:
    """Draw a coupon that was valid at that time, except the staff's."""
    day = placed.strftime("%Y-%m-%d")
    valid = [c for c in shop.coupons if c["starts"] <= day <= c["ends"] and subtotal >= c["minimum"]]
    return shop.random.choice(valid) if valid else None


def _add_records(shop: _Shop, number: int, placed: datetime, status: str, total: int) -> None:
    """Write the records that follow from an order's status (invoice, shipment, return, refund), and a few comments."""
    random, db = shop.random, shop.db
    if status not in ("pending", "cancelled", "on hold"):
        _insert(db, "invoices (order_id, total, created)", number, total, _later(placed, random, 20))
    if status in ("shipped", "complete", "returned"):
        tracking = f"{random.choice('HKRS')}{random.choice('PLX')}{random.randrange(10**8):08d}"
        row = (number, random.choice(_CARRIERS), tracking, _later(placed, random, 60))
        _insert(db, "shipments (order_id, carrier, tracking, shipped)", *row)
    recent = (NOW - placed).days < 110
    if status == "returned" or (status == "complete" and random.random() < (0.08 if recent else 0.01)):
        state = "accepted" if status == "returned" else "open" if recent else "declined"
        row = (number, random.choice(REASONS), random.choice(_RETURN_WORDS), state, _later(placed, random, 240, 120))
        _insert(db, "returns (order_id, reason, comment, status, created)", *row)
    if status == "returned":
        row = (number, total, "Returned goods", _later(placed, random, 500, 380))
        _insert(db, "refunds (order_id, total, reason, created)", *row)
    if random.random() < 0.04:
        text = random.choice(_COMMENTS)
        author = "Customer" if not text.startswith(("Customer", "Packed")) else "Larkspur Office"
        row = (number, author, text, int(author == "Customer"), placed.strftime("%Y-%m-%d %H:%M"))
        _insert(db, "order_comments (order_id, author, text, visible, created)", *row)


def _insert(db: sqlite3.Connection, into: str, *row: object) -> None:
    db.execute(f"INSERT INTO {into} VALUES ({', '.join('?' * len(row))})", row)


def _later(placed: datetime, random: Random, most: int, least: int = 1) -> str:
    """Return a timestamp some hours later, at most now."""
    return min(placed + timedelta(hours=random.randint(least, most)), NOW).strftime("%Y-%m-%d %H:%M")
