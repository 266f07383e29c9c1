"""Voting and saving. Repeating a vote retracts it."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import site
from agentgym_envs.worlds.webarena.sites.web import Visit


@site.post("/vote/{kind}/{number:int}")
def vote(visit: Visit, kind: str, number: int) -> Response:
    """Vote on a post or a comment; return the new score to a script, or redirect a form to the previous page."""
    me = visit.signed_in()["id"]
    target = "comment" if kind == "comment" else "post"
    visit.one(f"SELECT 1 FROM {target}s WHERE id = ? AND NOT removed AND NOT deleted", number, what=target)
    wanted = -1 if visit.text("value") == "-1" else 1
    given = visit.value(f"SELECT value FROM {target}_votes WHERE account = ? AND {target} = ?", me, number)
    if given is not None:
        visit.run(f"DELETE FROM {target}_votes WHERE account = ? AND {target} = ?", me, number)
        _count(visit, target, number, given, -1)
    if given != wanted:
        visit.run(f"INSERT INTO {target}_votes VALUES (?, ?, ?)", me, number, wanted)
        _count(visit, target, number, wanted, 1)
    if "application/json" in visit.request.headers.get("accept", ""):
        score = visit.value(f"SELECT score FROM {target}s WHERE id = ?", number)
        return visit.json({"score": score, "vote": 0 if given == wanted else wanted})
    return visit.redirect(visit.text("next") or "/")


def _count(visit: Visit, target: str, number: int, value: int, change: int) -> None:
    column = "ups" if value == 1 else "downs"
    visit.run(f"UPDATE {target}s SET {column} = {column} + ? WHERE id = ?", change, number)


@site.post("/save/{number:int}")
def save(visit: Visit, number: int) -> Response:
    """Save a post, or remove it from the saved posts."""
    me = visit.signed_in()["id"]
    visit.one("SELECT 1 FROM posts WHERE id = ?", number, what="post")
    if visit.value("SELECT 1 FROM saves WHERE account = ? AND post = ?", me, number):
        visit.run("DELETE FROM saves WHERE account = ? AND post = ?", me, number)
        return visit.redirect(visit.text("next") or "/", "The post is no longer saved.")
    visit.run("INSERT INTO saves VALUES (?, ?)", me, number)
    return visit.redirect(visit.text("next") or "/", "The post was saved.")
