"""Shared by all pages of the code host: the site, the current project with the visitor's permissions, template helpers.

Imports none of the page modules.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, cast

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.markup import to_html
from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.web import NotFound, Refused, Site, Visit, pages

site = Site("gitlab", Path(__file__).parent)
GUEST, REPORTER, DEVELOPER, MAINTAINER, OWNER = 10, 20, 30, 40, 50
ROLES = {GUEST: "Guest", REPORTER: "Reporter", DEVELOPER: "Developer", MAINTAINER: "Maintainer", OWNER: "Owner"}
VISIBILITIES = ("private", "internal", "public")
RIGHT_NOW = f"{NOW:%Y-%m-%d %H:%M}"
TODAY = f"{NOW:%Y-%m-%d}"
SEEN = (
    "(projects.visibility = 'public' OR (projects.visibility = 'internal' AND :me > 0)"
    " OR projects.namespace = :name OR EXISTS (SELECT 1 FROM members WHERE project = projects.id AND account = :me)"
    " OR EXISTS (SELECT 1 FROM groups JOIN group_members ON group_id = groups.id"
    " WHERE groups.path = projects.namespace AND account = :me))"
)
"""SQL condition for the projects that a visitor may see; takes the values of `who`."""
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


@dataclass(frozen=True, slots=True)
class Here:
    """The current project and the visitor's role in it (0: none)."""

    visit: Visit
    row: sqlite3.Row
    role: int

    @property
    def id(self) -> int:
        """The project's id."""
        return self.row["id"]

    @property
    def path(self) -> str:
        """The project's address within the site."""
        return f"/{self.row['namespace']}/{self.row['path']}"

    def need(self, role: int, what: str) -> sqlite3.Row:
        """Return the visitor's account if they have the role.

        Raises:
            SignInNeeded: If the visitor isn't signed in.
            Refused: If the visitor's role is lower, or the project is archived and `role` is below owner.
        """
        account = self.visit.signed_in()
        if self.role < role:
            raise Refused(f"To {what} you need the role {ROLES[role]} in {self.row['name']}.")
        if self.row["archived"] and role < OWNER:
            raise Refused(f"{self.row['name']} is archived, so nothing in it can be changed.")
        return account

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page of this project."""
        counts = {
            table: self.visit.value(f"SELECT count(*) FROM {table} WHERE project = ? AND state = 'opened'", self.id)
            for table in ("issues", "merges")
        }
        return self.visit.render(template, status, here=self, project=self.row, open=counts, **values)

    def people(self) -> list[sqlite3.Row]:
        """Return the members of the project and of its group, sorted by name."""
        return self.visit.all(
            "SELECT id, name, full_name, max(role) AS role, max(expires) AS expires, max(direct) AS direct FROM ("
            " SELECT account, role, expires, 1 AS direct FROM members WHERE project = ? UNION ALL"
            " SELECT account, role, NULL, 0 FROM group_members JOIN groups ON group_id = groups.id WHERE path = ?"
            ") JOIN accounts ON id = account GROUP BY id ORDER BY full_name",
            self.id,
            self.row["namespace"],
        )


def here_at(visit: Visit, namespace: str, project: str) -> Here:
    """Return the project at an address.

    Raises:
        NotFound: If there is none, or the visitor may not see it.
    """
    row = visit.one("SELECT * FROM projects WHERE namespace = ? AND path = ?", namespace, project, what="project")
    role = role_in(visit, row)
    if role == 0 and (row["visibility"] == "private" or (row["visibility"] == "internal" and not visit.account)):
        raise NotFound("project")
    return Here(visit, row, role)


def role_in(visit: Visit, project: sqlite3.Row) -> int:
    """Return the visitor's role in a project: the higher of their own role and their role in its group."""
    if visit.account is None:
        return 0
    if project["namespace"] == visit.account["name"]:
        return OWNER
    me = visit.account["id"]
    own = visit.value("SELECT role FROM members WHERE project = ? AND account = ?", project["id"], me) or 0
    return max(own, group_role(visit, project["namespace"]))


def group_role(visit: Visit, path: str) -> int:
    """Return the visitor's role in a group."""
    if visit.account is None:
        return 0
    found = visit.value(
        "SELECT role FROM group_members JOIN groups ON group_id = groups.id WHERE path = ? AND account = ?",
        path,
        visit.account["id"],
    )
    return found or 0


def who(visit: Visit) -> dict[str, Any]:
    """Return the parameters of `SEEN`."""
    account = visit.account
    return {"me": account["id"], "name": account["name"]} if account else {"me": 0, "name": ""}


def found(visit: Visit, columns: str, rest: str, size: int, **values: Any) -> tuple[list[sqlite3.Row], dict[str, int]]:
    """Return one page of rows of a query (`SELECT columns rest`), and the values for the pager."""
    values |= who(visit)
    body, _, order = rest.rpartition(" ORDER BY ")
    total = visit.db.execute(f"SELECT count(*) FROM (SELECT 1 FROM {body})", values).fetchone()[0]
    pager = pages(total, size, visit.number("page"))
    limits = {"size": pager["size"], "offset": pager["offset"]}
    query = f"SELECT {columns} FROM {body} ORDER BY {order} LIMIT :size OFFSET :offset"
    return visit.db.execute(query, values | limits).fetchall(), pager


def day_of(text: str) -> str | None:
    """Return a date given as YYYY-MM-DD, or None if it isn't one."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        return None


def slug_of(name: str) -> str:
    """Convert a name to a URL path component: `Pair Timer` becomes `pair-timer`."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")


def good_slug(text: str) -> bool:
    """Whether a text is a valid URL path component."""
    return _SLUG.fullmatch(text) is not None


def pattern(text: str) -> str:
    """Return the LIKE pattern for texts that contain this one."""
    return f"%{text}%"


def _day(text: str | None) -> str:
    if not text:
        return "–"
    when = datetime.fromisoformat(text)
    return f"{when.day} {when:%b %Y}"


def _moment(text: str) -> str:
    return f"{_day(text)}, {text[11:16]}" if len(text) > 10 else _day(text)


def _pairs(rows: list[sqlite3.Row], column: str) -> list[tuple[int, str]]:
    return [(row["id"], row[column]) for row in rows]


cast("dict[str, Any]", site.templates.filters).update(pairs=_pairs, day=_day, moment=_moment, markup=to_html)
cast("dict[str, Any]", site.templates.globals).update(ROLES=ROLES, VISIBILITIES=VISIBILITIES)
