"""The visitor's own lists: projects, starred projects, issues, merge requests, to-do items."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import found, site
from agentgym_envs.worlds.webarena.sites.web import Visit

_SORTS = {"updated": "projects.updated DESC", "name": "projects.name", "stars": "projects.stars DESC"}
ISSUE = (
    "issues.*, projects.namespace, projects.path, projects.name AS project_name, accounts.name AS author_name,"
    " accounts.full_name AS author_full, (SELECT count(*) FROM comments WHERE issue = issues.id AND NOT system) AS said"
)
"""Columns of a row in a list of issues."""
MERGE = ISSUE.replace("issues.", "merges.").replace("issue =", "merge =")
"""Columns of a row in a list of merge requests."""


@site.get("/")
def start(visit: Visit) -> Response:
    """Show the visitor's projects, or redirect to `/explore` if they aren't signed in."""
    return visit.redirect("/explore") if visit.account is None else your_projects(visit)


@site.get("/dashboard/projects")
def your_projects(visit: Visit) -> Response:
    """List the projects that the visitor is a member of."""
    visit.signed_in()
    mine = (
        "(projects.namespace = :name OR projects.id IN (SELECT project FROM members WHERE account = :me) OR"
        " projects.namespace IN (SELECT path FROM groups JOIN group_members ON group_id = groups.id"
        " WHERE account = :me))"
    )
    return _projects(visit, mine, "yours")


@site.get("/dashboard/projects/starred")
def starred(visit: Visit) -> Response:
    """List the projects that the visitor has starred."""
    visit.signed_in()
    return _projects(visit, "projects.id IN (SELECT project FROM stars WHERE account = :me)", "starred")


def _projects(visit: Visit, condition: str, tab: str) -> Response:
    sort = visit.text("sort")
    order = _SORTS.get(sort, _SORTS["updated"])
    rest = f"projects WHERE {condition} AND name LIKE :search ORDER BY {order}, projects.id"
    rows, pager = found(visit, "projects.*", rest, 12, search=f"%{visit.text('search', 100)}%")
    return visit.render(
        "dashboard_projects.html", rows=rows, pager=pager, tab=tab, sort=sort, search=visit.text("search")
    )


@site.get("/dashboard/issues")
def your_issues(visit: Visit) -> Response:
    """List the issues that the visitor is assigned to or has opened."""
    visit.signed_in()
    role = "author" if visit.text("role") == "author" else "assignee"
    state = "closed" if visit.text("state") == "closed" else "opened"
    mine = (
        "author = :me" if role == "author" else "issues.id IN (SELECT issue FROM issue_assignees WHERE account = :me)"
    )
    rest = (
        "issues JOIN projects ON projects.id = project JOIN accounts ON accounts.id = author"
        f" WHERE {mine} AND state = :state ORDER BY issues.created DESC, issues.id DESC"
    )
    rows, pager = found(visit, ISSUE, rest, 15, state=state)
    return visit.render("dashboard_issues.html", rows=rows, pager=pager, role=role, state=state)


@site.get("/dashboard/merge_requests")
def your_merges(visit: Visit) -> Response:
    """List the merge requests that the visitor is assigned to, reviews or has opened."""
    visit.signed_in()
    role = visit.text("role") if visit.text("role") in ("assignee", "author") else "reviewer"
    rest = (
        "merges JOIN projects ON projects.id = project JOIN accounts ON accounts.id = author"
        f" WHERE {role} = :me AND state = 'opened' ORDER BY merges.created DESC, merges.id DESC"
    )
    rows, pager = found(visit, MERGE, rest, 15)
    return visit.render("dashboard_merges.html", rows=rows, pager=pager, role=role)


@site.get("/dashboard/todos")
def todos(visit: Visit) -> Response:
    """List the visitor's to-do items."""
    visit.signed_in()
    done = int(visit.text("state") == "done")
    rest = (
        "todos LEFT JOIN issues ON issues.id = todos.issue LEFT JOIN merges ON merges.id = todos.merge"
        " JOIN projects ON projects.id = coalesce(issues.project, merges.project)"
        " JOIN accounts ON accounts.id = todos.author"
        " WHERE todos.account = :me AND done = :done ORDER BY todos.created DESC, todos.id"
    )
    columns = (
        "todos.*, coalesce(issues.title, merges.title) AS title, coalesce(issues.iid, merges.iid) AS iid,"
        " projects.namespace, projects.path, projects.name AS project_name, accounts.full_name, accounts.name AS user"
    )
    rows, pager = found(visit, columns, rest, 15, done=done)
    return visit.render("todos.html", rows=rows, pager=pager, done=done)


@site.post("/dashboard/todos/done")
def all_done(visit: Visit) -> Response:
    """Mark all to-do items as done."""
    visit.run("UPDATE todos SET done = 1 WHERE account = ?", visit.signed_in()["id"])
    return visit.redirect("/dashboard/todos", "Everything is marked as done.")


@site.post("/dashboard/todos/{todo:int}")
def toggle_todo(visit: Visit, todo: int) -> Response:
    """Mark a to-do item as done, or restore it."""
    visit.run("UPDATE todos SET done = 1 - done WHERE id = ? AND account = ?", todo, visit.signed_in()["id"])
    return visit.redirect("/dashboard/todos", "The to-do item was moved.")
