"""Moderators' actions in their communities: remove, lock and pin posts, remove comments, ban members."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import STAMP, community, post_path, site
from agentgym_envs.worlds.webarena.sites.forum.listing import one_post
from agentgym_envs.worlds.webarena.sites.web import NotFound, Refused, Visit

_SWITCHES = {
    "pin": ("pinned", "is pinned", "is no longer pinned"),
    "lock": ("locked", "is locked", "is no longer locked"),
    "remove": ("removed", "was removed", "was restored"),
}


@site.post("/post/{number:int}/moderate/{action}")
def moderate_post(visit: Visit, number: int, action: str) -> Response:
    """Pin, lock or remove a post, or undo it."""
    if action not in _SWITCHES:
        raise NotFound("page")
    post = one_post(visit, number)
    _moderated(visit, post["place_name"])
    column, done, undone = _SWITCHES[action]
    visit.run(f"UPDATE posts SET {column} = NOT {column} WHERE id = ?", number)
    return visit.redirect(post_path(post), f"The post {undone if post[column] else done}.")


@site.post("/comment/{number:int}/remove")
def remove_comment(visit: Visit, number: int) -> Response:
    """Remove a comment, which hides its text."""
    comment = visit.one("SELECT * FROM comments WHERE id = ? AND NOT removed AND NOT deleted", number, what="comment")
    post = one_post(visit, comment["post"])
    _moderated(visit, post["place_name"])
    visit.run("UPDATE comments SET removed = 1 WHERE id = ?", number)
    visit.run("UPDATE posts SET comments = comments - 1 WHERE id = ?", post["id"])
    return visit.redirect(post_path(post), "The comment was removed.")


@site.get("/c/{name}/bans")
def bans(visit: Visit, name: str) -> Response:
    """List the banned members of a community with the form for banning."""
    return _bans(visit, name, [])


@site.post("/c/{name}/bans")
def ban(visit: Visit, name: str) -> Response:
    """Ban a member with a reason."""
    place = _moderated(visit, name)
    member = visit.value("SELECT id FROM accounts WHERE name = ?", visit.text("member"))
    reason = visit.text("reason", 300)
    errors = [] if member else ["There is no member of that name."]
    errors += [] if reason else ["A ban needs a reason."]
    if member == visit.signed_in()["id"]:
        errors.append("You can't ban yourself.")
    if errors:
        return _bans(visit, name, errors)
    visit.run("INSERT OR REPLACE INTO bans VALUES (?, ?, ?, ?)", place["id"], member, reason, STAMP)
    return visit.redirect(f"/c/{place['name']}/bans", f"{visit.text('member')} is banned.")


@site.post("/c/{name}/bans/{member}/lift")
def lift(visit: Visit, name: str, member: str) -> Response:
    """Lift a member's ban."""
    place = _moderated(visit, name)
    found = visit.one("SELECT id, name FROM accounts WHERE name = ?", member, what="member")
    visit.run("DELETE FROM bans WHERE community = ? AND account = ?", place["id"], found["id"])
    return visit.redirect(f"/c/{place['name']}/bans", f"{found['name']} is no longer banned.")


def _bans(visit: Visit, name: str, errors: list[str]) -> Response:
    place = _moderated(visit, name)
    rows = visit.all(
        "SELECT bans.*, name FROM bans JOIN accounts ON id = account WHERE community = ? ORDER BY bans.created DESC",
        place["id"],
    )
    given = {"member": visit.text("member"), "reason": visit.text("reason")}
    return visit.render("bans.html", 400 if errors else 200, community=place, rows=rows, errors=errors, **given)


def _moderated(visit: Visit, name: str) -> Any:
    """Return the community if the visitor moderates it."""
    visit.signed_in()
    place = community(visit, name)
    if not place["moderated"]:
        raise Refused("Only moderators of this community may do this.")
    return place
