"""A project's issues: the filterable list, and one issue with its discussion."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import REPORTER, RIGHT_NOW, Here, found, here_at, pattern, site, who
from agentgym_envs.worlds.webarena.sites.code.dashboard import ISSUE
from agentgym_envs.worlds.webarena.sites.code.writing import comment, comments_on, delete_comment, note
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

SORTS = {
    "created": "issues.created DESC",
    "oldest": "issues.created",
    "updated": "issues.updated DESC",
    "due": "issues.due IS NULL, issues.due",
    "weight": "issues.weight IS NULL, issues.weight DESC",
    "title": "issues.title",
}
_FILTERS = (
    "(:state = 'all' OR issues.state = :state)"
    " AND (:search = '' OR issues.title LIKE :text OR issues.body LIKE :text)"
    " AND (:label = '' OR EXISTS (SELECT 1 FROM issue_labels JOIN labels ON labels.id = label"
    " WHERE issue = issues.id AND labels.name = :label))"
    " AND (:author = '' OR accounts.name = :author)"
    " AND (:assignee = '' OR (:assignee = 'none' AND NOT EXISTS"
    " (SELECT 1 FROM issue_assignees WHERE issue = issues.id))"
    " OR EXISTS (SELECT 1 FROM issue_assignees JOIN accounts AS helper ON helper.id = account"
    " WHERE issue = issues.id AND helper.name = :assignee))"
    " AND (:milestone = '' OR milestone IN (SELECT id FROM milestones WHERE project = :project AND title = :milestone))"
)
_BASE = "/{namespace}/{project}/-/issues"


@site.get(_BASE)
def issues(visit: Visit, namespace: str, project: str) -> Response:
    """List the issues."""
    here = here_at(visit, namespace, project)
    chosen = {key: visit.text(key, 200) for key in ("search", "label", "assignee", "author", "milestone")}
    chosen["state"] = visit.text("state") if visit.text("state") in ("closed", "all") else "opened"
    sort = visit.text("sort")
    rest = (
        "issues JOIN projects ON projects.id = project JOIN accounts ON accounts.id = author"
        f" WHERE project = :project AND {_FILTERS} AND {_confidential(here)}"
        f" ORDER BY {SORTS.get(sort, SORTS['created'])}, issues.id DESC"
    )
    order = None if sort not in SORTS or sort == "created" else sort
    read = chosen | {
        "search": chosen["search"].lower(),
        "state": None if chosen["state"] == "opened" else chosen["state"],
    }
    visit.canonical(**read, sort=order)
    values = {"project": here.id, "text": pattern(chosen["search"]), **chosen}
    rows, pager = found(visit, ISSUE, rest, 12, **values)
    counts = {state: _count(visit, rest, values | {"state": state}) for state in ("opened", "closed", "all")}
    return here.render(
        "issues.html",
        rows=rows,
        pager=pager,
        chosen=chosen,
        sort=sort or "created",
        counts=counts,
        labels_of=labels_of(visit, rows),
        assignees_of={row["id"]: assignees(visit, row["id"]) for row in rows},
        choices=_choices(here),
    )


def _confidential(here: Here) -> str:
    return "(confidential = 0 OR author = :me)" if here.role < REPORTER else ":me > 0"


def _count(visit: Visit, rest: str, values: dict[str, Any]) -> int:
    body = rest.rpartition(" ORDER BY ")[0]
    return visit.db.execute(f"SELECT count(*) FROM {body}", values | who(visit)).fetchone()[0]


def _choices(here: Here) -> dict[str, list[tuple[str, str]]]:
    """Return the options of each filter as pairs of value and text."""
    visit = here.visit
    authors = visit.all(
        "SELECT DISTINCT name, full_name FROM issues JOIN accounts ON accounts.id = author WHERE project = ?"
        " ORDER BY full_name",
        here.id,
    )
    helpers = visit.all(
        "SELECT DISTINCT name, full_name FROM issue_assignees JOIN issues ON issues.id = issue"
        " JOIN accounts ON accounts.id = account WHERE project = ? ORDER BY full_name",
        here.id,
    )
    labels = visit.all("SELECT name FROM labels WHERE project = ? ORDER BY name", here.id)
    milestones = visit.all("SELECT title FROM milestones WHERE project = ? ORDER BY iid", here.id)
    return {
        "author": [("", "Any author"), *((row["name"], row["full_name"]) for row in authors)],
        "assignee": [("", "Any assignee"), ("none", "Nobody"), *((row["name"], row["full_name"]) for row in helpers)],
        "label": [("", "Any label"), *((row["name"], row["name"]) for row in labels)],
        "milestone": [("", "Any milestone"), *((row["title"], row["title"]) for row in milestones)],
    }


def labels_of(visit: Visit, rows: list[sqlite3.Row]) -> dict[int, list[sqlite3.Row]]:
    """Return the labels of each of these issues."""
    query = "SELECT labels.* FROM issue_labels JOIN labels ON labels.id = label WHERE issue = ? ORDER BY name"
    return {row["id"]: visit.all(query, row["id"]) for row in rows}


def assignees(visit: Visit, issue: int) -> list[sqlite3.Row]:
    """Return the assignees of an issue."""
    query = "SELECT accounts.* FROM issue_assignees JOIN accounts ON id = account WHERE issue = ? ORDER BY full_name"
    return visit.all(query, issue)


def issue_at(here: Here, iid: int) -> sqlite3.Row:
    """Return an issue of the project with its author.

    Raises:
        NotFound: If there is none, or it is confidential and the visitor has no role.
    """
    visible = f"(confidential = 0 OR author = {who(here.visit)['me']})" if here.role < REPORTER else "1"
    return here.visit.one(
        "SELECT issues.*, accounts.name AS author_name, accounts.full_name AS author_full, milestones.title AS goal"
        " FROM issues JOIN accounts ON accounts.id = author LEFT JOIN milestones ON milestones.id = milestone"
        f" WHERE issues.project = ? AND issues.iid = ? AND {visible}",
        here.id,
        iid,
        what="issue",
    )


@site.get(_BASE + "/{iid:int}")
def issue(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Show an issue."""
    return show(here_at(visit, namespace, project), iid, 200, "")


def show(here: Here, iid: int, status: int, error: str) -> Response:
    """Render the page of an issue; `error` is shown at the comment form."""
    visit = here.visit
    row = issue_at(here, iid)
    return here.render(
        "issue.html",
        status,
        issue=row,
        labels=labels_of(visit, [row])[row["id"]],
        assignees=assignees(visit, row["id"]),
        comments=comments_on(visit, "issue", row["id"]),
        all_labels=visit.all("SELECT * FROM labels WHERE project = ? ORDER BY name", here.id),
        people=here.people(),
        may_edit=may_edit(here, row),
        error=error,
    )


def may_edit(here: Here, row: sqlite3.Row) -> bool:
    """Whether the visitor may edit an issue or a merge request: its author and Reporters or higher may."""
    account = here.visit.account
    return account is not None and (here.role >= REPORTER or row["author"] == account["id"])


def editable(here: Here, row: sqlite3.Row) -> None:
    """Check `may_edit`.

    Raises:
        SignInNeeded: If the visitor isn't signed in.
        Refused: If the visitor may not edit it.
    """
    here.need(0, "change this")
    if not may_edit(here, row):
        raise Refused("Only its author, and people with the role Reporter or more, can change this.")


@site.post(_BASE + "/{iid:int}/comment")
def add_comment(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Comment on an issue."""
    here = here_at(visit, namespace, project)
    here.need(0, "comment")
    row = issue_at(here, iid)
    text = visit.text("body")
    if not text:
        return show(here, iid, 422, "The comment is empty.")
    comment(visit, "issue", row["id"], text)
    return visit.redirect(f"{here.path}/-/issues/{iid}", "Comment added.")


@site.post(_BASE + "/{iid:int}/comment/{number:int}/delete")
def remove_comment(visit: Visit, namespace: str, project: str, iid: int, number: int) -> Response:
    """Delete one's own comment on an issue."""
    here = here_at(visit, namespace, project)
    delete_comment(visit, "issue", issue_at(here, iid)["id"], number)
    return visit.redirect(f"{here.path}/-/issues/{iid}", "Your comment was deleted.")


@site.post(_BASE + "/{iid:int}/state")
def set_state(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Close or reopen an issue."""
    here = here_at(visit, namespace, project)
    row = issue_at(here, iid)
    editable(here, row)
    closing = row["state"] == "opened"
    values = ("closed", RIGHT_NOW) if closing else ("opened", None)
    visit.run("UPDATE issues SET state = ?, closed = ? WHERE id = ?", *values, row["id"])
    note(visit, "issue", row["id"], "closed the issue" if closing else "reopened the issue")
    return visit.redirect(f"{here.path}/-/issues/{iid}", "Issue closed." if closing else "Issue reopened.")
