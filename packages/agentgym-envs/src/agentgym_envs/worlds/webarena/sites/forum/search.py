"""Search over posts, comments, communities and members."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import site
from agentgym_envs.worlds.webarena.sites.forum.listing import listed
from agentgym_envs.worlds.webarena.sites.web import Visit, pages

_KINDS = {"posts": "Posts", "comments": "Comments", "communities": "Communities", "members": "Members"}
_SIZE = 15


@site.get("/search")
def search(visit: Visit) -> Response:
    """Find everything that contains all words; posts and comments can be filtered by community and author."""
    kind = visit.text("kind") if visit.text("kind") in _KINDS else "posts"
    words = visit.text("q", 200).split()[:8]
    names = [row["name"] for row in visit.all("SELECT name FROM communities ORDER BY name")]
    shown: dict[str, Any] = {
        "kind": kind,
        "kinds": _KINDS,
        "names": names,
        "wanted": visit.text("q", 200),
        "author": visit.text("author", 40),
        "place_name": visit.text("c", 40),
        "posts": [],
        "rows": [],
    }
    if kind == "posts":
        return visit.render("search.html", **shown | _posts(visit, words))
    return visit.render("search.html", **shown | _rows(visit, kind, words))


def _like(words: list[str], column: str, first: int) -> tuple[str, list[str]]:
    escaped = [word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for word in words]
    holes = [f"{column} LIKE ?{first + i} ESCAPE '\\'" for i in range(len(words))]
    return " AND ".join(["1", *holes]), [f"%{word}%" for word in escaped]


def _posts(visit: Visit, words: list[str]) -> dict[str, Any]:
    where, values = _like(words, "(p.title || ' ' || p.body)", 4)
    narrow = "(?2 = '' OR c.name = ?2) AND (?3 = '' OR p.author = (SELECT id FROM accounts WHERE name = ?3))"
    return listed(visit, f"{narrow} AND {where}", visit.text("c", 40), visit.text("author", 40), *values, sort="new")


def _rows(visit: Visit, kind: str, words: list[str]) -> dict[str, Any]:
    narrow: list[str] = []
    if kind == "comments":
        source = """
            comments m JOIN accounts a ON a.id = m.author JOIN posts p ON p.id = m.post
            JOIN communities c ON c.id = p.community
        """
        where, values = _like(words, "m.body", 3)
        where += " AND NOT m.deleted AND NOT m.removed AND (?1 = '' OR c.name = ?1) AND (?2 = '' OR a.name = ?2)"
        narrow, order = [visit.text("c", 40), visit.text("author", 40)], "m.created DESC, m.id DESC"
        columns = "m.*, a.name AS author_name, p.title, c.name AS place_name"
    elif kind == "communities":
        where, values = _like(words, "(name || ' ' || title || ' ' || about)", 1)
        source, order, columns = "communities", "subscribers DESC", "*"
    else:
        where, values = _like(words, "name", 1)
        source, order, columns = "accounts", "name", "name, bio, joined"
    part = pages(
        visit.value(f"SELECT count(*) FROM {source} WHERE {where}", *narrow, *values), _SIZE, visit.number("page")
    )
    paged = f"ORDER BY {order} LIMIT {part['size']} OFFSET {part['offset']}"
    rows: list[sqlite3.Row] = visit.all(f"SELECT {columns} FROM {source} WHERE {where} {paged}", *narrow, *values)
    return {"rows": rows, "pages": part}
