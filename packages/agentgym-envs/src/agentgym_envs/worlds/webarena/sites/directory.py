"""Which sites there are, under which names. Imported by all, imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

NOW = datetime(2025, 6, 16, 9, 30)
"""The time on every site, always: a Monday morning."""
EPISODE_HEADER = "x-episode"
"""Says which episode a request belongs to, and so which databases it sees: 32 hexadecimal digits nobody can guess."""
SESSION_COOKIE = "session"


@dataclass(frozen=True, slots=True)
class Account:
    """Whom an agent finds itself signed in as."""

    name: str
    password: str
    session: str
    """Id of the session that every fresh copy of the database already has."""


@dataclass(frozen=True, slots=True)
class Place:
    """One site."""

    key: str
    """WebArena's name for the kind of site; `__SHOPPING__` stands for the URL of `shopping` in tasks."""
    host: str
    title: str
    database: str | None
    """Name of its database, a folder under `sites` with `schema.sql` and `data.py`."""
    writable: bool
    account: Account | None = None

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{self.host}"


PLACES = {
    place.key: place
    for place in (
        Place("shopping", "shop.example", "Larkspur", "shop", True, Account("emma.holt", "harbor-42", "shopper")),
        Place(
            "shopping_admin",
            "admin.shop.example",
            "Larkspur Admin",
            "shop",
            True,
            Account("admin", "ledger-77", "clerk"),
        ),
        Place("reddit", "forum.example", "Commons", "forum", True, Account("marlow_reads", "teapot-19", "member")),
        Place("gitlab", "code.example", "Workbench", "code", True, Account("jonas", "rebase-58", "developer")),
        Place("map", "map.example", "Wayfinder", "map", False),
        Place("wikipedia", "wiki.example", "Gazetteer", "wiki", False),
        Place("homepage", "home.example", "Home", None, False),
    )
}
"""The sites by key."""


def databases(*, writable: bool) -> tuple[str, ...]:
    """Names of the databases that episodes have copies of, or of those that all share."""
    return tuple(dict.fromkeys(p.database for p in PLACES.values() if p.database and p.writable == writable))
