"""Generates the store's accounts: customers with addresses, newsletter subscriptions, and the clerk."""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW, PLACES
from agentgym_envs.worlds.webarena.sites.names import FIRST_NAMES, LAST_NAMES, TOWNS

_CUSTOMERS = 300
_STREETS = tuple(
    "Abbey Row,Alder Lane,Bell Street,Bridge Street,Canal Walk,Chapel Hill,Cherry Close,Church Road,Dyer's Yard,"
    "East Parade,Elm Grove,Ferry Road,Garden Street,Green Lane,Harbour Street,High Street,Hill Rise,King's Road,"
    "Lime Avenue,Market Square,Meadow Way,Mill Lane,North Quay,Oak Drive,Orchard Road,Park Terrace,Priory Lane,"
    "Queen Street,River View,Rope Walk,School Lane,South Street,Station Road,Tanner's Court,Tower Hill,Vine Street,"
    "Weaver's Row,Well Lane,West Gate,Willow Bank".split(",")
)
_WORDS = tuple("amber basket candle dahlia engine feather ginger hammock island jigsaw kitchen lantern marble".split())


def fill_people(db: sqlite3.Connection, random: Random) -> None:
    """Write accounts (1 is the shopper, 2 the clerk), addresses and newsletter subscriptions."""
    shopper, clerk = PLACES["shopping"].account, PLACES["shopping_admin"].account
    assert shopper is not None and clerk is not None
    _account(db, 1, shopper.name, shopper.password, "customer", ("Emma", "Holt"), "2023-03-04 18:20")
    _account(db, 2, clerk.name, clerk.password, "admin", ("Larkspur", "Office"), "2022-01-03 08:00")
    pairs = [(first, last) for first in FIRST_NAMES for last in LAST_NAMES]
    for number, names in enumerate(random.sample(pairs, _CUSTOMERS - 1), start=3):
        joined = NOW - timedelta(minutes=random.randrange(60 * 24, 60 * 24 * 1250))
        name = ".".join(names).lower()
        password = f"{random.choice(_WORDS)}-{random.randint(10, 99)}"
        _account(db, number, name, password, "customer", names, joined.strftime("%Y-%m-%d %H:%M"), random)
        for position in range(random.choice((1, 1, 1, 2, 2, 3))):
            _address(db, random, number, " ".join(names), default=position == 0)
    _shopper_addresses(db)
    _newsletter(db, random)


def _account(
    db: sqlite3.Connection,
    number: int,
    name: str,
    password: str,
    role: str,
    names: tuple[str, str],
    joined: str,
    random: Random | None = None,
) -> None:
    group = "Staff" if role == "admin" else "General"
    phone = "555-0100"
    if random is not None:
        group = random.choices(("General", "Wholesale", "Retailer"), (88, 5, 7))[0]
        phone = _phone(random)
    db.execute(
        "INSERT INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
        (number, name, password, role, *names, f"{name}@post.example", phone, group, joined),
    )


def _phone(random: Random) -> str:
    return f"555-{random.randint(200, 9999):04d}"


def _address(db: sqlite3.Connection, random: Random, account: int, recipient: str, *, default: bool) -> None:
    town = random.choice(TOWNS)
    street = f"{random.randint(1, 140)} {random.choice(_STREETS)}"
    _put_address(db, (account, recipient, street, town, postcode(town), _phone(random), int(default)))


def postcode(town: str) -> str:
    """Return the five-digit postcode of a town."""
    return f"{31000 + 137 * TOWNS.index(town):05d}"


def _put_address(db: sqlite3.Connection, row: tuple[int, str, str, str, str, str, int]) -> None:
    db.execute(
        "INSERT INTO addresses (account, recipient, street, town, postcode, phone, is_default)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        row,
    )


def _shopper_addresses(db: sqlite3.Connection) -> None:
    own = (
        ("Emma Holt", "14 Harbour Street", "Fairhaven", "555-0100"),
        ("Emma Holt, Heron Press", "2 Market Square", "Fairhaven", "555-0142"),
        ("Rosa Holt", "31 Mill Lane", "Thornbury", "555-0177"),
        ("Oscar Holt", "8 Orchard Road", "Winterset", "555-0163"),
    )
    for position, (recipient, street, town, phone) in enumerate(own):
        _put_address(db, (1, recipient, street, town, postcode(town), phone, int(position == 0)))


def _newsletter(db: sqlite3.Connection, random: Random) -> None:
    for account, email, joined in db.execute("SELECT id, email, joined FROM accounts WHERE id > 2").fetchall():
        if random.random() < 0.45:
            status = "unsubscribed" if random.random() < 0.12 else "subscribed"
            db.execute("INSERT INTO newsletter VALUES (?, ?, ?, ?)", (email, account, status, joined[:10]))
    for number in range(60):
        email = f"{random.choice(FIRST_NAMES)}{number + 11}@mail.example".lower()
        since = NOW - timedelta(days=random.randrange(900))
        db.execute("INSERT INTO newsletter VALUES (?, NULL, 'subscribed', ?)", (email, since.strftime("%Y-%m-%d")))
