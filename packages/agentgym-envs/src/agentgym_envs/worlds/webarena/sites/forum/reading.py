"""The page of a post with its comments in reading order."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import community, site
from agentgym_envs.worlds.webarena.sites.forum.front import sidebar
from agentgym_envs.worlds.webarena.sites.forum.listing import one_post
from agentgym_envs.worlds.webarena.sites.web import NotFound, Visit, pages

_SORTS = {"best": "Best", "new": "Newest", "old": "Oldest", "controversial": "Controversial"}
_SIZE = 20
_ORDERS = {
    "best": "m.score DESC, m.id",
    "new": "m.created DESC, m.id DESC",
    "old": "m.created, m.id",
    "controversial": "min(m.ups, m.downs) DESC, m.id",
}


@site.get("/c/{name}/{number:int}")
def show_post(visit: Visit, name: str, number: int) -> Response:
    """Show a post and its comments."""
    return post_page(visit, name, number, errors=[])


def post_page(visit: Visit, name: str, number: int, *, errors: list[str], below: int | None = None) -> Response:
    """Render the page of a post, or of the comment `below` with its replies; `errors` belong to a submitted comment."""
    place, post = community(visit, name), one_post(visit, number)
    if post["community"] != place["id"]:
        raise NotFound("post")
    visit.canonical()
    shown = {"community": place, "post": post, "errors": errors, "below": below, "draft": visit.text("body")}
    found = _tree(visit, post["id"], below)
    return visit.render("post.html", 400 if errors else 200, **shown, **found, **sidebar(visit, place["id"]))


@site.get("/c/{name}/{number:int}/comment/{comment:int}")
def show_comment(visit: Visit, name: str, number: int, comment: int) -> Response:
    """Show one comment with its replies and the reply form."""
    visit.one("SELECT 1 FROM comments WHERE id = ? AND post = ?", comment, number, what="comment")
    return post_page(visit, name, number, errors=[], below=comment)


def _tree(visit: Visit, post: int, below: int | None) -> dict[str, Any]:
    """Return the comments of a post as (comment, depth) in reading order; only `below` and its replies if given."""
    chosen = visit.text("sort") if visit.text("sort") in _SORTS else "best"
    me = visit.account["id"] if visit.account else 0
    rows = visit.all(
        f"""
        SELECT m.*, a.name AS author_name, coalesce(v.value, 0) AS vote,
            EXISTS (SELECT 1 FROM blocks WHERE account = ?1 AND blocked = m.author) AS blocked
        FROM comments m JOIN accounts a ON a.id = m.author
        LEFT JOIN comment_votes v ON v.comment = m.id AND v.account = ?1
        WHERE m.post = ?2 ORDER BY {_ORDERS[chosen]}
        """,
        me,
        post,
    )
    replies: dict[int | None, list[sqlite3.Row]] = {}
    for row in rows:
        replies.setdefault(row["parent"], []).append(row)
    first = [row for row in rows if row["id"] == below] if below else replies.get(None, [])
    read = _in_reading_order(first, replies)
    part = pages(len(read), _SIZE, visit.number("page"))
    shown = read[part["offset"] : part["offset"] + _SIZE]
    return {"tree": shown, "pages": part, "comment_sort": chosen, "comment_sorts": _SORTS}


def _in_reading_order(
    first: list[sqlite3.Row], replies: dict[int | None, list[sqlite3.Row]]
) -> list[tuple[sqlite3.Row, int]]:
    read: list[tuple[sqlite3.Row, int]] = []
    ahead = [(row, 0) for row in reversed(first)]
    while ahead:
        row, depth = ahead.pop()
        under = replies.get(row["id"], [])
        if under or not row["deleted"]:
            read.append((row, depth))
        ahead += [(reply, depth + 1) for reply in reversed(under)]
    return read
