"""The top-level addresses: people with their activity, and groups with their projects."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import SEEN, found, group_role, site, who
from agentgym_envs.worlds.webarena.sites.code.explore import topics_of
from agentgym_envs.worlds.webarena.sites.web import NotFound, Refused, Visit

_TABS = ("overview", "projects", "starred", "snippets", "followers", "following")
_DONE = (
    "SELECT * FROM ("
    " SELECT commits.created, 'pushed' AS verb, message AS title, project, '/-/commit/' || substr(sha, 1, 8) AS place"
    " FROM commits WHERE author = :person UNION ALL"
    " SELECT issues.created, 'opened the issue', title, project, '/-/issues/' || iid FROM issues"
    " WHERE author = :person AND confidential = 0 UNION ALL"
    " SELECT merges.created, 'opened the merge request', title, project, '/-/merge_requests/' || iid FROM merges"
    " WHERE author = :person) AS done JOIN projects ON projects.id = done.project"
    f" WHERE {SEEN} ORDER BY done.created DESC, title LIMIT 12"
)


@site.post("/{name}/-/follow")
def follow(visit: Visit, name: str) -> Response:
    """Follow or unfollow a person."""
    me = visit.signed_in()
    person = visit.one("SELECT * FROM accounts WHERE name = ?", name, what="user")
    if person["id"] == me["id"]:
        raise Refused("You cannot follow yourself.")
    if _follows(visit, person["id"]):
        visit.run("DELETE FROM follows WHERE follower = ? AND followed = ?", me["id"], person["id"])
        return visit.redirect(f"/{name}", f"You no longer follow {person['full_name']}.")
    visit.run("INSERT INTO follows VALUES (?, ?)", me["id"], person["id"])
    return visit.redirect(f"/{name}", f"You follow {person['full_name']} now.")


def _follows(visit: Visit, person: int) -> bool:
    query = "SELECT 1 FROM follows WHERE follower = ? AND followed = ?"
    return visit.value(query, who(visit)["me"], person) is not None


@site.get("/{name}")
def somebody(visit: Visit, name: str) -> Response:
    """Show a person's profile, or a group."""
    person = visit.db.execute("SELECT * FROM accounts WHERE name = ?", (name,)).fetchone()
    if person is not None:
        return _person(visit, person)
    group = visit.db.execute("SELECT * FROM groups WHERE path = ?", (name,)).fetchone()
    if group is None:
        raise NotFound("user or group")
    return _group(visit, group)


def _person(visit: Visit, person: sqlite3.Row) -> Response:
    tab = visit.text("tab") if visit.text("tab") in _TABS else "overview"
    counts = {
        "followers": visit.value("SELECT count(*) FROM follows WHERE followed = ?", person["id"]),
        "following": visit.value("SELECT count(*) FROM follows WHERE follower = ?", person["id"]),
    }
    values = {"person": person["id"]} | who(visit)
    shown: dict[str, Any] = {
        "done": visit.db.execute(_DONE, values).fetchall() if tab == "overview" else [],
        "projects": _projects_of(visit, tab, person),
        "people": _people_of(visit, tab, person["id"]),
        "snippets": visit.all(
            "SELECT * FROM snippets WHERE account = ? AND (visibility = 'public' OR account = ?) ORDER BY created DESC",
            *(person["id"], values["me"]),
        ),
    }
    me = visit.account is not None and visit.account["id"] == person["id"]
    return visit.render(
        "person.html", person=person, tab=tab, counts=counts, me=me, follows=_follows(visit, person["id"]), **shown
    )


def _projects_of(visit: Visit, tab: str, person: sqlite3.Row) -> list[sqlite3.Row]:
    if tab not in ("projects", "starred"):
        return []
    owned = "(projects.namespace = :owner)"
    condition = owned if tab == "projects" else "projects.id IN (SELECT project FROM stars WHERE account = :person)"
    values = {"owner": person["name"], "person": person["id"]} | who(visit)
    query = f"SELECT * FROM projects WHERE {condition} AND {SEEN} ORDER BY updated DESC"
    return visit.db.execute(query, values).fetchall()


def _people_of(visit: Visit, tab: str, person: int) -> list[sqlite3.Row]:
    ends = {"followers": ("follower", "followed"), "following": ("followed", "follower")}
    if tab not in ends:
        return []
    shown, fixed = ends[tab]
    query = f"SELECT accounts.* FROM follows JOIN accounts ON id = {shown} WHERE {fixed} = ? ORDER BY full_name"
    return visit.all(query, person)


def _group(visit: Visit, group: sqlite3.Row) -> Response:
    role = group_role(visit, group["path"])
    if group["visibility"] == "private" and role == 0:
        raise NotFound("user or group")
    rest = f"projects WHERE namespace = :group AND {SEEN} ORDER BY name"
    rows, pager = found(visit, "projects.*", rest, 20, group=group["path"])
    members = visit.value("SELECT count(*) FROM group_members WHERE group_id = ?", group["id"])
    shown: dict[str, Any] = {"rows": rows, "pager": pager, "topics_of": topics_of(visit, rows)}
    return visit.render("group.html", group=group, members=members, role=role, **shown)
