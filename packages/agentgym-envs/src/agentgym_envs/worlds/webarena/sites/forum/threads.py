"""Generates posts and their comment trees with realistic votes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW
from agentgym_envs.worlds.webarena.sites.forum.prose import Topic, Writer
from agentgym_envs.worlds.webarena.sites.names import TOWNS

POSTS = 3_500
COMMENTS = 13_000
_MINE = 50
_MY_COMMENTS = 100
_DEEPEST = 6
_KINDS = {"ask": 24, "help": 21, "win": 12, "view": 12, "story": 13, "link": 10, "picture": 8}
_OTHER_KINDS = {
    "showerthoughts": {"musing": 80, "view": 12, "ask": 8},
    "mildlypleasing": {"picture": 60, "win": 15, "story": 15, "view": 10},
    "cats": _KINDS | {"picture": 40},
    "dogs": _KINDS | {"picture": 35},
    "photography": _KINDS | {"picture": 35},
}
_SCENES = ("hills", "sea", "town", "garden", "table", "night sky")
_MOMENTS = ("early morning", "noon", "evening", "dusk")
_PAPERS = ("gazette", "courier", "mercury", "observer", "post")


@dataclass(frozen=True, slots=True)
class _Post:
    topic: Topic
    kind: str
    thing: str
    created: datetime


def write_posts(db: sqlite3.Connection, random: Random, writer: Writer, found: Sequence[Topic], mine: int) -> None:
    """Write posts, then comments, both in chronological order; some of each are by `mine`."""
    numbers = {topic.name: number for number, topic in enumerate(found, start=1)}
    liked = [topic for topic in found if topic.name in ("books", "poetry", "trains", "chess", "coffee", "history")]
    sizes = [random.uniform(0.5, 2.0) * (0.7 if topic.name == "showerthoughts" else 1) for topic in found]
    chosen = random.choices(found, sizes, k=POSTS - _MINE) + [random.choice(liked) for _ in range(_MINE)]
    authors = _authors(random, mine)
    drafts = [_draft(random, topic) for topic in chosen]
    owners = [random.choice(authors) for _ in drafts[:-_MINE]] + [mine] * _MINE
    posts: dict[int, _Post] = {}
    for draft, author in sorted(zip(drafts, owners, strict=True), key=lambda pair: pair[0].created):
        title = writer.title(draft.kind, draft.topic, draft.thing)
        if title is not None:
            posts[_insert_post(db, random, writer, draft, title, author, numbers[draft.topic.name])] = draft
    _write_comments(db, random, writer, posts, authors, mine)


def _authors(random: Random, mine: int) -> list[int]:
    """Return a sample of the other members, weighted by their activity."""
    members = [number for number in range(1, 401) if number != mine]
    return random.choices(members, [min(random.paretovariate(1.2), 12) for _ in members], k=6_000)


def _draft(random: Random, topic: Topic) -> _Post:
    kinds = _OTHER_KINDS.get(topic.name, _KINDS)
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    age = timedelta(minutes=30 + int(1_150 * 1_440 * random.random() ** 1.6))
    return _Post(topic, kind, random.choice(topic.words["thing"]), NOW - age)


def _insert_post(
    db: sqlite3.Connection, random: Random, writer: Writer, post: _Post, title: str, author: int, community: int
) -> int:
    url = scene = None
    body = ""
    if post.kind == "link":
        slug = "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split()[:7])
        url = f"https://{random.choice(TOWNS).lower()}-{random.choice(_PAPERS)}.example/{post.created:%Y/%m}/{slug}"
    elif post.kind == "picture":
        scene = f"{random.choice(_SCENES)}, {random.choice(_MOMENTS)}"
    elif post.kind != "musing":
        body = writer.write(f"body {post.kind}", post.topic, post.thing)
    ripe = min(1.0, (NOW - post.created) / timedelta(days=2))
    likes = int(min(random.paretovariate(0.95), 45) * random.uniform(1, 7) * ripe)
    share = random.uniform(0.5, 1.6) if random.random() < 0.06 else random.betavariate(1, 9)
    flair = random.choice(post.topic.flairs) if random.random() < 0.6 else ""
    values = (community, author, title, body, url, scene, flair, f"{post.created:%Y-%m-%d %H:%M:00}", 1 + likes)
    inserted = db.execute(
        """
        INSERT INTO posts (community, author, title, body, url, scene, flair, created, ups, downs)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (*values, int(likes * share)),
    )
    return inserted.lastrowid or 0


def _write_comments(
    db: sqlite3.Connection, random: Random, writer: Writer, posts: dict[int, _Post], authors: list[int], mine: int
) -> None:
    weights = [min(random.paretovariate(1.1), 45) for _ in posts]
    places = random.choices(list(posts), weights, k=COMMENTS)
    owners = [mine if i < _MY_COMMENTS else random.choice(authors) for i in range(COMMENTS)]
    drafts: list[tuple[datetime, int, int]] = []
    for post, author in zip(places, owners, strict=True):
        latest = (NOW - posts[post].created).total_seconds() / 60 - 5
        delay = min(random.expovariate(1 / 900), latest * random.random())
        drafts.append((posts[post].created + timedelta(minutes=1 + int(delay)), post, author))
    depths: dict[int, list[tuple[int, int]]] = {post: [] for post in posts}
    rows = [
        _comment(random, writer, i, draft, posts[draft[1]], depths[draft[1]])
        for i, draft in enumerate(sorted(drafts), 1)
    ]
    db.executemany(
        "INSERT INTO comments (id, post, parent, author, body, created, ups, downs) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    db.execute("UPDATE posts SET comments = (SELECT count(*) FROM comments WHERE post = posts.id)")
    db.execute("UPDATE posts SET picture = id WHERE scene IS NOT NULL")


def _comment(
    random: Random,
    writer: Writer,
    number: int,
    draft: tuple[datetime, int, int],
    post: _Post,
    depths: list[tuple[int, int]],
) -> tuple[int, int, int | None, int, str, str, int, int]:
    """Return the row of one comment and append its (id, depth) to `depths`, the list of the post's earlier comments."""
    created, place, author = draft
    open_ends = [end for end in depths if end[1] < _DEEPEST]
    parent, depth = random.choice(open_ends) if open_ends and random.random() < 0.55 else (None, 0)
    depths.append((number, depth + 1))
    thing = post.thing if random.random() < 0.8 else None
    kinds = ["reply" if parent and random.random() < 0.7 else "comment"]
    kinds += ["comment"] * (random.random() < 0.4) + ["comment"] * (random.random() < 0.12)
    body = " ".join(writer.write(kind, post.topic, thing) for kind in kinds)
    ups = 1 + int(random.expovariate(1 / 4) * random.uniform(0.2, 3))
    downs = int(ups * random.uniform(1, 3)) if random.random() < 0.08 else int(ups * random.betavariate(1, 9))
    return number, place, parent, author, body, f"{created:%Y-%m-%d %H:%M:00}", ups, downs
