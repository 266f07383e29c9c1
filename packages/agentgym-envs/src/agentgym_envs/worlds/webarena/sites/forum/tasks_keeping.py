"""Tasks that change the visitor's own data: votes, saved posts, subscriptions, profile, posts and comments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import edited
from agentgym_envs.worlds.webarena.sites.forum.task_parts import (
    SITES,
    asked,
    best,
    communities,
    community_entity,
    listed,
    me,
    member_entity,
    post_entity,
    posts,
    shuffled,
    sorted_by,
    to_community,
    to_member,
    to_post,
)
from agentgym_envs.worlds.webarena.sites.names import TOWNS
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Template, click, fill, rows, split_of, stop


def _votes(mine: int, wanted: str) -> str:
    """Return SQL for the votes on some posts, each with the account's total number of votes."""
    return f"""
        SELECT post, value, (SELECT count(*) FROM post_votes WHERE account = {mine}) FROM post_votes
        WHERE account = {mine} AND post IN ({wanted}) ORDER BY post
    """


def _count(databases: Databases, table: str) -> int:
    return asked(databases, f"SELECT count(*) AS number FROM {table} WHERE account = ?", me(databases))[0]["number"]


def _vote(databases: Databases, random: Random) -> Iterator[Case]:
    mine, before = me(databases), _count(databases, "post_votes")
    unvoted = "p.author != ?1 AND p.id NOT IN (SELECT post FROM post_votes WHERE account = ?1)"
    for post in islice(posts(databases, random, unvoted, mine), 120):
        word, value = random.choice((("Upvote", 1), ("Downvote", -1)))
        yield Case(
            {"word": word, "title": post["title"], "community": post["place_name"]},
            frozenset({post_entity(post["id"])}),
            rows("reddit", _votes(mine, str(post["id"])), [post["id"], value, before + 1]),
            [
                fill("searchbox", "Search Commons", post["title"], enter=True),
                click("button", f"{word} {post['title']}"),
                stop(),
            ],
        )


def _vote_all(databases: Databases, random: Random) -> Iterator[Case]:
    mine, before = me(databases), _count(databases, "post_votes")
    sql = """
        SELECT a.name AS member, c.name AS place, group_concat(p.id) AS numbers FROM posts p
        JOIN accounts a ON a.id = p.author JOIN communities c ON c.id = p.community WHERE a.id != ?1
        GROUP BY a.id, c.id HAVING count(*) BETWEEN 2 AND 4
        AND sum(p.id IN (SELECT post FROM post_votes WHERE account = ?1)) = 0
        AND (SELECT count(*) FROM posts WHERE author = a.id) <= 15 ORDER BY 1, 2
    """
    for row in islice(shuffled(databases, random, sql, mine), 120):
        found = asked(databases, f"SELECT id, title FROM posts WHERE id IN ({row['numbers']}) ORDER BY id")
        expected = [[post["id"], 1, before + len(found)] for post in found]
        yield Case(
            {"member": row["member"], "community": row["place"]},
            frozenset({member_entity(row["member"])}),
            rows("reddit", _votes(mine, row["numbers"]), *expected),
            [*to_member(row["member"]), *[click("button", f"Upvote {post['title']}") for post in found], stop()],
        )


def _save(databases: Databases, random: Random) -> Iterator[Case]:
    mine, before = me(databases), _count(databases, "saves")
    pairs = [(place, number) for place in communities(databases, random) for number in (2, 3)]
    for place, number in pairs:
        found = best(databases, place["id"], "new", "all", number + 1)
        ids = ", ".join(str(post["id"]) for post in found[:number])
        taken = asked(databases, f"SELECT 1 FROM saves WHERE account = {mine} AND post IN ({ids})")
        if taken or found[number - 1]["created"] == found[number]["created"]:
            continue
        saved = f"""
            SELECT post, (SELECT count(*) FROM saves WHERE account = {mine}) FROM saves
            WHERE account = {mine} AND post IN ({ids}) ORDER BY post
        """
        expected = sorted([post["id"], before + number] for post in found[:number])
        yield Case(
            {"number": {2: "two", 3: "three"}[number], "community": place["name"]},
            frozenset({community_entity(place["name"])}),
            rows("reddit", saved, *expected),
            [
                *to_community(place["name"]),
                *sorted_by("new"),
                *[click("button", f"Save {post['title']}") for post in found[:number]],
                stop(),
            ],
        )


def _subscribe(databases: Databases, random: Random) -> Iterator[Case]:
    mine, before = me(databases), _count(databases, "subscriptions")
    free = "SELECT name FROM communities WHERE id NOT IN (SELECT community FROM subscriptions) ORDER BY id"
    by_split: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for place in shuffled(databases, random, free):
        by_split[split_of(community_entity(place["name"]))].append(place["name"])
    for _ in range(30):
        for names in by_split.values():
            if len(names) < 2:
                continue
            chosen = sorted(random.sample(names, min(len(names), random.choice((2, 3)))))
            subscribed = f"""
                SELECT name, (SELECT count(*) FROM subscriptions WHERE account = {mine}) FROM subscriptions
                JOIN communities ON id = community WHERE account = {mine}
                AND name IN ({", ".join(f"'{name}'" for name in chosen)}) ORDER BY name
            """
            steps = [step for name in chosen for step in (*to_community(name), click("button", f"Subscribe to {name}"))]
            yield Case(
                {"communities": listed(chosen)},
                frozenset(map(community_entity, chosen)),
                rows("reddit", subscribed, *[[name, before + len(chosen)] for name in chosen]),
                [*steps, stop()],
            )


def _biography(databases: Databases, random: Random) -> Iterator[Case]:
    for town in random.sample(TOWNS, len(TOWNS)):
        trade = random.choice(("Bookbinder", "Piano tuner", "Night porter", "Beekeeper", "Surveyor", "Archivist"))
        bio = (
            f"{trade} from {town}, {random.choice(('reading slowly', 'mostly offline', 'always on the early train'))}."
        )
        yield Case(
            {"bio": bio},
            frozenset({f"town:{town}"}),
            rows("reddit", f"SELECT bio FROM accounts WHERE id = {me(databases)}", [bio]),
            [
                click("link", "Settings"),
                fill("textbox", "Biography", bio),
                click("button", "Save profile"),
                stop(),
            ],
        )


def _retitle(databases: Databases, random: Random) -> Iterator[Case]:
    mine = me(databases)
    for post in posts(databases, random, "p.author = ?", mine):
        title = random.choice(("Solved: {}", "Once more: {}", "{} (closed)")).format(post["title"])
        yield Case(
            {"old": post["title"], "new": title},
            frozenset({post_entity(post["id"])}),
            edited(databases["forum"], "reddit", "post_contents", post["id"], title=title),
            [
                *to_post(post),
                click("link", "Edit post"),
                fill("textbox", "Title", title),
                click("button", "Save changes"),
                stop(),
            ],
        )


def _withdraw(databases: Databases, random: Random) -> Iterator[Case]:
    mine = me(databases)
    once = "p.comments < 20 AND (SELECT count(*) FROM comments WHERE post = p.id AND author = ?) = 1"
    for post in posts(databases, random, once, mine):
        sql = "SELECT id FROM comments WHERE post = ? AND author = ?"
        comment = asked(databases, sql, post["id"], mine)[0]["id"]
        deleted = f"SELECT id FROM comments WHERE author = {mine} AND deleted"
        yield Case(
            {"title": post["title"]},
            frozenset({post_entity(post["id"])}),
            rows("reddit", deleted, [comment]),
            [*to_post(post), click("button", f"Delete comment #{comment}"), stop()],
        )


def _block(databases: Databases, random: Random) -> Iterator[Case]:
    mine, before = me(databases), _count(databases, "blocks")
    for post in islice(
        posts(databases, random, "p.author NOT IN (SELECT blocked FROM blocks) AND p.author != ?", mine), 120
    ):
        blocked = f"""
            SELECT blocked, (SELECT count(*) FROM blocks WHERE account = {mine}) FROM blocks
            WHERE account = {mine} AND blocked = {post["author"]}
        """
        name = post["author_name"]
        yield Case(
            {"title": post["title"]},
            frozenset({post_entity(post["id"])}),
            rows("reddit", blocked, [post["author"], before + 1]),
            [*to_post(post), click("link", name), click("button", f"Block {name}"), stop()],
        )


TEMPLATES = (
    Template("forum/vote", SITES, "{{word}} the post “{{title}}” in {{community}}.", _vote),
    Template(
        "forum/upvote-all-of-member",
        SITES,
        "Give every post that {{member}} has written in {{community}} an upvote.",
        _vote_all,
    ),
    Template("forum/save-newest", SITES, "Save the {{number}} newest posts of the {{community}} community.", _save),
    Template("forum/subscribe", SITES, "I want to follow {{communities}}. Subscribe me to them.", _subscribe),
    Template("forum/biography", SITES, "Replace my biography by “{{bio}}”", _biography),
    Template("forum/retitle-own-post", SITES, "Change the title of my post “{{old}}” to “{{new}}”", _retitle),
    Template(
        "forum/withdraw-comment",
        SITES,
        "I regret what I said about “{{title}}”. Delete my comment there.",
        _withdraw,
        held_out=True,
    ),
    Template("forum/block-author", SITES, "Whoever wrote “{{title}}” annoys me. Block them.", _block),
)
