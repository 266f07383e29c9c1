"""Tasks that end on the right page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random
from urllib.parse import quote

from agentgym_envs.worlds.webarena.sites.forum.orders import ORDERS
from agentgym_envs.worlds.webarena.sites.forum.task_parts import (
    HOME,
    PERIOD_WORDS,
    SITES,
    asked,
    best,
    communities,
    community_entity,
    member_entity,
    post_entity,
    posts,
    shuffled,
    sorted_by,
    to_community,
    to_listed_post,
    to_member,
    to_post,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, at, click, stop


def _controversial(databases: Databases, random: Random) -> Iterator[Case]:
    weight = ORDERS["controversial"].partition(" DESC")[0]
    for place in communities(databases, random):
        for period in ("year", "all"):
            first, second = best(databases, place["id"], "controversial", period, 2)
            weights = f"SELECT {weight} AS weight FROM posts p WHERE id IN (?, ?)"
            if len({row["weight"] for row in asked(databases, weights, first["id"], second["id"])}) < 2:
                continue
            yield Case(
                {"period": PERIOD_WORDS[period], "community": place["name"]},
                frozenset({community_entity(place["name"])}),
                at(f"{HOME}/c/{place['name']}/{first['id']}"),
                [*to_community(place["name"]), *sorted_by("controversial", period), to_listed_post(first), stop()],
            )


def _best_commenter(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """
        SELECT m.score, a.name FROM comments m JOIN accounts a ON a.id = m.author WHERE post = ?
        ORDER BY m.score DESC LIMIT 2
    """
    for post in islice(posts(databases, random, "p.comments BETWEEN 4 AND 15"), 150):
        first, second = asked(databases, sql, post["id"])
        if first["score"] == second["score"]:
            continue
        yield Case(
            {"title": post["title"]},
            frozenset({post_entity(post["id"])}),
            at(f"{HOME}/u/{first['name']}", f"{HOME}/u/{first['name']}/comments"),
            [*to_post(post), click("link", first["name"]), stop()],
        )


def _flair(databases: Databases, random: Random) -> Iterator[Case]:
    for place in communities(databases, random):
        shown = {post["flair"] for post in best(databases, place["id"], "hot", "all", 12)} - {""}
        for flair in random.sample(sorted(shown), min(3, len(shown))):
            yield Case(
                {"flair": flair, "community": place["name"]},
                frozenset({community_entity(place["name"])}),
                at(f"{HOME}/c/{place['name']}?flair={quote(flair)}"),
                [*to_community(place["name"]), click("link", flair), stop()],
            )


def _comments_of(databases: Databases, random: Random) -> Iterator[Case]:
    sql = "SELECT name FROM accounts a WHERE (SELECT count(*) FROM comments WHERE author = a.id) > 15 ORDER BY id"
    for member in islice(shuffled(databases, random, sql), 120):
        name = member["name"]
        yield Case(
            {"member": name},
            frozenset({member_entity(name)}),
            at(f"{HOME}/u/{name}/comments?sort=top"),
            [*to_member(name), click("link", _tab(databases, name)), click("link", "Highest score"), stop()],
        )


def _tab(databases: Databases, name: str) -> str:
    sql = "SELECT count(*) AS number FROM comments JOIN accounts a ON a.id = author WHERE a.name = ?"
    return f"Comments ({asked(databases, sql, name)[0]['number']})"


TEMPLATES = (
    Template(
        "forum/open-controversial",
        SITES,
        "Take me to the page of the most controversial post {{period}} in {{community}}.",
        _controversial,
    ),
    Template(
        "forum/open-best-commenter",
        SITES,
        "Under the post “{{title}}”, one comment has more points than all others. Open the profile of who wrote it.",
        _best_commenter,
    ),
    Template(
        "forum/open-flair",
        SITES,
        "In the {{community}} community, show me only the posts that carry the flair “{{flair}}”.",
        _flair,
    ),
    Template(
        "forum/open-comments-of",
        SITES,
        "Show me what {{member}} has commented on Commons, the comments with the highest score first.",
        _comments_of,
        held_out=True,
    ),
)
