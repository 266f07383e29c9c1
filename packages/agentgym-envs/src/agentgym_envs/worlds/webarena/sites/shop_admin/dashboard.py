"""Shared by all pages of the admin site: its `Site`, access control, parsing and formatting of values.

Reads no table except the accounts. `get` and `post` admit only accounts with the role `admin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, cast

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.web import Page, Refused, Site, Visit

site = Site("shopping_admin", Path(__file__).parent)
_MONEY = re.compile(r"\d{1,7}(\.\d{1,2})?", re.ASCII)


def get(path: str) -> Callable[[Page], Page]:
    """Register a read-only page for administrators."""
    return _guarded(site.get(path))


def post(path: str) -> Callable[[Page], Page]:
    """Register a form handler for administrators."""
    return _guarded(site.post(path))


def _guarded(add: Callable[[Page], Page]) -> Callable[[Page], Page]:
    def guard(page: Page) -> Page:
        @wraps(page)
        def admitted(visit: Visit, **values: Any) -> Response:
            if visit.signed_in()["role"] != "admin":
                raise Refused("Only administrators of the shop may come in here.")
            return page(visit, **values)

        return add(admitted)

    return guard


def cents(text: str) -> int | None:
    """Parse an amount such as `12`, `12.5` or `$1,249.50` to cents, or return None."""
    plain = text.replace("$", "").replace(",", "").strip()
    if not _MONEY.fullmatch(plain):
        return None
    whole, _, part = plain.partition(".")
    return int(whole) * 100 + int(part.ljust(2, "0") or 0)


def count(text: str) -> int | None:
    """Parse an integer from 0 to 1,000,000, or return None."""
    return int(text) if re.fullmatch(r"\d{1,6}|1000000", text, re.ASCII) else None


def selected(visit: Visit) -> list[int]:
    """Return the ids of the selected rows."""
    return [int(text) for text in visit.texts("selected") if re.fullmatch(r"\d{1,9}", text, re.ASCII)]


def now() -> str:
    """Return the current time in the database's format."""
    return f"{NOW:%Y-%m-%d %H:%M}"


def _money(amount: int | None) -> str:
    return "–" if amount is None else f"{'-' if amount < 0 else ''}${abs(amount) / 100:,.2f}"


def _when(moment: str | None) -> str:
    return "–" if not moment else f"{datetime.fromisoformat(moment):%b %d, %Y %H:%M}"


def _date(moment: str | None) -> str:
    return "–" if not moment else f"{datetime.fromisoformat(moment):%b %d, %Y}"


cast("dict[str, Any]", site.templates.filters).update(money=_money, when=_when, date=_date)
cast("dict[str, Any]", site.templates.globals).update(
    reports={
        "/reports/sales": "Sales",
        "/reports/cancelled": "Cancelled orders",
        "/reports/new-customers": "New customers",
        "/reports/bestsellers": "Bestsellers",
        "/reports/search-terms": "Search terms",
        "/reports/customers": "Best customers",
        "/reports/coupons": "Coupon use",
        "/reports/low-stock": "Low stock",
        "/reports/carts": "Abandoned carts",
    }
)
