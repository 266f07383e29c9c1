"""Members: sign-in and sign-out, registration, profiles, settings, blocking."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import STAMP, site
from agentgym_envs.worlds.webarena.sites.forum.listing import listed, order_read
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit, pages

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,29}")
_SHORTEST_PASSWORD = 6
_SIZE = 15
_LONGEST_BIO = 500


@site.get("/login")
def login(visit: Visit) -> Response:
    """Show the sign-in form."""
    return visit.render("login.html", name="", next=visit.text("next"), errors=[])


@site.post("/login")
def sign_in(visit: Visit) -> Response:
    """Sign in and continue to the requested page."""
    name = visit.text("name")
    known = visit.value("SELECT id FROM accounts WHERE name = ? AND password = ?", name, visit.text("password"))
    if known is None:
        errors = ["There is no member with this name and password."]
        return visit.render("login.html", 400, name=name, next=visit.text("next"), errors=errors)
    visit.sign_in(known)
    return visit.redirect(visit.text("next") or "/", f"Welcome back, {name}.")


@site.post("/logout")
def log_out(visit: Visit) -> Response:
    """Sign out."""
    visit.sign_out()
    return visit.redirect("/", "You are signed out.")


@site.get("/register")
def register(visit: Visit) -> Response:
    """Show the registration form."""
    return visit.render("register.html", name="", errors=[])


@site.post("/register")
def join(visit: Visit) -> Response:
    """Register and sign in."""
    name, password = visit.text("name"), visit.text("password")
    errors = [] if _NAME.fullmatch(name) else ["A name has 3 to 30 letters, digits or underscores; a letter first."]
    if len(password) < _SHORTEST_PASSWORD:
        errors.append(f"A password has at least {_SHORTEST_PASSWORD} characters.")
    if visit.value("SELECT 1 FROM accounts WHERE name = ?", name):
        errors.append("This name is taken.")
    if errors:
        return visit.render("register.html", 400, name=name, errors=errors)
    made = visit.run("INSERT INTO accounts (name, password, joined) VALUES (?, ?, ?)", name, password, STAMP)
    visit.sign_in(made)
    return visit.redirect("/communities", f"Welcome, {name}. Which communities are for you?")


@site.get("/u/{name}")
def posts_of(visit: Visit, name: str) -> Response:
    """List a member's posts."""
    member = _member(visit, name)
    shown = listed(visit, "p.author = ?2", member["id"], sort="new")
    visit.canonical(f"/u/{member['name']}", **order_read(shown, "new"))
    return visit.render("member.html", tab="posts", member=member, **shown)


@site.get("/u/{name}/comments")
def comments_of(visit: Visit, name: str) -> Response:
    """List a member's comments, newest or best first."""
    member = _member(visit, name)
    part = pages(member["comments"], _SIZE, visit.number("page"))
    visit.canonical(sort="top" if visit.text("sort") == "top" else None)
    order = "m.score DESC, m.id DESC" if visit.text("sort") == "top" else "m.created DESC, m.id DESC"
    rows = visit.all(
        f"""
        SELECT m.*, p.title AS title, c.name AS place_name FROM comments m JOIN posts p ON p.id = m.post
        JOIN communities c ON c.id = p.community WHERE m.author = ? AND NOT m.deleted AND NOT m.removed
        ORDER BY {order} LIMIT {part["size"]} OFFSET {part["offset"]}
        """,
        member["id"],
    )
    return visit.render("member_comments.html", tab="comments", member=member, rows=rows, pages=part)


@site.get("/saved")
def saved(visit: Visit) -> Response:
    """List the visitor's saved posts."""
    visit.signed_in()
    return visit.render("front.html", which="saved", **listed(visit, _SAVED, sort="new"))


_SAVED = "p.id IN (SELECT post FROM saves WHERE account = ?1)"


@site.get("/settings")
def settings(visit: Visit) -> Response:
    """Show the visitor's biography and blocked members."""
    me = visit.signed_in()
    return _settings(visit, me["bio"], [])


@site.post("/settings")
def change_settings(visit: Visit) -> Response:
    """Save the visitor's biography."""
    me, bio = visit.signed_in(), visit.text("bio")
    if len(bio) > _LONGEST_BIO:
        return _settings(visit, bio, [f"A biography has at most {_LONGEST_BIO} characters."])
    visit.run("UPDATE accounts SET bio = ? WHERE id = ?", bio, me["id"])
    return visit.redirect(f"/u/{me['name']}", "Your profile was changed.")


def _settings(visit: Visit, bio: str, errors: list[str]) -> Response:
    blocked = visit.all(
        "SELECT name FROM accounts JOIN blocks ON blocked = id WHERE account = ? ORDER BY name", visit.signed_in()["id"]
    )
    return visit.render("settings.html", 400 if errors else 200, bio=bio, blocked=blocked, errors=errors)


@site.post("/u/{name}/block")
def block(visit: Visit, name: str) -> Response:
    """Block or unblock a member; a blocked member's comments and messages are hidden."""
    me, member = visit.signed_in()["id"], _member(visit, name)
    if member["id"] == me:
        raise Refused("You can't block yourself.")
    if member["blocked"]:
        visit.run("DELETE FROM blocks WHERE account = ? AND blocked = ?", me, member["id"])
        return visit.redirect(visit.text("next") or f"/u/{member['name']}", f"{member['name']} is no longer blocked.")
    visit.run("INSERT INTO blocks VALUES (?, ?)", me, member["id"])
    return visit.redirect(visit.text("next") or f"/u/{member['name']}", f"{member['name']} is blocked.")


def _member(visit: Visit, name: str) -> sqlite3.Row:
    """Return a member with their numbers of visible posts and comments, and whether the visitor has blocked them."""
    me: Any = visit.account["id"] if visit.account else 0
    return visit.one(
        """
        SELECT a.*,
            (SELECT count(*) FROM posts WHERE author = a.id AND NOT deleted AND NOT removed) AS posts,
            (SELECT count(*) FROM comments WHERE author = a.id AND NOT deleted AND NOT removed) AS comments,
            EXISTS (SELECT 1 FROM blocks WHERE account = ?1 AND blocked = a.id) AS blocked,
            (SELECT group_concat(c.name, ' ') FROM moderators JOIN communities c ON c.id = community
                WHERE account = a.id) AS moderates
        FROM accounts a WHERE a.name = ?2
        """,
        me,
        name,
        what="member",
    )
