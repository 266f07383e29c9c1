"""Fills the encyclopedia's database: articles, redirects, links, categories."""

from __future__ import annotations

import json
import sqlite3
from random import Random

from agentgym_envs.worlds.webarena.sites.region import region
from agentgym_envs.worlds.webarena.sites.wiki import landmarks, lists, people, places
from agentgym_envs.worlds.webarena.sites.wiki.article import Article
from agentgym_envs.worlds.webarena.sites.wiki.markup import targets


def fill(db: sqlite3.Connection, random: Random) -> None:
    """Write all articles.

    Raises:
        ValueError: If an article links to one that doesn't exist.
    """
    land = region()
    articles = [
        *places.articles(land, random),
        *landmarks.articles(land, random),
        *people.articles(land, random),
        *lists.articles(land),
    ]
    articles.sort(key=lambda article: article.title)
    known = {article.title: number for number, article in enumerate(articles, start=1)}
    redirects = _redirects(articles, known)
    db.executemany(
        "INSERT INTO articles (id, title, kind, infobox, body) VALUES (?, ?, ?, ?, ?)",
        [
            (known[one.title], one.title, one.kind, json.dumps(one.infobox, ensure_ascii=False), one.body)
            for one in articles
        ],
    )
    db.executemany("INSERT INTO redirects VALUES (?, ?)", sorted(redirects.items()))
    for article in articles:
        _write_links(db, article, known | redirects)
        rows = [(category, known[article.title]) for category in dict.fromkeys(article.categories)]
        db.executemany("INSERT INTO categories VALUES (?, ?)", rows)


def _redirects(articles: list[Article], known: dict[str, int]) -> dict[str, int]:
    """Return the article id by redirect title, without titles of articles; of several claims the last one wins."""
    found: dict[str, int] = {}
    for article in articles:
        brand = [value for label, value in article.infobox if label == "Brand"]
        for title in (*article.redirects, *brand):
            if title not in known:
                found[title] = known[article.title]
    return found


def _write_links(db: sqlite3.Connection, article: Article, ids: dict[str, int]) -> None:
    wanted = targets([value for _, value in article.infobox] + [article.body])
    missing = [title for title in wanted if title not in ids]
    if missing:
        raise ValueError(f"{article.title!r} links to {missing}, which no article is called; mend its text.")
    source = ids[article.title]
    rows = [(source, target) for target in dict.fromkeys(ids[title] for title in wanted) if target != source]
    db.executemany("INSERT INTO links VALUES (?, ?)", rows)
