"""A project's history: commits, branches, tags with releases, contributors."""

from __future__ import annotations

from starlette.responses import Response

from agentgym_envs.worlds.webarena.sites.code.base import (
    DEVELOPER,
    RIGHT_NOW,
    Here,
    day_of,
    found,
    good_slug,
    here_at,
    pattern,
    site,
)
from agentgym_envs.worlds.webarena.sites.code.merges import commit_diff
from agentgym_envs.worlds.webarena.sites.code.repository import branch_names
from agentgym_envs.worlds.webarena.sites.web import NotFound, Refused, Visit

_BASE = "/{namespace}/{project}/-"


@site.get(_BASE + "/commits/{branch}")
def commits(visit: Visit, namespace: str, project: str, branch: str) -> Response:
    """List the commits of a branch, filtered by author, words and dates."""
    here = here_at(visit, namespace, project)
    if branch not in branch_names(here):
        raise NotFound("branch")
    chosen = {key: visit.text(key, 100) for key in ("author", "search", "since", "until")}
    days = {key: day_of(chosen[key]) or "" for key in ("since", "until")}
    visit.canonical(author=chosen["author"], search=chosen["search"].lower(), **days)
    rest = (
        "commits JOIN accounts ON accounts.id = author WHERE project = :project AND branch IN (:branch, :default)"
        " AND (:author = '' OR name = :author) AND message LIKE :text"
        " AND (:since = '' OR date(commits.created) >= :since) AND (:until = '' OR date(commits.created) <= :until)"
        " ORDER BY commits.created DESC, commits.id DESC"
    )
    values = {"project": here.id, "branch": branch, "default": here.row["default_branch"], "author": chosen["author"]}
    rows, pager = found(visit, "commits.*, name, full_name", rest, 20, text=pattern(chosen["search"]), **values, **days)
    authors = visit.all(
        "SELECT DISTINCT name, full_name FROM commits JOIN accounts ON accounts.id = author WHERE project = ?"
        " ORDER BY full_name",
        here.id,
    )
    return here.render(
        "commits.html",
        rows=rows,
        pager=pager,
        chosen=chosen,
        branch=branch,
        branches=branch_names(here),
        authors=[("", "Any author"), *((row["name"], row["full_name"]) for row in authors)],
        path=f"{here.path}/-/commits/",
    )


@site.get(_BASE + "/commit/{sha}")
def commit(visit: Visit, namespace: str, project: str, sha: str) -> Response:
    """Show a commit and its changes; a prefix of at least seven digits identifies it."""
    here = here_at(visit, namespace, project)
    if not (7 <= len(sha) <= 40 and sha.isalnum()):
        raise NotFound("commit")
    row = visit.one(
        "SELECT commits.*, name, full_name, email, merges.iid AS merge_iid FROM commits"
        " JOIN accounts ON accounts.id = commits.author LEFT JOIN merges ON merges.id = merge"
        " WHERE commits.project = ? AND sha LIKE ?",
        here.id,
        f"{sha}%",
        what="commit",
    )
    return here.render("commit.html", commit=row, diffs=[commit_diff(visit, row)] if row["lines"] else [])


@site.get(_BASE + "/branches")
def branches(visit: Visit, namespace: str, project: str) -> Response:
    """List all branches with their last commit."""
    here = here_at(visit, namespace, project)
    return _branches(here, 200, "", "")


def _branches(here: Here, status: int, name: str, error: str) -> Response:
    rows = here.visit.all(
        "SELECT branches.*, (SELECT iid FROM merges WHERE project = branches.project AND source = branches.name"
        " AND state = 'opened') AS merge, (SELECT max(created) FROM commits WHERE project = branches.project"
        " AND branch = branches.name) AS last, (SELECT count(*) FROM commits WHERE project = branches.project"
        " AND branch = branches.name) AS commits FROM branches WHERE project = ? ORDER BY name <> ?, name",
        here.id,
        here.row["default_branch"],
    )
    return here.render("branches.html", status, branches=rows, name=name, error=error)


@site.post(_BASE + "/branches")
def new_branch(visit: Visit, namespace: str, project: str) -> Response:
    """Create a branch from the head of the default branch."""
    here = here_at(visit, namespace, project)
    here.need(DEVELOPER, "make branches")
    name = visit.text("name", 80)
    if not good_slug(name):
        return _branches(here, 422, name, "A branch name has letters, digits, dots, dashes and underscores.")
    if name in branch_names(here):
        return _branches(here, 422, name, f"There is a branch {name} already.")
    visit.run("INSERT INTO branches VALUES (?, ?, ?)", here.id, name, RIGHT_NOW)
    return visit.redirect(f"{here.path}/-/branches", f"Branch {name} was created.")


@site.post(_BASE + "/branches/{branch}/delete")
def delete_branch(visit: Visit, namespace: str, project: str, branch: str) -> Response:
    """Delete a branch with its commits."""
    here = here_at(visit, namespace, project)
    here.need(DEVELOPER, "delete branches")
    if branch == here.row["default_branch"]:
        raise Refused("The default branch cannot be deleted.")
    visit.run("DELETE FROM branches WHERE project = ? AND name = ?", here.id, branch)
    visit.run("DELETE FROM commits WHERE project = ? AND branch = ? AND merge IS NULL", here.id, branch)
    return visit.redirect(f"{here.path}/-/branches", f"Branch {branch} was deleted.")


@site.get(_BASE + "/tags")
def tags(visit: Visit, namespace: str, project: str) -> Response:
    """List all tags."""
    return _tags(here_at(visit, namespace, project), "tags.html")


@site.get(_BASE + "/releases")
def releases(visit: Visit, namespace: str, project: str) -> Response:
    """List the tags that have release notes."""
    return _tags(here_at(visit, namespace, project), "releases.html")


def _tags(here: Here, template: str) -> Response:
    rows = here.visit.all(
        "SELECT tags.*, sha, message FROM tags JOIN commits ON commits.id = commit_id WHERE tags.project = ?"
        " ORDER BY tags.created DESC",
        here.id,
    )
    return here.render(template, tags=rows)


@site.get(_BASE + "/contributors")
def contributors(visit: Visit, namespace: str, project: str) -> Response:
    """List the authors of commits on the default branch with their numbers of commits."""
    here = here_at(visit, namespace, project)
    rows = visit.all(
        "SELECT accounts.*, count(*) AS commits, min(commits.created) AS first, max(commits.created) AS last"
        " FROM commits"
        " JOIN accounts ON accounts.id = author WHERE project = ? AND branch = ? GROUP BY author"
        " ORDER BY full_name",
        here.id,
        here.row["default_branch"],
    )
    return here.render("contributors.html", rows=rows, most=max((row["commits"] for row in rows), default=1))
