"""Coupons: the list, the form, activation."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.dates import iso_day
from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import cents, count, get, post
from agentgym_envs.worlds.webarena.sites.shop_admin.grid import Column, Filter, Grid, listing
from agentgym_envs.worlds.webarena.sites.web import Visit

KINDS = (("percent", "Percent off"), ("amount", "Amount off"), ("shipping", "Free shipping"))
GRID = Grid(
    select="SELECT coupons.*, code AS id FROM coupons",
    columns=(
        Column("Code", "code"),
        Column("Description"),
        Column("Discount", "value"),
        Column("From a subtotal of", "minimum", right=True),
        Column("Starts", "starts"),
        Column("Ends", "ends"),
        Column("Uses", "uses", right=True),
        Column("Status", "active"),
        Column("Switch"),
    ),
    filters=(
        Filter("words", "Code or description", "code || ' ' || description LIKE ? ESCAPE '\\'"),
        Filter("kind", "Kind", "kind = ?", "choice", KINDS),
        Filter("active", "Status", "active = ?", "choice", (("1", "Active"), ("0", "Inactive"))),
        Filter("on", "Valid on", "? BETWEEN starts AND ends", "day"),
    ),
    order="code",
    down=False,
)
_KEYS = ("code", "description", "kind", "value", "minimum", "starts", "ends")
_CODE = re.compile(r"[A-Z0-9][A-Z0-9-]{2,29}", re.ASCII)


@get("/coupons")
def coupons(visit: Visit) -> Response:
    """List all coupons."""
    return visit.render("coupons.html", list=listing(visit, GRID))


@get("/coupons/new")
def new_coupon(visit: Visit) -> Response:
    """Show the form for a new coupon."""
    empty = dict.fromkeys(_KEYS, "") | {"kind": "percent", "minimum": "0.00", "starts": f"{NOW:%Y-%m-%d}"}
    return _form(visit, None, empty, [])


@post("/coupons/new")
def create_coupon(visit: Visit) -> Response:
    """Create a coupon, which is active immediately."""
    typed, values, errors = _read(visit)
    if visit.value("SELECT code FROM coupons WHERE code = ?", values["code"]) is not None:
        errors.append("Another coupon has this code.")
    if errors:
        return _form(visit, None, typed, errors)
    visit.run(f"INSERT INTO coupons ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", *values.values())
    return visit.redirect("/coupons", f"The coupon {values['code']} was added.")


@get("/coupons/{code}")
def coupon_page(visit: Visit, code: str) -> Response:
    """Show the form for a coupon."""
    found = _coupon(visit, code)
    typed = {key: str(found[key]) for key in _KEYS} | {"minimum": f"{found['minimum'] / 100:.2f}"}
    if found["kind"] == "amount":
        typed["value"] = f"{found['value'] / 100:.2f}"
    return _form(visit, found, typed, [])


@post("/coupons/{code}")
def change_coupon(visit: Visit, code: str) -> Response:
    """Save a coupon; its code can't change."""
    found = _coupon(visit, code)
    typed, values, errors = _read(visit, code)
    if errors:
        return _form(visit, found, typed, errors)
    changes = ", ".join(f"{name} = ?" for name in values)
    visit.run(f"UPDATE coupons SET {changes} WHERE code = ?", *values.values(), code)
    return visit.redirect("/coupons", f"The coupon {code} was saved.")


@post("/coupons/{code}/switch")
def switch(visit: Visit, code: str) -> Response:
    """Activate an inactive coupon, or deactivate an active one."""
    active = not _coupon(visit, code)["active"]
    visit.run("UPDATE coupons SET active = ? WHERE code = ?", active, code)
    return visit.redirect(visit.text("back"), f"The coupon {code} is {'active' if active else 'inactive'} now.")


@post("/coupons/{code}/delete")
def delete_coupon(visit: Visit, code: str) -> Response:
    """Delete a coupon; orders keep its code."""
    _coupon(visit, code)
    visit.run("DELETE FROM coupons WHERE code = ?", code)
    return visit.redirect("/coupons", f"The coupon {code} was deleted.")


def _coupon(visit: Visit, code: str) -> sqlite3.Row:
    return visit.one("SELECT * FROM coupons WHERE code = ?", code, what="coupon")


def _form(visit: Visit, found: sqlite3.Row | None, typed: Mapping[str, str], errors: list[str]) -> Response:
    status = 422 if errors else 200
    return visit.render("coupon.html", status, coupon=found, typed=typed, kinds=KINDS, errors=errors)


def _read(visit: Visit, code: str | None = None) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Return the submitted texts, the values for the database, and the errors."""
    typed = {key: visit.text(key, 300) for key in _KEYS}
    typed["code"] = typed["code"].upper() if code is None else code
    values: dict[str, Any] = {**typed, "minimum": cents(typed["minimum"] or "0")}
    values |= {key: iso_day(typed[key]) for key in ("starts", "ends")}
    wrong: dict[str, bool] = {
        "The code has 3 to 30 letters, digits or hyphens.": code is None and not _CODE.fullmatch(typed["code"]),
        "Choose what kind of coupon it is.": all(typed["kind"] != kind for kind, _ in KINDS),
        "The least subtotal is an amount such as 40.00.": values["minimum"] is None,
        "Start and end are dates such as 2025-03-31.": None in (values["starts"], values["ends"]),
    }
    wrong["The end is before the start."] = (
        bool(values["starts"] and values["ends"]) and values["ends"] < values["starts"]
    )
    match typed["kind"]:
        case "percent":
            values["value"] = count(typed["value"].removesuffix("%").strip())
            wrong["The discount is a percentage from 1 to 100."] = not 1 <= (values["value"] or 0) <= 100
        case "amount":
            values["value"] = cents(typed["value"])
            wrong["The discount is an amount such as 5.00."] = not values["value"]
        case _:
            values["value"] = 0
    return typed, values, [text for text, holds in wrong.items() if holds]
