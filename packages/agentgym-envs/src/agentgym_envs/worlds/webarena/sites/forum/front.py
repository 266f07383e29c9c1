"""The front page, the list of communities, and communities: guide, subscription, creation."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.forum.app import STAMP, community, site
from agentgym_envs.worlds.webarena.sites.forum.listing import listed, order_read
from agentgym_envs.worlds.webarena.sites.web import Visit, pages

_NAME = re.compile(r"[a-z][a-z0-9_]{2,24}")
_ORDERS = {"subscribers": "subscribers DESC", "name": "name", "newest": "created DESC", "posts": "posts DESC"}
_SIZE = 15
_MOST_RULES = 12


@site.get("/")
def front(visit: Visit) -> Response:
    """List the posts of the visitor's communities, or of all communities for visitors who aren't signed in."""
    if visit.account is None:
        return visit.render("front.html", which="all", **listed(visit, "1"))
    mine = "p.community IN (SELECT community FROM subscriptions WHERE account = ?1)"
    return visit.render("front.html", which="subscribed", **listed(visit, mine))


@site.get("/all")
def everything(visit: Visit) -> Response:
    """List the posts of all communities."""
    return visit.render("front.html", which="all", **listed(visit, "1"))


@site.get("/communities")
def communities(visit: Visit) -> Response:
    """List all communities with search and sorting."""
    order = visit.text("sort") if visit.text("sort") in _ORDERS else "subscribers"
    wanted = f"%{visit.text('q')}%"
    where = "WHERE name LIKE ?1 OR title LIKE ?1 OR about LIKE ?1"
    part = pages(visit.value(f"SELECT count(*) FROM communities {where}", wanted), _SIZE, visit.number("page"))
    rows = visit.all(
        f"""
        SELECT communities.*, (SELECT count(*) FROM posts WHERE community = communities.id) AS posts,
            EXISTS (SELECT 1 FROM subscriptions WHERE community = communities.id AND account = ?2) AS subscribed
        FROM communities {where} ORDER BY {_ORDERS[order]} LIMIT {part["size"]} OFFSET {part["offset"]}
        """,
        wanted,
        visit.account["id"] if visit.account else 0,
    )
    return visit.render("communities.html", rows=rows, pages=part, sort=order)


@site.get("/communities/new")
def new_community(visit: Visit) -> Response:
    """Show the form for creating a community."""
    visit.signed_in()
    return visit.render("create.html", name="", title="", about="", rules="", errors=[])


@site.post("/communities/new")
def create_community(visit: Visit) -> Response:
    """Create a community; its creator becomes a moderator and a subscriber."""
    me = visit.signed_in()["id"]
    name, title, about = visit.text("name", 40).lower(), visit.text("title", 60), visit.text("about", 300)
    rules = [line.strip() for line in visit.text("rules", 2_000).splitlines() if line.strip()][:_MOST_RULES]
    errors = [] if _NAME.fullmatch(name) else ["A name has 3 to 25 letters, digits or underscores; a letter first."]
    errors += [] if title else ["A community needs a title."]
    errors += [] if about else ["A community needs a description."]
    if not errors and visit.value("SELECT 1 FROM communities WHERE name = ?", name):
        errors = [f"There is a community named {name} already."]
    if errors:
        given = {"name": name, "title": title, "about": about, "rules": "\n".join(rules)}
        return visit.render("create.html", 400, errors=errors, **given)
    made = visit.run(
        "INSERT INTO communities (name, title, about, created, subscribers) VALUES (?, ?, ?, ?, 1)",
        *(name, title, about, STAMP),
    )
    visit.run("INSERT INTO moderators VALUES (?, ?)", made, me)
    visit.run("INSERT INTO subscriptions VALUES (?, ?)", me, made)
    for position, rule in enumerate(rules, start=1):
        visit.run("INSERT INTO rules VALUES (?, ?, ?)", made, position, rule)
    return visit.redirect(f"/c/{name}", f"The community {name} was created.")


@site.get("/c/{name}")
def show_community(visit: Visit, name: str) -> Response:
    """Show a community's posts with its rules and moderators."""
    place = community(visit, name)
    where, values = "p.community = ?2", [place["id"]]
    flair = visit.text("flair", 40)
    if flair:
        where, values = where + " AND p.flair = ?3", [*values, flair]
    shown = listed(visit, where, *values, pinned_first=True)
    visit.canonical(f"/c/{place['name']}", flair=flair, **order_read(shown))
    return visit.render("community.html", community=place, flair=flair, **sidebar(visit, place["id"]), **shown)


@site.get("/c/{name}/guide")
def guide(visit: Visit, name: str) -> Response:
    """Show the community's page for newcomers."""
    place = community(visit, name)
    return visit.render("guide.html", community=place, **sidebar(visit, place["id"]))


@site.post("/c/{name}/subscribe")
def subscribe(visit: Visit, name: str) -> Response:
    """Subscribe to a community, or unsubscribe."""
    me, place = visit.signed_in()["id"], community(visit, name)
    if place["subscribed"]:
        visit.run("DELETE FROM subscriptions WHERE account = ? AND community = ?", me, place["id"])
    else:
        visit.run("INSERT INTO subscriptions VALUES (?, ?)", me, place["id"])
    change = -1 if place["subscribed"] else 1
    visit.run("UPDATE communities SET subscribers = subscribers + ? WHERE id = ?", change, place["id"])
    notice = "You are no longer subscribed to" if place["subscribed"] else "You are now subscribed to"
    return visit.redirect(visit.text("next") or f"/c/{place['name']}", f"{notice} {place['name']}.")


def sidebar(visit: Visit, number: int) -> dict[str, Any]:
    """Return the rules, moderators and flairs of a community."""
    moderators = "SELECT name FROM accounts JOIN moderators ON account = id WHERE community = ? ORDER BY name"
    return {
        "rules": visit.all("SELECT text FROM rules WHERE community = ? ORDER BY position", number),
        "moderators": visit.all(moderators, number),
        "flairs": visit.all("SELECT name FROM flairs WHERE community = ? ORDER BY name", number),
    }
