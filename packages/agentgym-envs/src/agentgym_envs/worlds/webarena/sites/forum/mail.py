"""Private messages, and notifications of replies."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import STAMP, site
from agentgym_envs.worlds.webarena.sites.web import NotFound, Refused, Visit, pages

_SIZE = 12


@site.get("/messages")
def inbox(visit: Visit) -> Response:
    """List all conversations, most recent first; `q` searches subjects, names and texts."""
    me, wanted = visit.signed_in()["id"], f"%{visit.text('q')}%"
    where = """
        FROM threads t JOIN accounts a ON a.id = CASE t.sender WHEN ?1 THEN t.receiver ELSE t.sender END
        WHERE ?1 IN (t.sender, t.receiver) AND a.id NOT IN (SELECT blocked FROM blocks WHERE account = ?1)
        AND (t.subject LIKE ?2 OR a.name LIKE ?2
            OR EXISTS (SELECT 1 FROM messages WHERE thread = t.id AND body LIKE ?2))
    """
    part = pages(visit.value(f"SELECT count(*) {where}", me, wanted), _SIZE, visit.number("page"))
    rows = visit.all(
        f"""
        SELECT t.*, a.name AS partner, (SELECT count(*) FROM messages WHERE thread = t.id) AS number,
            (SELECT max(created) FROM messages WHERE thread = t.id) AS latest
        {where} ORDER BY latest DESC, t.id DESC LIMIT {part["size"]} OFFSET {part["offset"]}
        """,
        me,
        wanted,
    )
    return visit.render("messages.html", rows=rows, pages=part)


@site.get("/messages/{number:int}")
def conversation(visit: Visit, number: int) -> Response:
    """Show a conversation."""
    return _conversation(visit, number, [])


@site.post("/messages/{number:int}")
def answer(visit: Visit, number: int) -> Response:
    """Add a message to a conversation."""
    thread, body = _thread(visit, number), visit.text("body")
    if not body:
        return _conversation(visit, number, ["A message needs some text."])
    _refuse_blocked(visit, thread["partner_id"])
    me = visit.signed_in()["id"]
    visit.run("INSERT INTO messages (thread, author, body, created) VALUES (?, ?, ?, ?)", number, me, body, STAMP)
    return visit.redirect(f"/messages/{number}", "Your message was sent.")


def _conversation(visit: Visit, number: int, errors: list[str]) -> Response:
    thread = _thread(visit, number)
    rows = visit.all(
        "SELECT m.*, name FROM messages m JOIN accounts ON accounts.id = author WHERE thread = ? ORDER BY m.id", number
    )
    return visit.render("conversation.html", 400 if errors else 200, thread=thread, rows=rows, errors=errors)


def _thread(visit: Visit, number: int) -> sqlite3.Row:
    me = visit.signed_in()["id"]
    thread = visit.one(
        """
        SELECT t.*, a.name AS partner, a.id AS partner_id FROM threads t
        JOIN accounts a ON a.id = CASE t.sender WHEN ?1 THEN t.receiver ELSE t.sender END WHERE t.id = ?2
        """,
        me,
        number,
        what="conversation",
    )
    if me not in (thread["sender"], thread["receiver"]):
        raise NotFound("conversation")
    return thread


@site.get("/u/{name}/message")
def compose(visit: Visit, name: str) -> Response:
    """Show the form for a message to a member."""
    visit.signed_in()
    member = visit.one("SELECT * FROM accounts WHERE name = ?", name, what="member")
    return visit.render("compose.html", member=member, subject="", body="", errors=[])


@site.post("/u/{name}/message")
def send(visit: Visit, name: str) -> Response:
    """Start a conversation."""
    me = visit.signed_in()["id"]
    member = visit.one("SELECT * FROM accounts WHERE name = ?", name, what="member")
    subject, body = visit.text("subject", 120), visit.text("body")
    errors = [] if subject else ["A message needs a subject."]
    errors += [] if body else ["A message needs some text."]
    if errors:
        return visit.render("compose.html", 400, member=member, subject=subject, body=body, errors=errors)
    if member["id"] == me:
        raise Refused("You can't write to yourself.")
    _refuse_blocked(visit, member["id"])
    made = visit.run("INSERT INTO threads (subject, sender, receiver) VALUES (?, ?, ?)", subject, me, member["id"])
    visit.run("INSERT INTO messages (thread, author, body, created) VALUES (?, ?, ?, ?)", made, me, body, STAMP)
    return visit.redirect(f"/messages/{made}", "Your message was sent.")


def _refuse_blocked(visit: Visit, partner: int) -> None:
    pair = visit.signed_in()["id"], partner
    if visit.value("SELECT 1 FROM blocks WHERE (account, blocked) IN (VALUES (?1, ?2), (?2, ?1))", *pair):
        raise Refused("One of you has blocked the other.")


@site.get("/notifications")
def notifications(visit: Visit) -> Response:
    """List the replies to the visitor's posts and comments, newest first."""
    me = visit.signed_in()["id"]
    part = pages(visit.value("SELECT count(*) FROM notifications WHERE account = ?", me), _SIZE, visit.number("page"))
    rows = visit.all(
        f"""
        SELECT n.seen, m.*, a.name AS author_name, p.title, c.name AS place_name FROM notifications n
        JOIN comments m ON m.id = n.comment JOIN accounts a ON a.id = m.author JOIN posts p ON p.id = m.post
        JOIN communities c ON c.id = p.community
        WHERE n.account = ? ORDER BY m.created DESC, m.id DESC LIMIT {part["size"]} OFFSET {part["offset"]}
        """,
        me,
    )
    return visit.render("notifications.html", rows=rows, pages=part)


@site.post("/notifications/seen")
def all_seen(visit: Visit) -> Response:
    """Mark all replies as read."""
    visit.run("UPDATE notifications SET seen = 1 WHERE account = ?", visit.signed_in()["id"])
    return visit.redirect("/notifications", "Everything is marked as read.")
