"""Voting and saving. A vote given twice is taken back."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import site
from agentgym_envs.worlds.webarena.sites.web import Visit


@site.post("/vote/{kind}/{number:int}")
def vote(visit: Visit, kind: str, number: int) -> Response:
    """Vote on a post or a comment; a script gets the new score, a form is sent back to where it was."""
    me = visit.signed_in()["id"]
    noun = "comment" if kind == "comment" else "post"
    visit.one(f"SELECT 1 FROM {noun}s WHERE id = ? AND NOT removed AND NOT deleted", number, what=noun)
    wanted = -1 if visit.text("value") == "-1" else 1
    given = visit.value(f"SELECT value FROM {noun}_votes WHERE account = ? AND {noun} = ?", me, number)
    if given is not None:
        visit.run(f"DELETE FROM {noun}_votes WHERE account = ? AND {noun} = ?", me, number)
        _count(visit, noun, number, given, -1)
    if given != wanted:
        visit.run(f"INSERT INTO {noun}_votes VALUES (?, ?, ?)", me, number, wanted)
        _count(visit, noun, number, wanted, 1)
    if "application/json" in visit.request.headers.get("accept", ""):
        score = visit.value(f"SELECT score FROM {noun}s WHERE id = ?", number)
        return visit.json({"score": score, "vote": 0 if given == wanted else wanted})
    return visit.redirect(visit.text("next") or "/")


def _count(visit: Visit, noun: str, number: int, value: int, change: int) -> None:
    column = "ups" if value == 1 else "downs"
    visit.run(f"UPDATE {noun}s SET {column} = {column} + ? WHERE id = ?", change, number)


@site.post("/save/{number:int}")
def save(visit: Visit, number: int) -> Response:
    """Save a post, or no longer."""
    me = visit.signed_in()["id"]
    visit.one("SELECT 1 FROM posts WHERE id = ?", number, what="post")
    if visit.value("SELECT 1 FROM saves WHERE account = ? AND post = ?", me, number):
        visit.run("DELETE FROM saves WHERE account = ? AND post = ?", me, number)
        return visit.redirect(visit.text("next") or "/", "The post is no longer saved.")
    visit.run("INSERT INTO saves VALUES (?, ?)", me, number)
    return visit.redirect(visit.text("next") or "/", "The post was saved.")
