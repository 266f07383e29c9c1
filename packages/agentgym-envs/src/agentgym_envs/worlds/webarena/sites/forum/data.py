"""Fills the forum's database: members, communities, posts, comments, and the history of the agent's account."""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.directory import NOW, PLACES, Account
from agentgym_envs.worlds.webarena.sites.forum.private_messages import write_letters
from agentgym_envs.worlds.webarena.sites.forum.prose import Topic, Writer, topics
from agentgym_envs.worlds.webarena.sites.forum.threads import write_posts
from agentgym_envs.worlds.webarena.sites.names import BRANDS, FIRST_NAMES, LAST_NAMES, TOWNS

MEMBERS = 400
_NOUNS = (
    "badger kettle lantern otter heron teapot willow anchor pebble acorn magpie thimble biscuit compass sparrow "
    "harbour candle walnut turnip cobble mitten bramble ledger puffin marble pigeon whistle saddle beetle cricket"
).split()
_MODERATED = "books"
_SUBSCRIBED = (
    "books poetry movies history chess coffee cats trains languages vinyl gardening kingsferry askcommons "
    "showerthoughts fixit"
).split()


def fill(db: sqlite3.Connection, random: Random) -> None:
    """Write all rows, deterministically for a given generator state."""
    found, writer = topics(), Writer(random)
    _write_members(db, random, writer, found)
    _write_communities(db, random, writer, found)
    mine = db.execute("SELECT id FROM accounts WHERE name = ?", (_account().name,)).fetchone()[0]
    write_posts(db, random, writer, found, mine)
    _write_history(db, random, mine)
    write_letters(db, random, mine)


def _account() -> Account:
    account = PLACES["reddit"].account
    assert account is not None
    return account


def _write_members(db: sqlite3.Connection, random: Random, writer: Writer, found: list[Topic]) -> None:
    names = [_account().name]
    while len(names) < MEMBERS:
        name = _member_name(random)
        if name not in names:
            names.append(name)
    random.shuffle(names)
    for name in names:
        topic = random.choice(found)
        frame = random.choice(writer.words["bio"]).replace("{topic}", topic.title.lower())
        bio = writer.fill(frame, topic.words) + "." if random.random() < 0.85 else ""
        joined = NOW - timedelta(days=random.randrange(1_160, 2_600), minutes=random.randrange(1440))
        password = f"{random.choice(_NOUNS)}-{random.randrange(10, 99)}"
        if name == _account().name:
            bio, password = "Reads on trains. Runs the books community with more love than order.", _account().password
        db.execute(
            "INSERT INTO accounts (name, password, bio, joined) VALUES (?, ?, ?, ?)", (name, password, bio, f"{joined}")
        )


def _member_name(random: Random) -> str:
    first, last, noun = random.choice(FIRST_NAMES), random.choice(LAST_NAMES), random.choice(_NOUNS)
    town, brand = random.choice(TOWNS), random.choice(BRANDS)
    shapes = (
        f"{first}_{last}",
        f"{brand}_{noun}",
        f"{noun}_of_{town}",
        f"{first}{random.randrange(2, 99)}",
        f"{first}_from_{town}",
        f"the_{noun}_{last}",
        f"{last}_{noun}",
    )
    return random.choice(shapes).lower()


def _write_communities(db: sqlite3.Connection, random: Random, writer: Writer, found: list[Topic]) -> None:
    members = [row[0] for row in db.execute("SELECT id FROM accounts WHERE name != ?", (_account().name,))]
    mine = db.execute("SELECT id FROM accounts WHERE name = ?", (_account().name,)).fetchone()[0]
    sizes = random.sample(range(240, 9600), len(found))
    for number, (topic, size) in enumerate(zip(found, sizes, strict=True), start=1):
        created = NOW - timedelta(days=random.randrange(1200, 2600), minutes=random.randrange(1440))
        db.execute(
            "INSERT INTO communities VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, topic.name, topic.title, topic.about, _guide(topic, random), f"{created}", size),
        )
        moderators = random.sample(members, random.randrange(2, 5))
        if topic.name == _MODERATED:
            moderators[0] = mine
        rules = random.sample(writer.words["rule"], random.randrange(3, 7))
        texts = [rule.replace("{about}", topic.title.lower()) for rule in rules]
        db.executemany("INSERT INTO moderators VALUES (?, ?)", [(number, account) for account in moderators])
        db.executemany("INSERT INTO rules VALUES (?, ?, ?)", [(number, i, text) for i, text in enumerate(texts, 1)])
        db.executemany("INSERT INTO flairs VALUES (?, ?)", [(number, flair) for flair in topic.flairs])


def _guide(topic: Topic, random: Random) -> str:
    """Return the community's page for newcomers, in the forum's markup."""

    def some(kind: str, most: int) -> list[str]:
        words = topic.words[kind]
        return random.sample(list(words), min(most, len(words)))

    advice = "\n".join(f"- {text[0].upper()}{text[1:]}." for text in some("advice", 5))
    asked = "\n".join(f"- {text[0].upper()}{text[1:]}?" for text in some("ask", 4))
    welcome = f"Welcome to {topic.title}. {topic.about}"
    return "\n\n".join((welcome, "**Advice you will be given**", advice, "**Asked often**", asked))


def _write_history(db: sqlite3.Connection, random: Random, mine: int) -> None:
    """Write the subscriptions, votes, saved posts, notifications and blocks of the agent's account."""
    holes = ", ".join("?" * len(_SUBSCRIBED))
    db.execute(f"INSERT INTO subscriptions SELECT ?, id FROM communities WHERE name IN ({holes})", (mine, *_SUBSCRIBED))
    others = [row[0] for row in db.execute("SELECT id FROM posts WHERE author != ? ORDER BY id", (mine,))]
    for post in random.sample(others, 60):
        value = 1 if random.random() < 0.85 else -1
        db.execute("INSERT INTO post_votes VALUES (?, ?, ?)", (mine, post, value))
        db.execute(f"UPDATE posts SET {'ups = ups' if value == 1 else 'downs = downs'} + 1 WHERE id = ?", (post,))
    db.executemany("INSERT INTO saves VALUES (?, ?)", [(mine, post) for post in random.sample(others, 9)])
    db.execute(
        """
        INSERT INTO notifications SELECT ?, comments.id, comments.created < '2025-05-20' FROM comments
        JOIN posts ON posts.id = comments.post LEFT JOIN comments parents ON parents.id = comments.parent
        WHERE coalesce(parents.author, posts.author) = ? AND comments.author != ?
        """,
        (mine, mine, mine),
    )
    db.executemany("UPDATE posts SET pinned = 1 WHERE id = ?", [(post,) for post in random.sample(others, 15)])
    db.executemany("UPDATE posts SET locked = 1 WHERE id = ?", [(post,) for post in random.sample(others, 25)])
    community = db.execute("SELECT id FROM communities WHERE name = ?", (_MODERATED,)).fetchone()[0]
    strangers = random.sample([row[0] for row in db.execute("SELECT id FROM accounts WHERE id != ?", (mine,))], 4)
    db.executemany("INSERT INTO blocks VALUES (?, ?)", [(mine, account) for account in strangers[:2]])
    db.executemany(
        "INSERT INTO bans VALUES (?, ?, 'Selling stolen library books', '2025-02-03 18:20:00')",
        [(community, account) for account in strangers[2:]],
    )
