"""Members of projects and groups, and their roles."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import (
    GUEST,
    MAINTAINER,
    OWNER,
    RIGHT_NOW,
    ROLES,
    TODAY,
    Here,
    day_of,
    group_role,
    here_at,
    site,
)
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

_BASE = "/{namespace}/{project}/-/members"


@site.get(_BASE)
def members(visit: Visit, namespace: str, project: str) -> Response:
    """List the members with the invitation form."""
    return _members(here_at(visit, namespace, project), 200, {"person": "", "role": GUEST, "expires": ""}, "")


def _members(here: Here, status: int, values: dict[str, object], error: str) -> Response:
    return here.render("members.html", status, people=here.people(), values=values, error=error)


@site.post(_BASE)
def invite(visit: Visit, namespace: str, project: str) -> Response:
    """Add a member."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, "invite members")
    person, role, expires = visit.text("person", 100), _role(visit, here.role), visit.text("expires", 20)
    account = _find_account(visit, person)
    error = ""
    if account is None:
        error = f"There is nobody called {person}." if person else "Say whom to invite."
    elif any(member["id"] == account["id"] and member["direct"] for member in here.people()):
        error = f"{account['full_name']} is a member already."
    elif expires and (day_of(expires) is None or expires <= TODAY):
        error = "Write the expiry date as YYYY-MM-DD; it must be in the future."
    if account is None or error:
        return _members(here, 422, {"person": person, "role": role, "expires": expires}, error)
    visit.run("INSERT INTO members VALUES (?, ?, ?, ?, ?)", here.id, account["id"], role, expires or None, TODAY)
    return visit.redirect(f"{here.path}/-/members", f"{account['full_name']} was added as {ROLES[role]}.")


def _find_account(visit: Visit, person: str) -> sqlite3.Row | None:
    """Find an account by user name, e-mail address or, if it is unique, full name."""
    query = "SELECT * FROM accounts WHERE name = ? OR email = ? OR full_name = ? COLLATE NOCASE"
    rows = visit.all(query, person.removeprefix("@").lower(), person, person)
    return rows[0] if len(rows) == 1 else None


def _role(visit: Visit, most: int) -> int:
    role = visit.number("role", GUEST)
    if role not in ROLES:
        role = GUEST
    if role > most:
        raise Refused(f"You cannot give a role higher than your own, {ROLES[most]}.")
    return role


@site.post(_BASE + "/{account:int}")
def change_role(visit: Visit, namespace: str, project: str, account: int) -> Response:
    """Change a member's role."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, "change roles")
    row = _member(here, account)
    role = _role(visit, here.role)
    visit.run("UPDATE members SET role = ? WHERE project = ? AND account = ?", role, here.id, account)
    return visit.redirect(f"{here.path}/-/members", f"{row['full_name']} is {ROLES[role]} now.")


@site.post(_BASE + "/{account:int}/remove")
def remove(visit: Visit, namespace: str, project: str, account: int) -> Response:
    """Remove a member."""
    here = here_at(visit, namespace, project)
    here.need(MAINTAINER, "remove members")
    row = _member(here, account)
    visit.run("DELETE FROM members WHERE project = ? AND account = ?", here.id, account)
    return visit.redirect(f"{here.path}/-/members", f"{row['full_name']} was removed.")


def _member(here: Here, account: int) -> sqlite3.Row:
    row = here.visit.one(
        "SELECT role, name, full_name FROM members JOIN accounts ON id = account WHERE project = ? AND account = ?",
        here.id,
        account,
        what="member",
    )
    if row["role"] >= OWNER and (here.role < OWNER or row["name"] == here.row["namespace"]):
        raise Refused(f"{row['full_name']} owns this project.")
    return row


@site.get("/groups/{path}/-/group_members")
def group_members(visit: Visit, path: str) -> Response:
    """List the members of a group."""
    return _group_members(visit, path, 200, "", "")


def _group_members(visit: Visit, path: str, status: int, person: str, error: str) -> Response:
    group = visit.one("SELECT * FROM groups WHERE path = ?", path, what="group")
    role = group_role(visit, path)
    if group["visibility"] != "public" and role == 0:
        raise Refused("Only members see this group.")
    people = visit.all(
        "SELECT accounts.*, role, group_members.created AS joined FROM group_members JOIN accounts ON id = account"
        " WHERE group_id = ? ORDER BY full_name",
        group["id"],
    )
    values = {"group": group, "people": people, "role": role, "person": person, "error": error}
    return visit.render("group_members.html", status, **values)


@site.post("/groups/{path}/-/group_members")
def group_invite(visit: Visit, path: str) -> Response:
    """Add a member to a group, or change a member's role."""
    visit.signed_in()
    group = visit.one("SELECT * FROM groups WHERE path = ?", path, what="group")
    mine = group_role(visit, path)
    if mine < OWNER:
        raise Refused("Only owners can invite people to a group.")
    person, role = visit.text("person", 100), _role(visit, mine)
    account = _find_account(visit, person)
    if account is None:
        return _group_members(visit, path, 422, person, f"There is nobody called {person}.")
    visit.run("INSERT OR REPLACE INTO group_members VALUES (?, ?, ?, ?)", group["id"], account["id"], role, RIGHT_NOW)
    return visit.redirect(f"/groups/{path}/-/group_members", f"{account['full_name']} is {ROLES[role]} now.")


@site.post("/groups/{path}/-/group_members/{account:int}/remove")
def group_remove(visit: Visit, path: str, account: int) -> Response:
    """Remove another member from a group."""
    me = visit.signed_in()
    if group_role(visit, path) < OWNER or account == me["id"]:
        raise Refused("Only owners can remove people from a group, and not themselves.")
    group = visit.value("SELECT id FROM groups WHERE path = ?", path)
    visit.run("DELETE FROM group_members WHERE group_id = ? AND account = ?", group, account)
    return visit.redirect(f"/groups/{path}/-/group_members", "The member was removed.")
