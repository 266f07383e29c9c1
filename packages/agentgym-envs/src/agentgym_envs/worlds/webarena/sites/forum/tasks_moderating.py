"""Tasks for the moderator of a community."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import edited
from agentgym_envs.worlds.webarena.sites.forum.task_parts import (
    SITES,
    asked,
    me,
    member_entity,
    post_entity,
    posts,
    shuffled,
    to_community,
    to_listed_post,
    to_member,
    to_post,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, click, fill, rows, stop

_PLACE = "books"
_ACTIONS = {"pin": ("pinned", "Pin"), "lock": ("locked", "Lock"), "remove": ("removed", "Remove")}
_REASONS = ("Advertising", "Insults in private messages", "Spoilers without a warning", "Copied reviews")


def _moderate(databases: Databases, random: Random) -> Iterator[Case]:
    plain = "c.name = ? AND NOT p.pinned AND NOT p.locked"
    for post in posts(databases, random, plain, _PLACE):
        action = random.choice(list(_ACTIONS))
        column, word = _ACTIONS[action]
        yield Case(
            {"action": word, "title": post["title"], "community": _PLACE},
            frozenset({post_entity(post["id"])}),
            edited(databases["forum"], "reddit", "post_contents", post["id"], **{column: 1}),
            [*to_post(post), click("button", f"{word} post"), stop()],
        )


def _ban(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """
        SELECT name, id FROM accounts WHERE id != ?1 AND id NOT IN (SELECT account FROM bans)
        AND id NOT IN (SELECT account FROM moderators) ORDER BY id
    """
    banned = """
        SELECT a.name, reason, (SELECT count(*) FROM bans) FROM bans JOIN accounts a ON a.id = account
        JOIN communities c ON c.id = community WHERE c.name = 'books' AND a.name = '{}'
    """
    before = asked(databases, "SELECT count(*) AS number FROM bans")[0]["number"]
    for member in islice(shuffled(databases, random, sql, me(databases)), 120):
        reason = random.choice(_REASONS)
        yield Case(
            {"member": member["name"], "reason": reason, "community": _PLACE},
            frozenset({member_entity(member["name"])}),
            rows("reddit", banned.format(member["name"]), [member["name"], reason, before + 1]),
            [
                *to_community(_PLACE),
                click("link", "Banned members"),
                fill("textbox", "Member", member["name"]),
                fill("textbox", "Reason", reason),
                click("button", "Ban member"),
                stop(),
            ],
        )


def _clear(databases: Databases, random: Random) -> Iterator[Case]:
    sql = """
        SELECT a.name, group_concat(p.id) AS numbers FROM posts p JOIN accounts a ON a.id = p.author
        JOIN communities c ON c.id = p.community WHERE c.name = ? AND a.id != ? GROUP BY a.id
        HAVING count(*) <= 3 ORDER BY 1
    """
    for row in shuffled(databases, random, sql, _PLACE, me(databases)):
        found = asked(databases, f"SELECT * FROM posts WHERE id IN ({row['numbers']}) ORDER BY id")
        remove = click("button", "Remove post")
        steps = [step for post in found for step in (*to_member(row["name"]), to_listed_post(post), remove)]
        yield Case(
            {"member": row["name"], "community": _PLACE},
            frozenset({member_entity(row["name"])}),
            rows("reddit", "SELECT id FROM posts WHERE removed ORDER BY id", *[[post["id"]] for post in found]),
            [*steps, stop()],
        )


TEMPLATES = (
    Template(
        "forum/moderate-post",
        SITES,
        "I moderate {{community}}. {{action}} the post “{{title}}” there.",
        _moderate,
    ),
    Template(
        "forum/ban-member",
        SITES,
        "Keep {{member}} out of {{community}}, which I moderate: ban them and give “{{reason}}” as the reason.",
        _ban,
    ),
    Template(
        "forum/clear-posts-of-member",
        SITES,
        "Remove everything {{member}} has posted in my community {{community}} (the posts, not the comments).",
        _clear,
        held_out=True,
    ),
)
