"""Settings: the store's name and contact data, the threshold for low stock; shipping rates are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.shop.rules import FREE_FROM, METHODS
from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import count, get, post
from agentgym_envs.worlds.webarena.sites.web import Visit

FIELDS = {
    "store_name": "Store name",
    "contact_email": "Contact email",
    "contact_phone": "Contact phone",
    "low_stock": "Low stock threshold",
}


@get("/settings")
def settings(visit: Visit) -> Response:
    """Show the form."""
    return _form(visit, {row["name"]: row["value"] for row in visit.all("SELECT * FROM settings")}, [])


@post("/settings")
def change_settings(visit: Visit) -> Response:
    """Save the settings."""
    typed = {name: visit.text(name, 120) for name in FIELDS}
    wrong = {
        "Enter a store name.": not typed["store_name"],
        "Enter an email address such as ada@post.example.": not re.fullmatch(
            r"[^@\s]+@[^@\s]+", typed["contact_email"]
        ),
        "The low stock threshold is a whole number.": count(typed["low_stock"]) is None,
    }
    errors = [text for text, holds in wrong.items() if holds]
    if errors:
        return _form(visit, typed, errors)
    for name, value in typed.items():
        visit.run("UPDATE settings SET value = ? WHERE name = ?", value, name)
    return visit.redirect("/settings", "The settings were saved.")


def _form(visit: Visit, typed: Mapping[str, str], errors: list[str]) -> Response:
    rates = {"methods": METHODS.values(), "free_from": FREE_FROM}
    return visit.render("settings.html", 422 if errors else 200, fields=FIELDS, typed=typed, errors=errors, **rates)
