"""The encyclopedia's pages. `wiki.js` sorts tables by a click on their head; all else works without JavaScript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.region import NAME
from agentgym_envs.worlds.webarena.sites.web import NotFound, Site, Visit, pages
from agentgym_envs.worlds.webarena.sites.wiki.finding import article_id, find
from agentgym_envs.worlds.webarena.sites.wiki.markup import blocks, pieces, plain

site = Site("wikipedia", Path(__file__).parent)
_ON_A_PAGE = 12
_IN_A_LIST = 60
_FEATURED = ("town", "person", "firm", "building")


def address(title: str) -> str:
    """Return the URL of an article; spaces become underscores."""
    return "/wiki/" + quote(title.replace(" ", "_"), safe="(),:'")


site.templates.filters.update(address=address)


@site.get("/")
def front(visit: Visit) -> Response:
    """Show the front page: sample articles of several kinds, the counts, and links to the lists."""
    counts = visit.all("SELECT kind, count(*) AS articles FROM articles GROUP BY kind ORDER BY kind")
    featured: list[dict[str, Any]] = []
    for kind in _FEATURED:
        row = visit.one(
            "SELECT a.title, a.body FROM articles AS a JOIN links ON links.target = a.id WHERE a.kind = ?"
            " GROUP BY a.id ORDER BY count(*) DESC, a.id LIMIT 1",
            kind,
        )
        featured.append({"title": row["title"], "kind": kind, "text": plain(row["body"].split("\n\n")[0])})
    lists = visit.all("SELECT title FROM articles WHERE kind = 'list' AND title LIKE '% by %' ORDER BY title")
    return visit.render("front.html", counts=counts, featured=featured, lists=lists, region_name=NAME)


@site.get("/wiki/{title:path}")
def article(visit: Visit, title: str) -> Response:
    """Show an article."""
    wanted = title.replace("_", " ")
    row = _article(visit, wanted)
    visit.canonical(_path("wiki", row["title"]))
    shown, references = blocks(row["body"])
    categories = visit.all("SELECT name FROM categories WHERE article = ? ORDER BY name", row["id"])
    contents = [block["text"] for block in shown if block["kind"] == "heading"]
    meanings = f"{row['title']} (disambiguation)"
    return visit.render(
        "article.html",
        article=row,
        blocks=shown,
        references=references,
        infobox=[(label, pieces(value)) for label, value in json.loads(row["infobox"])],
        categories=categories,
        contents=contents,
        came_from=wanted if wanted != row["title"] else "",
        meanings=meanings if visit.value("SELECT id FROM articles WHERE title = ?", meanings) else "",
    )


@site.get("/search")
def search(visit: Visit) -> Response:
    """Redirect a title to its article; otherwise list the articles that contain the words."""
    query = visit.text("query", 200)
    known = article_id(visit.db, query)
    if known is not None and not visit.text("fulltext"):
        title = visit.value("SELECT title FROM articles WHERE id = ?", known)
        return visit.redirect(address(title))
    found = find(visit.db, query)
    shown = pages(len(found), _ON_A_PAGE, visit.number("page"))
    rows = found[shown["offset"] : shown["offset"] + shown["size"]]
    return visit.render("search.html", query=query, rows=rows, pages=shown)


def _path(kind: str, title: str) -> str:
    """Return the path of a page whose address ends with a title."""
    return f"/{kind}/{title.replace(' ', '_')}"


@site.get("/links/{title:path}")
def links(visit: Visit, title: str) -> Response:
    """List the articles that link to one."""
    row = _article(visit, title.replace("_", " "))
    visit.canonical(_path("links", row["title"]))
    sql = "FROM links JOIN articles ON articles.id = links.source WHERE links.target = ?"
    total = visit.value(f"SELECT count(*) {sql}", row["id"])
    shown = pages(total, _IN_A_LIST, visit.number("page"))
    rows = visit.all(f"SELECT title {sql} ORDER BY title LIMIT ? OFFSET ?", row["id"], shown["size"], shown["offset"])
    return visit.render("links.html", article=row, rows=rows, pages=shown)


@site.get("/categories")
def categories(visit: Visit) -> Response:
    """List all categories."""
    sql = "FROM (SELECT name, count(*) AS articles FROM categories GROUP BY name)"
    shown = pages(visit.value(f"SELECT count(*) {sql}"), _IN_A_LIST, visit.number("page"))
    rows = visit.all(f"SELECT * {sql} ORDER BY name LIMIT ? OFFSET ?", shown["size"], shown["offset"])
    return visit.render("categories.html", rows=rows, pages=shown)


@site.get("/category/{name:path}")
def category(visit: Visit, name: str) -> Response:
    """List the articles of a category."""
    wanted = name.replace("_", " ")
    sql = "FROM categories JOIN articles ON articles.id = categories.article WHERE categories.name = ?"
    total = visit.value(f"SELECT count(*) {sql}", wanted)
    if not total:
        raise NotFound("category")
    visit.canonical(_path("category", wanted))
    shown = pages(total, _IN_A_LIST, visit.number("page"))
    rows = visit.all(f"SELECT title {sql} ORDER BY title LIMIT ? OFFSET ?", wanted, shown["size"], shown["offset"])
    return visit.render("category.html", name=wanted, rows=rows, pages=shown)


@site.get("/all")
def every(visit: Visit) -> Response:
    """List the articles whose title starts with a letter."""
    letter = visit.text("letter", 1).upper() or "A"
    total = visit.value("SELECT count(*) FROM articles WHERE upper(substr(title, 1, 1)) = ?", letter)
    shown = pages(total, _IN_A_LIST, visit.number("page"))
    rows = visit.all(
        "SELECT title FROM articles WHERE upper(substr(title, 1, 1)) = ? ORDER BY title LIMIT ? OFFSET ?",
        letter,
        shown["size"],
        shown["offset"],
    )
    letters = [row[0] for row in visit.all("SELECT DISTINCT upper(substr(title, 1, 1)) FROM articles ORDER BY 1")]
    return visit.render("all.html", letter=letter, letters=letters, rows=rows, pages=shown)


def _article(visit: Visit, title: str) -> Any:
    found = article_id(visit.db, title)
    if found is None:
        raise NotFound("article")
    return visit.one("SELECT * FROM articles WHERE id = ?", found, what="article")
