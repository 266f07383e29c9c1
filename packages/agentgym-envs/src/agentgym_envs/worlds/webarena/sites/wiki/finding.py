"""Search for articles by title and content."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

from agentgym_envs.worlds.webarena.sites.wiki.markup import plain, snippet

_WORD = re.compile(r"[\w'&]+")
_COMMON = frozenset("a an and at by for in is of on or the to was which who".split())  # noqa: SIM905 - reads better
_TITLE_COUNTS = 20


@dataclass(frozen=True, slots=True)
class Found:
    """A matching article."""

    title: str
    kind: str
    snippet: str


def article_id(db: sqlite3.Connection, title: str) -> int | None:
    """Return the id of the article that a title leads to, ignoring case."""
    for sql in (
        "SELECT id FROM articles WHERE title = ?",
        "SELECT article FROM redirects WHERE title = ?",
        "SELECT id FROM articles WHERE title = ? COLLATE NOCASE ORDER BY id",
        "SELECT article FROM redirects WHERE title = ? COLLATE NOCASE ORDER BY article",
    ):
        row = db.execute(sql, (title,)).fetchone()
        if row is not None:
            return row[0]
    return None


def find(db: sqlite3.Connection, text: str) -> list[Found]:
    """Return the articles that contain all words, ranked by their number of occurrences and above all by the title."""
    typed = [word.lower() for word in _WORD.findall(text)][:12]
    words = [word for word in typed if word not in _COMMON] or typed
    if not words:
        return []
    condition = " AND ".join("(title || ' ' || body || ' ' || infobox) LIKE ? ESCAPE '!'" for _ in words)
    patterns = ["%" + re.sub(r"([!%_])", r"!\1", word) + "%" for word in words]
    scored: list[tuple[int, str, Found]] = []
    for row in db.execute(f"SELECT title, kind, body FROM articles WHERE {condition}", patterns):
        title, shown = row["title"].lower(), plain(row["body"])
        small = shown.lower()
        score = sum(_TITLE_COUNTS * (word in title) + min(small.count(word), 8) for word in words)
        scored.append(
            (
                -score - 50 * (title == text.lower()),
                row["title"],
                Found(row["title"], row["kind"], snippet(shown, words)),
            )
        )
    return [found for _, _, found in sorted(scored, key=lambda one: one[:2])]
