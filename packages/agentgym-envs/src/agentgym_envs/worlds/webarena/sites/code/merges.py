"""A project's merge requests: the list, the pages of one (discussion, commits, changes), and its actions."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import (
    DEVELOPER,
    REPORTER,
    RIGHT_NOW,
    Here,
    found,
    here_at,
    pattern,
    site,
)
from agentgym_envs.worlds.webarena.sites.code.dashboard import MERGE
from agentgym_envs.worlds.webarena.sites.code.diffs import Diff, diff_of
from agentgym_envs.worlds.webarena.sites.code.issues import editable, may_edit
from agentgym_envs.worlds.webarena.sites.code.writing import (
    add_commit,
    comment,
    comments_on,
    delete_comment,
    file_text,
    note,
    patched,
    unmerged,
    write_file,
)
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit

_BASE = "/{namespace}/{project}/-/merge_requests"
_STATES = ("opened", "merged", "closed", "all")
_FILTERS = (
    "project = :project AND (:state = 'all' OR state = :state) AND (:search = '' OR title LIKE :text)"
    " AND (:author = '' OR accounts.name = :author)"
    " AND (:reviewer = '' OR reviewer = (SELECT id FROM accounts WHERE name = :reviewer))"
    " AND (:assignee = '' OR assignee = (SELECT id FROM accounts WHERE name = :assignee))"
)


@site.get(_BASE)
def merge_requests(visit: Visit, namespace: str, project: str) -> Response:
    """List the merge requests."""
    here = here_at(visit, namespace, project)
    chosen = {key: visit.text(key, 200) for key in ("search", "author", "reviewer", "assignee")}
    chosen["state"] = visit.text("state") if visit.text("state") in _STATES else "opened"
    tables = "merges JOIN projects ON projects.id = project JOIN accounts ON accounts.id = author"
    rest = f"{tables} WHERE {_FILTERS} ORDER BY merges.created DESC, merges.id DESC"
    rows, pager = found(visit, MERGE, rest, 12, project=here.id, text=pattern(chosen["search"]), **chosen)
    count = "SELECT count(*) FROM merges WHERE project = ? AND (? = 'all' OR state = ?)"
    counts = {state: visit.value(count, here.id, state, state) for state in _STATES}
    people = {
        role: visit.all(
            f"SELECT DISTINCT name, full_name FROM merges JOIN accounts ON accounts.id = {role}"
            " WHERE project = ? ORDER BY full_name",
            here.id,
        )
        for role in ("author", "reviewer", "assignee")
    }
    return here.render("merges.html", rows=rows, pager=pager, chosen=chosen, counts=counts, people=people)


def merge_at(here: Here, iid: int) -> sqlite3.Row:
    """Return a merge request of the project with the people it refers to."""
    return here.visit.one(
        "SELECT merges.*, authors.name AS author_name, authors.full_name AS author_full, labels.name AS label_name,"
        " labels.colour, assignees.name AS assignee_name, assignees.full_name AS assignee_full,"
        " reviewers.name AS reviewer_name, reviewers.full_name AS reviewer_full, mergers.full_name AS merger_full,"
        " milestones.title AS goal FROM merges"
        " JOIN accounts AS authors ON authors.id = author LEFT JOIN accounts AS assignees ON assignees.id = assignee"
        " LEFT JOIN accounts AS reviewers ON reviewers.id = reviewer"
        " LEFT JOIN accounts AS mergers ON mergers.id = merged_by LEFT JOIN labels ON labels.id = label"
        " LEFT JOIN milestones ON milestones.id = milestone WHERE merges.project = ? AND merges.iid = ?",
        here.id,
        iid,
        what="merge request",
    )


def _show(here: Here, iid: int, tab: str, status: int = 200, error: str = "") -> Response:
    visit = here.visit
    row = merge_at(here, iid)
    visit.canonical()
    commits = commits_of(visit, row["id"])
    approved = visit.all(
        "SELECT accounts.* FROM approvals JOIN accounts ON id = account WHERE merge = ? ORDER BY full_name", row["id"]
    )
    return here.render(
        "merge.html",
        status,
        merge=row,
        tab=tab,
        commits=commits,
        comments=comments_on(visit, "merge", row["id"]),
        diffs=[commit_diff(visit, commit) for commit in commits] if tab == "diffs" else [],
        approved=approved,
        mine=visit.account is not None and visit.account["id"] in [person["id"] for person in approved],
        people=here.people(),
        may_edit=may_edit(here, row),
        error=error,
    )


def commits_of(visit: Visit, merge: int) -> list[sqlite3.Row]:
    """Return the commits of a merge request, oldest first."""
    return visit.all(
        "SELECT commits.*, name, full_name FROM commits JOIN accounts ON accounts.id = author"
        " WHERE merge = ? ORDER BY commits.created, commits.id",
        merge,
    )


def commit_diff(visit: Visit, commit: sqlite3.Row) -> Diff:
    """Return the diff of a commit."""
    text = (
        file_text(visit, commit["project"], "" if commit["patch"] is None else commit["branch"], commit["path"]) or ""
    )
    old = visit.value("SELECT text FROM contents WHERE id = ?", commit["old"]) if commit["old"] else ""
    return diff_of(commit["path"], text, commit["line"], commit["lines"], old)


@site.get(_BASE + "/{iid:int}")
def discussion(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Show a merge request and its discussion."""
    return _show(here_at(visit, namespace, project), iid, "discussion")


@site.get(_BASE + "/{iid:int}/commits")
def merge_commits(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """List the commits of a merge request."""
    return _show(here_at(visit, namespace, project), iid, "commits")


@site.get(_BASE + "/{iid:int}/diffs")
def changes(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Show the changes of a merge request."""
    return _show(here_at(visit, namespace, project), iid, "diffs")


@site.post(_BASE + "/{iid:int}/comment")
def add_comment(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Comment on a merge request."""
    here = here_at(visit, namespace, project)
    here.need(0, "comment")
    text = visit.text("body")
    if not text:
        return _show(here, iid, "discussion", 422, "The comment is empty.")
    comment(visit, "merge", merge_at(here, iid)["id"], text)
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", "Comment added.")


@site.post(_BASE + "/{iid:int}/comment/{number:int}/delete")
def remove_comment(visit: Visit, namespace: str, project: str, iid: int, number: int) -> Response:
    """Delete one's own comment on a merge request."""
    here = here_at(visit, namespace, project)
    delete_comment(visit, "merge", merge_at(here, iid)["id"], number)
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", "Your comment was deleted.")


@site.post(_BASE + "/{iid:int}/approve")
def approve(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Approve an open merge request, or revoke the approval."""
    here = here_at(visit, namespace, project)
    me = here.need(DEVELOPER, "approve merge requests")
    row = _open(here, iid)
    if visit.value("SELECT 1 FROM approvals WHERE merge = ? AND account = ?", row["id"], me["id"]):
        visit.run("DELETE FROM approvals WHERE merge = ? AND account = ?", row["id"], me["id"])
        notice = "Approval revoked."
    else:
        visit.run("INSERT INTO approvals VALUES (?, ?)", row["id"], me["id"])
        notice = "Merge request approved."
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", notice)


@site.post(_BASE + "/{iid:int}/merge")
def merge(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Merge the source branch into the target branch and delete the source branch."""
    here = here_at(visit, namespace, project)
    me = here.need(DEVELOPER, "merge")
    row = _open(here, iid)
    if row["target"] == here.row["default_branch"]:
        for commit in unmerged(visit, here.id, row["source"]):
            text = file_text(visit, here.id, "", commit["path"]) or ""
            write_file(visit, here.id, commit["path"], patched(text, commit))
            visit.run("UPDATE commits SET patch = NULL WHERE id = ?", commit["id"])
    visit.run("UPDATE commits SET branch = ? WHERE project = ? AND branch = ?", row["target"], here.id, row["source"])
    add_commit(visit, here.id, row["target"], f"Merge branch '{row['source']}' into '{row['target']}'", "README.md", 0)
    visit.run("DELETE FROM branches WHERE project = ? AND name = ?", here.id, row["source"])
    values = ("merged", RIGHT_NOW, me["id"], row["id"])
    visit.run("UPDATE merges SET state = ?, merged = ?, merged_by = ? WHERE id = ?", *values)
    note(visit, "merge", row["id"], "merged")
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", "Merged.")


def _open(here: Here, iid: int) -> sqlite3.Row:
    row = merge_at(here, iid)
    if row["state"] != "opened":
        raise Refused(f"The merge request is {row['state']}.")
    return row


@site.post(_BASE + "/{iid:int}/state")
def set_state(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Close a merge request without merging, or reopen it."""
    here = here_at(visit, namespace, project)
    row = merge_at(here, iid)
    editable(here, row)
    if row["state"] == "merged":
        raise Refused("The merge request is merged.")
    state = "closed" if row["state"] == "opened" else "opened"
    visit.run("UPDATE merges SET state = ? WHERE id = ?", state, row["id"])
    note(visit, "merge", row["id"], "closed the merge request" if state == "closed" else "reopened the merge request")
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", f"The merge request is {state} now.")


@site.post(_BASE + "/{iid:int}/people")
def set_people(visit: Visit, namespace: str, project: str, iid: int) -> Response:
    """Set assignee and reviewer."""
    here = here_at(visit, namespace, project)
    here.need(REPORTER, "assign merge requests")
    row = merge_at(here, iid)
    members = [person["id"] for person in here.people()]
    chosen = [visit.number(role, 0, 0) for role in ("assignee", "reviewer")]
    values = [person if person in members else None for person in chosen]
    visit.run("UPDATE merges SET assignee = ?, reviewer = ? WHERE id = ?", *values, row["id"])
    note(visit, "merge", row["id"], "changed assignee or reviewer")
    return visit.redirect(f"{here.path}/-/merge_requests/{iid}", "Assignee and reviewer saved.")
