"""Creation, editing and deletion of comments."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import STAMP, post_path, refuse_banned, site
from agentgym_envs.worlds.webarena.sites.forum.listing import one_post
from agentgym_envs.worlds.webarena.sites.forum.reading import post_page
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit


@site.post("/c/{name}/{number:int}/comment")
def write_comment(visit: Visit, name: str, number: int) -> Response:
    """Comment on a post, or reply to the comment given by `parent`."""
    me, post, body = visit.signed_in()["id"], one_post(visit, number), visit.text("body")
    refuse_banned(visit, post["community"])
    if post["locked"] or post["removed"] or post["deleted"]:
        raise Refused("Nobody can comment on this post any more.")
    above = visit.number("parent", 0, 0)
    parent = _parent(visit, number, above) if above else None
    if not body:
        return post_page(visit, name, number, errors=["A comment needs some text."], below=above or None)
    made = visit.run(
        "INSERT INTO comments (post, parent, author, body, created, ups) VALUES (?, ?, ?, ?, ?, 1)",
        *(number, above or None, me, body, STAMP),
    )
    visit.run("INSERT INTO comment_votes VALUES (?, ?, 1)", me, made)
    visit.run("UPDATE posts SET comments = comments + 1 WHERE id = ?", number)
    recipient = parent["author"] if parent else post["author"]
    if recipient != me:
        visit.run("INSERT INTO notifications (account, comment) VALUES (?, ?)", recipient, made)
    return visit.redirect(f"{post_path(post)}/comment/{made}", "Your comment was posted.")


def _parent(visit: Visit, post: int, number: int) -> sqlite3.Row:
    return visit.one(
        "SELECT * FROM comments WHERE id = ? AND post = ? AND NOT deleted AND NOT removed",
        *(number, post),
        what="comment",
    )


@site.get("/comment/{number:int}/edit")
def edit_comment(visit: Visit, number: int) -> Response:
    """Show the form for editing the visitor's comment."""
    comment, post = _own(visit, number)
    return visit.render("edit_comment.html", comment=comment, post=post, body=comment["body"], errors=[])


@site.post("/comment/{number:int}/edit")
def change_comment(visit: Visit, number: int) -> Response:
    """Save the visitor's comment."""
    (comment, post), body = _own(visit, number), visit.text("body")
    if not body:
        errors = ["A comment needs some text."]
        return visit.render("edit_comment.html", 400, comment=comment, post=post, body=body, errors=errors)
    visit.run("UPDATE comments SET body = ?, edited = ? WHERE id = ?", body, STAMP, number)
    return visit.redirect(f"{post_path(post)}/comment/{number}", "Your comment was changed.")


@site.post("/comment/{number:int}/delete")
def delete_comment(visit: Visit, number: int) -> Response:
    """Delete the visitor's comment; replies to it remain."""
    _, post = _own(visit, number)
    visit.run("UPDATE comments SET deleted = 1 WHERE id = ?", number)
    visit.run("UPDATE posts SET comments = comments - 1 WHERE id = ?", post["id"])
    return visit.redirect(post_path(post), "Your comment was deleted.")


def _own(visit: Visit, number: int) -> tuple[sqlite3.Row, Any]:
    me = visit.signed_in()["id"]
    comment = visit.one("SELECT * FROM comments WHERE id = ? AND NOT deleted", number, what="comment")
    if comment["author"] != me or comment["removed"]:
        raise Refused("This comment is not yours to change.")
    return comment, one_post(visit, comment["post"])
