"""The registry of sites: keys, hosts, databases and accounts. Imports no other module of this package."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

NOW = datetime(2025, 6, 16, 9, 30)
"""The frozen time on every site, a Monday morning."""
EPISODE_HEADER = "x-episode"
"""Request header with the id of the episode, which selects the databases: 32 random hexadecimal digits."""
SKIN_HEADER = "x-skin"
"""Request header with the skin of the episode's pages: `plain`, which is the default, or `rough`."""
SESSION_COOKIE = "session"


@dataclass(frozen=True, slots=True)
class Account:
    """The account that an agent is signed in to."""

    name: str
    password: str
    session: str
    """Id of the session that every fresh copy of the database contains."""


@dataclass(frozen=True, slots=True)
class Place:
    """One site."""

    key: str
    """WebArena's name for this kind of site; in tasks, `__SHOPPING__` stands for the URL of `shopping`."""
    host: str
    title: str
    database: str | None
    """Name of its database, which is a folder under `sites` with `schema.sql` and `data.py`."""
    writable: bool
    account: Account | None = None

    @property
    def url(self) -> str:
        """The URL that a browser opens."""
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
    """Return the names of the databases that each episode copies, or of those that all episodes share."""
    return tuple(dict.fromkeys(p.database for p in PLACES.values() if p.database and p.writable == writable))
