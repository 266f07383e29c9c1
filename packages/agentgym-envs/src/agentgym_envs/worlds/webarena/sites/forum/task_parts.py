"""Building blocks of the forum's tasks: queries, navigation steps and entities."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.directory import NOW, PLACES
from agentgym_envs.worlds.webarena.sites.forum.orders import ORDERS, PERIODS, SINCE, SORTS
from agentgym_envs.worlds.webarena.sites.forum.wording import plural
from agentgym_envs.worlds.webarena.sites.tasks import Databases, Step, choose, click, fill

HOME = PLACES["reddit"].url
SITES = ("reddit",)
STAMP = f"{NOW}"
THERE = "NOT p.removed AND NOT p.deleted"
PERIOD_WORDS = {"month": "of the past month", "year": "of the past year", "all": "of all time"}
"""Wording of the periods in intents; days and weeks have too few posts to ask about."""


def me(databases: Databases) -> int:
    """Return the id of the account that the agent is signed in to."""
    account = PLACES["reddit"].account
    assert account is not None
    return databases["forum"].execute("SELECT id FROM accounts WHERE name = ?", (account.name,)).fetchone()[0]


def asked(databases: Databases, sql: str, *values: Any) -> list[sqlite3.Row]:
    """Return all rows of a query to the forum."""
    return databases["forum"].execute(sql, values).fetchall()


def shuffled(databases: Databases, random: Random, sql: str, *values: Any) -> list[sqlite3.Row]:
    """Return all rows of a query in random order."""
    found = asked(databases, sql, *values)
    random.shuffle(found)
    return found


def communities(databases: Databases, random: Random) -> list[sqlite3.Row]:
    """Return all communities in random order."""
    return shuffled(databases, random, "SELECT * FROM communities ORDER BY id")


def best(databases: Databases, community: int, sort: str, period: str, number: int) -> list[sqlite3.Row]:
    """Return the first posts of a community in an order, as its page shows them."""
    return asked(
        databases,
        f"""
        SELECT p.*, a.name AS author_name, a.id AS author_id FROM posts p JOIN accounts a ON a.id = p.author
        WHERE p.community = ? AND {THERE} AND p.created >= '{SINCE[period]}' ORDER BY {ORDERS[sort]} LIMIT ?
        """,
        community,
        number,
    )


def rankings(
    databases: Databases, random: Random, sort: str, by: str
) -> Iterator[tuple[sqlite3.Row, str, sqlite3.Row]]:
    """Yield (community, period, first post) where the first post's value of column `by` exceeds the second's."""
    pairs = [(place, period) for place in communities(databases, random) for period in PERIOD_WORDS]
    random.shuffle(pairs)
    for place, period in pairs:
        first = best(databases, place["id"], sort, period, 2)
        if len(first) == 2 and first[0][by] > first[1][by]:
            yield place, period, first[0]


def to_community(name: str) -> list[Step]:
    """Navigate from any page to a community through the list of communities."""
    return [click("link", "Communities"), fill("textbox", "Filter", name, enter=True), click("link", name)]


def sorted_by(sort: str, period: str = "all") -> list[Step]:
    """Change the order on a page with posts."""
    return [click("link", SORTS[sort])] + ([click("link", PERIODS[period])] if period != "all" else [])


def to_listed_post(post: sqlite3.Row) -> Step:
    """Open a post from a list that shows it."""
    return click("link", f"{plural(post['comments'], 'comment')} on {post['title']}")


def to_post(post: sqlite3.Row) -> list[Step]:
    """Navigate from any page to a post by search."""
    return [fill("searchbox", "Search Commons", post["title"], enter=True), to_listed_post(post)]


def to_member(name: str) -> list[Step]:
    """Navigate from any page to a member's profile by search."""
    return [
        fill("searchbox", "Search Commons", name, enter=True),
        choose("In", "Members"),
        click("button", "Search again"),
        click("link", name),
    ]


def to_letter(subject: str, partner: str) -> list[Step]:
    """Navigate from any page to a conversation by the search in messages."""
    found = [click("link", "Messages"), fill("textbox", "Search messages", partner, enter=True)]
    return [*found, click("link", f"{subject}, with {partner}")]


def community_entity(name: str) -> str:
    """Return the entity of a community."""
    return f"forum-community:{name}"


def member_entity(name: str) -> str:
    """Return the entity of a member."""
    return f"forum-member:{name}"


def post_entity(number: int) -> str:
    """Return the entity of a post."""
    return f"forum-post:{number}"


def listed(names: Sequence[str]) -> str:
    """Join names: `a, b and c`."""
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def findable(databases: Databases, title: str) -> bool:
    """Whether a search for a title returns at most 10 posts, so that the post is on the first page."""
    holes = " AND ".join(["(title || ' ' || body) LIKE ?"] * len(title.split()[:8]))
    words = [f"%{word}%" for word in title.split()[:8]]
    return asked(databases, f"SELECT count(*) AS number FROM posts WHERE {holes}", *words)[0]["number"] <= 10


def posts(databases: Databases, random: Random, where: str, *values: Any) -> Iterator[sqlite3.Row]:
    """Return posts that satisfy `where`, in random order, that a search for their title finds."""
    found = shuffled(
        databases,
        random,
        f"""
        SELECT p.*, c.name AS place_name, a.name AS author_name FROM posts p JOIN communities c ON c.id = p.community
        JOIN accounts a ON a.id = p.author WHERE {THERE} AND ({where}) ORDER BY p.id
        """,
        *values,
    )
    return (post for post in found if findable(databases, post["title"]))
