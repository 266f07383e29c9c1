"""Building blocks of the code host's tasks: queries for projects, issues and merge requests, and navigation steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Step, Template, click, fill

HOST = PLACES["gitlab"].url
_ROLE = (
    "max(CASE WHEN projects.namespace = 'jonas' THEN 50 ELSE 0 END,"
    " coalesce((SELECT role FROM members WHERE project = projects.id AND account = 1), 0),"
    " coalesce((SELECT role FROM groups JOIN group_members ON group_id = groups.id"
    " WHERE groups.path = projects.namespace AND account = 1), 0))"
)
_PROJECT = (
    "projects.id AS project_id, projects.namespace || '/' || projects.path AS place, projects.namespace AS space,"
    " projects.name AS project_name, projects.default_branch AS branch, projects.visibility AS visibility,"
    " (SELECT count(*) FROM issues WHERE project = projects.id AND state = 'opened') AS open_issues,"
    " (SELECT count(*) FROM merges WHERE project = projects.id AND state = 'opened') AS open_merges"
)


def ask(db: sqlite3.Connection, random: Random, query: str, *values: Any) -> list[sqlite3.Row]:
    """Return the rows of a query in random order."""
    found = db.execute(query, values).fetchall()
    random.shuffle(found)
    return found


def projects(db: sqlite3.Connection, random: Random, role: int = 0, condition: str = "1") -> list[sqlite3.Row]:
    """Return projects, without forks, where Jonas has at least this role (0: that everybody can see)."""
    seen = f"{_ROLE} >= {role}" if role else "visibility = 'public'"
    query = f"SELECT {_PROJECT}, projects.* FROM projects WHERE fork_of IS NULL AND {seen} AND {condition} ORDER BY id"
    return ask(db, random, query)


def issues(db: sqlite3.Connection, random: Random, role: int = 0) -> list[sqlite3.Row]:
    """Return open, non-confidential issues of projects where Jonas has at least this role (0: public projects)."""
    return _items(db, random, "issues", role, "confidential = 0")


def merges(db: sqlite3.Connection, random: Random, role: int = 0, condition: str = "1") -> list[sqlite3.Row]:
    """Return open merge requests of projects where Jonas has at least this role (0: public projects)."""
    return _items(db, random, "merges", role, condition)


def _items(db: sqlite3.Connection, random: Random, table: str, role: int, condition: str) -> list[sqlite3.Row]:
    seen = f"{_ROLE} >= {role}" if role else "projects.visibility = 'public'"
    query = (
        f"SELECT {_PROJECT}, {table}.* FROM {table} JOIN projects ON projects.id = project"
        f" WHERE {table}.state = 'opened' AND {seen} AND {condition} ORDER BY {table}.id"
    )
    return ask(db, random, query)


def people(db: sqlite3.Connection, random: Random) -> list[sqlite3.Row]:
    """Return all accounts except Jonas."""
    return ask(db, random, "SELECT * FROM accounts WHERE id > 1 ORDER BY id")


def names(db: sqlite3.Connection) -> list[str]:
    """Return the full names of all accounts, from which the answer to "Who ...?" comes."""
    return [row["full_name"] for row in db.execute("SELECT full_name FROM accounts ORDER BY id")]


def members(db: sqlite3.Connection, project: int) -> list[sqlite3.Row]:
    """Return the accounts with a direct role in a project, without Jonas."""
    query = (
        "SELECT accounts.*, role FROM members JOIN accounts ON id = account WHERE project = ? AND id > 1 ORDER BY id"
    )
    return db.execute(query, (project,)).fetchall()


def value(db: sqlite3.Connection, query: str, *values: Any) -> Any:
    """Return the first value of the first row."""
    return db.execute(query, values).fetchone()[0]


def last(db: sqlite3.Connection, table: str) -> int:
    """Return the highest id of a table; rows above it were created in the episode."""
    return value(db, f"SELECT max(id) FROM {table}")


def to_project(row: sqlite3.Row) -> list[Step]:
    """Navigate from any page to a project's front page."""
    name = row["project_name"]
    return [fill("searchbox", "Search Workbench", name, enter=True), click("link", f"{row['space']} / {name}")]


def to_issues(row: sqlite3.Row) -> list[Step]:
    """Navigate from any page to the list of a project's open issues."""
    return [*to_project(row), click("link", f"Issues {row['open_issues']}")]


def to_issue(row: sqlite3.Row) -> list[Step]:
    """Navigate from any page to an open issue."""
    return [
        *to_issues(row),
        fill("textbox", "Search issues", row["title"], enter=True),
        click("link", row["title"]),
    ]


def to_merges(row: sqlite3.Row) -> list[Step]:
    """Navigate from any page to the list of a project's open merge requests."""
    return [*to_project(row), click("link", f"Merge requests {row['open_merges']}")]


def to_merge(row: sqlite3.Row) -> list[Step]:
    """Navigate from any page to an open merge request."""
    return [*to_merges(row), click("link", row["title"])]


def to_person(row: sqlite3.Row) -> list[Step]:
    """Navigate from any page to a profile."""
    name = row["full_name"]
    steps = [fill("searchbox", "Search Workbench", name, enter=True), click("link", "Users 1")]
    return [*steps, click("link", name)]


def about(*things: str) -> frozenset[str]:
    """Return the entities of a case."""
    return frozenset(things)


def template(
    name: str, wording: str, *, held_out: bool = False
) -> Callable[[Callable[[sqlite3.Connection, Random], Iterable[Case]]], Template]:
    """Create a template of this site from a function that yields its cases."""

    def make(cases: Callable[[sqlite3.Connection, Random], Iterable[Case]]) -> Template:
        def from_all(databases: Databases, random: Random) -> Iterator[Case]:
            yield from cases(databases["code"], random)

        return Template(f"code/{name}", ("gitlab",), wording, from_all, held_out=held_out)

    return make
