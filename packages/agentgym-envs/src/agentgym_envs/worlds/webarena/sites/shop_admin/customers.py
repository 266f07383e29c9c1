"""Customers: the list, the page of one with orders, addresses and notes, and the form."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import get, now, post
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, listing
from agentgym_envs.worlds.webarena.sites.shop_admin.rules import GROUPS
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

STATES = (("1", "Active"), ("0", "Inactive"))
GRID = Grid(
    select="""SELECT accounts.*, first_name || ' ' || last_name AS customer, count(orders.id) AS orders,
            total(orders.total) AS spent
        FROM accounts LEFT JOIN orders ON orders.account = accounts.id AND orders.status <> 'cancelled'""",
    where="accounts.role = 'customer'",
    group="GROUP BY accounts.id",
    columns=(
        Column("ID", "id"),
        Column("Name", "customer"),
        Column("Email", "email"),
        Column("Group", "customer_group"),
        Column("Phone"),
        Column("Customer since", "joined"),
        Column("Orders", "orders", right=True),
        Column("Spent", "spent", right=True),
        Column("Status", "active"),
    ),
    filters=(
        Filter("name", "Name", "first_name || ' ' || last_name LIKE ? ESCAPE '\\'"),
        Filter("email", "Email", "accounts.email LIKE ? ESCAPE '\\'"),
        Filter("phone", "Phone", "accounts.phone LIKE ? ESCAPE '\\'"),
        Filter("group", "Group", "customer_group = ?", "choice", tuple((name, name) for name in GROUPS)),
        Filter("from", "Since", "date(joined) >= ?", "day"),
        Filter("to", "Until", "date(joined) <= ?", "day"),
        Filter("active", "Status", "active = ?", "choice", STATES),
    ),
    order="id",
    down=False,
)
_TEXTS = ("first_name", "last_name", "email", "phone", "customer_group", "active")
_MAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@get("/customers")
def customers(visit: Visit) -> Response:
    """List all customers."""
    return visit.render("customers.html", list=listing(visit, GRID))


@get("/customers/new")
def new_customer(visit: Visit) -> Response:
    """Show the form for a new customer."""
    empty = dict.fromkeys(_TEXTS, "") | {"customer_group": "General", "active": "1", "password": ""}
    return _form(visit, None, empty, [])


@post("/customers/new")
def create_customer(visit: Visit) -> Response:
    """Create a customer, whose sign-in name is the e-mail address."""
    typed, errors = _read(visit, 0)
    if len(typed["password"]) < 6:
        errors.append("The password has at least 6 characters.")
    if errors:
        return _form(visit, None, typed, errors)
    values = typed | {"name": typed["email"], "role": "customer", "joined": now(), "active": typed["active"] == "1"}
    names = ", ".join(values)
    holes = ", ".join("?" * len(values))
    account = visit.run(f"INSERT INTO accounts ({names}) VALUES ({holes})", *values.values())
    return visit.redirect(f"/customers/{account}", f"The customer {_name(typed)} was added.")


@get("/customers/{account:int}")
def customer_page(visit: Visit, account: int) -> Response:
    """Show a customer with orders, addresses, reviews and notes."""
    found = _customer(visit, account)
    visit.canonical()
    return visit.render(
        "customer.html",
        customer=found,
        addresses=visit.all("SELECT * FROM addresses WHERE account = ? ORDER BY is_default DESC, id", account),
        orders=visit.all("SELECT * FROM orders WHERE account = ? ORDER BY placed DESC, id DESC LIMIT 10", account),
        sums=visit.one(
            "SELECT count(*) AS number, coalesce(sum(total), 0) AS spent, max(placed) AS latest,"
            " (SELECT count(*) FROM orders WHERE account = :id AND status = 'cancelled') AS cancelled"
            " FROM orders WHERE account = :id AND status <> 'cancelled'".replace(":id", "?1"),
            account,
        ),
        reviews=visit.value("SELECT count(*) FROM reviews WHERE account = ?", account),
        newsletter=visit.value("SELECT status FROM newsletter WHERE email = ?", found["email"]),
        notes=visit.all("SELECT * FROM customer_notes WHERE account = ? ORDER BY created DESC, id DESC", account),
    )


@get("/customers/{account:int}/edit")
def edit_customer(visit: Visit, account: int) -> Response:
    """Show the form for a customer."""
    found = _customer(visit, account)
    return _form(visit, found, {key: str(found[key]) for key in _TEXTS}, [])


@post("/customers/{account:int}/edit")
def change_customer(visit: Visit, account: int) -> Response:
    """Save a customer."""
    found = _customer(visit, account)
    typed, errors = _read(visit, account)
    if errors:
        return _form(visit, found, typed, errors)
    visit.run(
        "UPDATE accounts SET first_name = ?, last_name = ?, email = ?, phone = ?, customer_group = ?, active = ?"
        " WHERE id = ?",
        *(typed[key] for key in _TEXTS[:-1]), int(typed["active"] == "1"), account,
    )  # fmt: skip
    return visit.redirect(f"/customers/{account}", f"The customer {_name(typed)} was saved.")


@post("/customers/{account:int}/note")
def add_note(visit: Visit, account: int) -> Response:
    """Add an internal note."""
    _customer(visit, account)
    text, author = visit.text("text", 2000), visit.signed_in()["name"]
    if not text:
        raise Refused("A note needs some text.")
    visit.run(
        "INSERT INTO customer_notes (account, author, text, created) VALUES (?, ?, ?, ?)", account, author, text, now()
    )
    return visit.redirect(f"/customers/{account}", "The note was added.")


def _customer(visit: Visit, account: int) -> sqlite3.Row:
    return visit.one("SELECT * FROM accounts WHERE id = ? AND role = 'customer'", account, what="customer")


def _name(typed: Mapping[str, str]) -> str:
    return f"{typed['first_name']} {typed['last_name']}"


def _form(visit: Visit, found: sqlite3.Row | None, typed: Mapping[str, str], errors: list[str]) -> Response:
    groups = [(name, name) for name in GROUPS]
    values: dict[str, Any] = {"customer": found, "typed": typed, "errors": errors, "groups": groups, "states": STATES}
    return visit.render("customer_form.html", 422 if errors else 200, **values)


def _read(visit: Visit, account: int) -> tuple[dict[str, str], list[str]]:
    """Return the submitted texts and the errors. Only new customers have a password here."""
    typed = {key: visit.text(key, 120) for key in (*_TEXTS, *(["password"] if account == 0 else []))}
    taken = visit.value("SELECT id FROM accounts WHERE (email = ?1 OR name = ?1) AND id <> ?2", typed["email"], account)
    wrong = {
        "Enter a first name.": not typed["first_name"],
        "Enter a last name.": not typed["last_name"],
        "Enter an email address such as ada@post.example.": not _MAIL.fullmatch(typed["email"]),
        "Another customer has this email address.": taken is not None,
        "Choose a group.": typed["customer_group"] not in GROUPS,
    }
    return typed, [text for text, holds in wrong.items() if holds]
