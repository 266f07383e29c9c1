"""Tasks that post a picture again in another community."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.forum.task_parts import (
    HOME,
    PERIOD_WORDS,
    SITES,
    STAMP,
    communities,
    community_entity,
    me,
    post_entity,
    posts,
    rankings,
    sorted_by,
    to_community,
    to_listed_post,
    to_post,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Step, Template, click, fill, rows, stop

_TITLES = ("Seen elsewhere on Commons", "This belongs here, too", "For those who missed it", "Worth a second look")


def _posted(mine: int, community: str, title: str, picture: int) -> dict[str, Any]:
    """Judge that the member has posted exactly this, with this picture and no text."""
    query = (
        "SELECT c.name, p.title, p.picture, coalesce(p.url, ''), p.body FROM posts p"
        f" JOIN communities c ON c.id = p.community WHERE p.author = {mine} AND p.created = '{STAMP}'"
        " AND NOT (p.deleted OR p.removed)"
    )
    return rows("reddit", query, [community, title, picture, "", ""])


def _post(community: str, title: str, picture: int) -> Sequence[Step]:
    """Return the steps from a post with a picture to the end."""
    return [
        click("link", "Open picture"),
        *to_community(community),
        click("link", f"Submit a post to {community}"),
        fill("textbox", "Title", title),
        fill("textbox", "Picture (address of a picture on Commons, may be empty)", f"{HOME}/picture/{picture}"),
        click("button", "Publish post"),
        stop(),
    ]


def _elsewhere(databases: Databases, random: Random, post: sqlite3.Row) -> str:
    """Return the name of another community."""
    return next(place["name"] for place in communities(databases, random) if place["id"] != post["community"])


def _again(databases: Databases, random: Random) -> Iterator[Case]:
    for post in islice(posts(databases, random, "p.picture IS NOT NULL"), 120):
        target, title = _elsewhere(databases, random, post), random.choice(_TITLES)
        yield Case(
            {"old": post["title"], "source": post["place_name"], "target": target, "title": title},
            frozenset({post_entity(post["id"])}),
            _posted(me(databases), target, title, post["picture"]),
            [*to_post(post), *_post(target, title, post["picture"])],
        )


def _best(databases: Databases, random: Random) -> Iterator[Case]:
    for place, period, post in rankings(databases, random, "top", "score"):
        if post["picture"] is None:
            continue
        target, title = _elsewhere(databases, random, post), random.choice(_TITLES)
        yield Case(
            {"period": PERIOD_WORDS[period], "source": place["name"], "target": target, "title": title},
            frozenset({community_entity(place["name"])}),
            _posted(me(databases), target, title, post["picture"]),
            [
                *to_community(place["name"]),
                *sorted_by("top", period),
                to_listed_post(post),
                *_post(target, title, post["picture"]),
            ],
        )


TEMPLATES = (
    Template(
        "forum/repost-picture",
        SITES,
        "Post the picture of “{{old}}” in {{source}} again in the community {{target}}, with the title “{{title}}” and"
        " without a text.",
        _again,
    ),
    Template(
        "forum/repost-top-picture",
        SITES,
        "The post {{period}} with the most points in {{source}} is a picture. Post that picture in {{target}}, too,"
        " with the title “{{title}}” and without a text.",
        _best,
        held_out=True,
    ),
)
