"""Search pages: all projects, all groups, public snippets, and search over everything."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import SEEN, found, pattern, site, who
from agentgym_envs.worlds.webarena.sites.code.dashboard import ISSUE, MERGE
from agentgym_envs.worlds.webarena.sites.web import Visit

_SORTS = {
    "stars": "projects.stars DESC",
    "updated": "projects.updated DESC",
    "name": "projects.name COLLATE NOCASE",
    "created": "projects.created DESC",
}
_OWNED = " JOIN projects ON projects.id = project JOIN accounts ON accounts.id = author"
_SCOPES: dict[str, tuple[str, str]] = {
    "projects": (
        "projects.*",
        f"projects WHERE {SEEN} AND (name LIKE :text OR description LIKE :text) ORDER BY stars DESC",
    ),
    "issues": (
        ISSUE,
        f"issues{_OWNED} WHERE {SEEN} AND (issues.title LIKE :text OR issues.body LIKE :text)"
        " ORDER BY issues.title LIKE :text DESC, issues.created DESC",
    ),
    "merge_requests": (
        MERGE,
        f"merges{_OWNED} WHERE {SEEN} AND merges.title LIKE :text ORDER BY merges.created DESC",
    ),
    "milestones": (
        "milestones.*, projects.namespace, projects.path, projects.name",
        f"milestones JOIN projects ON projects.id = project WHERE {SEEN} AND title LIKE :text ORDER BY due DESC",
    ),
    "commits": (
        "commits.*, projects.namespace, projects.path, projects.name AS project_name, accounts.full_name",
        f"commits{_OWNED} WHERE {SEEN} AND (message LIKE :text OR sha LIKE :start) ORDER BY commits.created DESC",
    ),
    "users": (
        "accounts.*",
        "accounts WHERE full_name LIKE :text OR accounts.name LIKE :text OR email = :exact ORDER BY full_name",
    ),
}


@site.get("/explore")
def explore(visit: Visit) -> Response:
    """List the visible projects, filtered by words, topic and language."""
    sort, topic, language = visit.text("sort", 20) or "stars", visit.text("topic", 60), visit.text("language", 60)
    search = visit.text("search", 100)
    rest = (
        f"projects WHERE {SEEN} AND (name LIKE :text OR description LIKE :text OR path LIKE :text)"
        " AND (:topic = '' OR EXISTS (SELECT 1 FROM topics WHERE project = projects.id AND topic = :topic))"
        f" AND (:language = '' OR language = :language) ORDER BY {_SORTS.get(sort, _SORTS['stars'])}, projects.id"
    )
    rows, pager = found(visit, "projects.*", rest, 12, text=pattern(search), topic=topic, language=language)
    return visit.render(
        "explore.html",
        rows=rows,
        pager=pager,
        topics=[row[0] for row in visit.all("SELECT DISTINCT topic FROM topics ORDER BY topic")],
        languages=[
            row[0] for row in visit.all("SELECT DISTINCT language FROM projects WHERE language <> '' ORDER BY 1")
        ],
        chosen={"sort": sort, "topic": topic, "language": language, "search": search},
        topics_of=topics_of(visit, rows),
    )


def topics_of(visit: Visit, rows: list[sqlite3.Row]) -> dict[int, list[str]]:
    """Return the topics of each of these projects."""
    query = "SELECT topic FROM topics WHERE project = ? ORDER BY topic"
    return {row["id"]: [topic for (topic,) in visit.all(query, row["id"])] for row in rows}


@site.get("/explore/groups")
def explore_groups(visit: Visit) -> Response:
    """List all groups, or the visitor's own."""
    mine = visit.text("mine") == "1"
    condition = "id IN (SELECT group_id FROM group_members WHERE account = :me)" if mine else ":me >= 0"
    rest = f"groups WHERE {condition} AND name LIKE :text ORDER BY name"
    columns = "groups.*, (SELECT count(*) FROM projects WHERE namespace = groups.path) AS projects"
    rows, pager = found(visit, columns, rest, 20, text=pattern(visit.text("search", 100)))
    return visit.render("groups.html", rows=rows, pager=pager, mine=mine, search=visit.text("search", 100))


@site.get("/explore/snippets")
def snippets(visit: Visit) -> Response:
    """List public snippets and the visitor's own."""
    rest = (
        "snippets JOIN accounts ON accounts.id = account WHERE (visibility = 'public' OR account = :me)"
        " ORDER BY snippets.created DESC"
    )
    rows, pager = found(visit, "snippets.*, accounts.name, accounts.full_name", rest, 15)
    return visit.render("snippets.html", rows=rows, pager=pager)


@site.get("/search")
def search(visit: Visit) -> Response:
    """Search everything, or the issues and merge requests of a project."""
    scope = visit.text("scope") if visit.text("scope") in _SCOPES else "projects"
    text = visit.text("search", 100)
    columns, rest = _SCOPES[scope]
    values = {"text": pattern(text), "start": f"{text}%", "exact": text}
    rows, pager = found(visit, columns, rest, 15, **values)
    counts = {name: _count(visit, query, values) for name, (_, query) in _SCOPES.items()}
    shown = topics_of(visit, rows) if scope == "projects" else {}
    return visit.render("search.html", rows=rows, pager=pager, scope=scope, text=text, counts=counts, topics_of=shown)


def _count(visit: Visit, query: str, values: dict[str, str]) -> int:
    body = query.rpartition(" ORDER BY ")[0]
    return visit.db.execute(f"SELECT count(*) FROM {body}", values | who(visit)).fetchone()[0]


@site.get("/-/snippets/{snippet:int}")
def snippet(visit: Visit, snippet: int) -> Response:
    """Show a snippet."""
    row = visit.one(
        "SELECT snippets.*, accounts.name, accounts.full_name, text FROM snippets"
        " JOIN accounts ON accounts.id = account"
        " JOIN contents ON contents.id = content WHERE snippets.id = ? AND (visibility = 'public' OR account = ?)",
        snippet,
        who(visit)["me"],
        what="snippet",
    )
    return visit.render("snippet.html", snippet=row)
