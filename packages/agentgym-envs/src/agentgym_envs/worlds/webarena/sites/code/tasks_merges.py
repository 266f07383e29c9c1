"""Tasks that change merge requests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import edited
from agentgym_envs.worlds.webarena.sites.code.task_parts import (
    about,
    ask,
    last,
    members,
    merges,
    template,
    to_merge,
    to_project,
    value,
)
from agentgym_envs.worlds.webarena.sites.tasks import Case, choose, click, fill, rows, stop

_APPROVALS = "SELECT account FROM approvals WHERE merge = ?"
_TITLES = ("Ready for review", "Please have a look", "Small step", "For the next release", "As discussed on Monday")


def _values(row: sqlite3.Row) -> dict[str, str | int]:
    return {"title": row["title"], "project": row["place"]}


@template("approve-and-merge", 'Approve the merge request "{{title}}" in {{project}}, then merge it.')
def approve_and_merge(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Approve, then merge."""
    for row in merges(db, random, 30, "merges.id NOT IN (SELECT merge FROM approvals WHERE account = 1)"):
        approvals = sorted([1, *(found[0] for found in db.execute(_APPROVALS, (row["id"],)))])
        after = {"state": "merged", "merged_by": 1, "approvals": ",".join(map(str, approvals))}
        done = edited(db, "gitlab", "merge_contents", row["id"], **after)
        plan = [*to_merge(row), click("button", "Approve"), click("button", "Merge"), stop()]
        yield Case(_values(row), about(f"merge:{row['title']}"), done, plan)


@template("close-merge", 'We no longer want the merge request "{{title}}" in {{project}}. Close it without merging.')
def close_merge(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Close a merge request."""
    for row in merges(db, random, 20):
        plan = [*to_merge(row), click("button", "Close merge request"), stop()]
        done = edited(db, "gitlab", "merge_contents", row["id"], state="closed")
        yield Case(_values(row), about(f"merge:{row['title']}"), done, plan)


@template(
    "comment-commit-count",
    'On the merge request "{{title}}" in {{project}}, write a comment that is just the number of commits its author has'
    " made to the default branch of the project.",
)
def comment_commit_count(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Look up a number and post it as a comment elsewhere."""
    for row in merges(db, random):
        count = value(
            db,
            "SELECT count(*) FROM commits WHERE project = ? AND branch = ? AND author = ?",
            *(row["project_id"], row["branch"], row["author"]),
        )
        if count < 2:
            continue
        query = f"SELECT merge, author, body FROM comments WHERE id > {last(db, 'comments')} AND system = 0"
        plan = [*to_project(row), click("link", "Contributors"), *to_merge(row)]
        plan += [fill("textbox", "Write a comment", str(count)), click("button", "Comment"), stop()]
        yield Case(
            _values(row), about(f"merge:{row['title']}"), rows("gitlab", query, (row["id"], 1, str(count))), plan
        )


@template(
    "set-reviewer",
    'Ask {{person}} to review the merge request "{{title}}" in {{project}}; leave the assignee as it is.',
    held_out=True,
)
def set_reviewer(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Choose a reviewer."""
    for row in merges(db, random, 20):
        free = [
            person for person in members(db, row["project_id"]) if person["id"] not in (row["reviewer"], row["author"])
        ]
        inside = [1, *(person["id"] for person in members(db, row["project_id"]))]
        if not free or row["assignee"] not in (None, *inside):
            continue
        person = random.choice(free)
        done = edited(db, "gitlab", "merge_contents", row["id"], reviewer=person["id"])
        plan = [*to_merge(row), choose("Reviewer", person["full_name"])]
        plan += [click("button", "Save assignee and reviewer"), stop()]
        yield Case(_values(row) | {"person": person["full_name"]}, about(f"merge:{row['title']}"), done, plan)


@template(
    "new-merge",
    "In {{project}}, open a merge request from the branch {{branch}} into the default branch with the title"
    ' "{{title}}".',
    held_out=True,
)
def new_merge(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Open a merge request."""
    query = (
        "SELECT projects.id AS project_id, namespace || '/' || path AS place, namespace AS space,"
        " projects.name AS project_name, default_branch, branches.name FROM branches"
        " JOIN projects ON projects.id = project WHERE branches.name LIKE 'jonas-%' ORDER BY place, branches.name"
    )
    for row in ask(db, random, query):
        title = random.choice(_TITLES)
        made = (
            "SELECT project, title, source, target, author FROM merges"
            f" WHERE id > {last(db, 'merges')} AND state = 'opened'"  # a wrong one can be closed
        )
        wanted = (row["project_id"], title, row["name"], row["default_branch"], 1)
        plan = [
            *to_project(row),
            click("link", "Branches"),
            click("link", f"New merge request from {row['name']}"),
            fill("textbox", "Title", title),
            click("button", "Create merge request"),
            stop(),
        ]
        values = {"project": row["place"], "branch": row["name"], "title": title}
        yield Case(values, about(f"branch:{row['place']}/{row['name']}"), rows("gitlab", made, wanted), plan)


TEMPLATES = (approve_and_merge, close_merge, comment_commit_count, set_reviewer, new_merge)
