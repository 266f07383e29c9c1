"""Tasks that change issues, labels and milestones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import edited
from agentgym_envs.worlds.webarena.sites.code.task_parts import (
    about,
    ask,
    issues,
    last,
    members,
    projects,
    template,
    to_issue,
    to_issues,
    to_project,
)
from agentgym_envs.worlds.webarena.sites.names import TOWNS
from agentgym_envs.worlds.webarena.sites.tasks import Case, both, click, fill, rows, stop

_WISHES = (
    "Describe the settings in one table",
    "Print a summary at the end",
    "Sort entries by date by default",
    "Ship a sample configuration",
    "Tell apart warnings and errors",
    "Try the new compiler version",
    "Write down how to make a release",
    "Count failures per week",
    "Check links in the manual",
    "Translate messages into Welsh",
    "Test on the oldest supported system",
    "Reduce the size of the download",
)
_DAYS = ("2025-06-27", "2025-07-04", "2025-07-18", "2025-08-01", "2025-08-15", "2025-09-05")
_REMARKS = (
    "I can reproduce this on my machine.",
    "Let us talk about this on Thursday.",
    "Please add the exact steps.",
    "I would start with a failing test.",
    "This also affects the older version.",
    "Who wants to take this one?",
    "Moving this behind the release.",
)


def _with(db: sqlite3.Connection, kind: str, issue: int, more: int) -> str:
    """Return the ids of an issue's labels (`label`) or assignees (`account`) and one more, as in `issue_contents`."""
    table = {"label": "issue_labels", "account": "issue_assignees"}[kind]
    before = [row[0] for row in db.execute(f"SELECT {kind} FROM {table} WHERE issue = ?", (issue,))]
    return ",".join(map(str, sorted([*before, more])))


_STATE = (
    "title, due, weight, (SELECT group_concat(name) FROM (SELECT name FROM accounts JOIN issue_assignees"
    " ON account = accounts.id WHERE issue = issues.id ORDER BY name)), (SELECT group_concat(name) FROM (SELECT name"
    " FROM labels JOIN issue_labels ON label = labels.id WHERE issue = issues.id ORDER BY name))"
)


@template(
    "new-issue",
    'Open an issue in {{project}} with the title "{{title}}", assign it to {{person}}, give it the label "{{label}}"'
    " and make it due on {{due}}.",
)
def new_issue(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Open an issue."""
    for row in [row for _ in range(4) for row in projects(db, random, 30)]:
        title, due = random.choice(_WISHES), random.choice(_DAYS)
        person = random.choice(members(db, row["project_id"]))
        labels = "SELECT * FROM labels WHERE project = ? ORDER BY id"
        label = ask(db, random, labels, row["project_id"])[0]["name"]
        plan = [
            *to_issues(row),
            click("link", "New issue"),
            fill("textbox", "Title", title),
            click("checkbox", person["full_name"]),
            click("checkbox", label),
            fill("textbox", "Due date (YYYY-MM-DD)", due),
            click("button", "Create issue"),
            stop(),
        ]
        made = rows(
            "gitlab",
            # Issues can't be deleted, so a wrong one is repaired by closing it.
            f"SELECT project, {_STATE} FROM issues WHERE id > {last(db, 'issues')} AND state = 'opened'",
            (row["project_id"], title, due, None, person["name"], label),
        )
        values = {"project": row["place"], "title": title, "person": person["full_name"], "label": label, "due": due}
        yield Case(values, about(f"project:{row['place']}"), made, plan)


@template("close-issue", 'The issue "{{title}}" in {{project}} is settled. Close it.')
def close_issue(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Close an issue."""
    for row in issues(db, random, 20):
        done = edited(db, "gitlab", "issue_contents", row["id"], state="closed")
        plan = [*to_issue(row), click("button", "Close issue"), stop()]
        yield Case({"title": row["title"], "project": row["place"]}, about(f"issue:{row['title']}"), done, plan)


@template("comment-on-issue", 'Comment on the issue "{{title}}" in {{project}}: "{{remark}}"')
def comment_on_issue(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Comment on an issue."""
    for row in issues(db, random):
        remark = random.choice(_REMARKS)
        query = f"SELECT issue, author, body FROM comments WHERE id > {last(db, 'comments')} AND system = 0"
        plan = [*to_issue(row), fill("textbox", "Write a comment", remark), click("button", "Comment"), stop()]
        values = {"title": row["title"], "project": row["place"], "remark": remark}
        yield Case(values, about(f"issue:{row['title']}"), rows("gitlab", query, (row["id"], 1, remark)), plan)


@template("label-issue", 'Add the label "{{label}}" to the issue "{{title}}" in {{project}}.')
def label_issue(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Set labels with the picker."""
    for row in issues(db, random, 20):
        free = (
            "SELECT * FROM labels WHERE project = ? AND id NOT IN (SELECT label FROM issue_labels WHERE issue = ?)"
            " ORDER BY id"
        )
        added = ask(db, random, free, row["project_id"], row["id"])[0]
        label = added["name"]
        plan = [
            *to_issue(row),
            click("button", "Edit labels"),
            fill("textbox", "Filter labels", label),
            click("checkbox", label),
            click("button", "Apply labels"),
            stop(),
        ]
        values = {"label": label, "title": row["title"], "project": row["place"]}
        done = edited(db, "gitlab", "issue_contents", row["id"], labels=_with(db, "label", row["id"], added["id"]))
        yield Case(values, about(f"issue:{row['title']}"), done, plan)


@template(
    "assign-issue", 'Let {{person}} work on the issue "{{title}}" in {{project}}, in addition to who is assigned now.'
)
def assign_issue(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Set assignees with the picker."""
    for row in issues(db, random, 20):
        working = [
            found[0] for found in db.execute("SELECT account FROM issue_assignees WHERE issue = ?", (row["id"],))
        ]
        free = [person for person in members(db, row["project_id"]) if person["id"] not in working]
        if not free:
            continue
        person = random.choice(free)
        plan = [
            *to_issue(row),
            click("button", "Edit assignees"),
            click("checkbox", person["full_name"]),
            click("button", "Apply assignees"),
            stop(),
        ]
        values = {"person": person["full_name"], "title": row["title"], "project": row["place"]}
        done = edited(db, "gitlab", "issue_contents", row["id"], people=_with(db, "account", row["id"], person["id"]))
        yield Case(values, about(f"issue:{row['title']}"), done, plan)


@template(
    "plan-issue",
    'Set the due date of the issue "{{title}}" in {{project}} to {{due}} and its weight to {{weight}}.',
    held_out=True,
)
def plan_issue(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Edit an issue."""
    for row in issues(db, random, 20):
        due, weight = random.choice(_DAYS), random.randrange(9, 20)
        plan = [
            *to_issue(row),
            click("link", "Edit issue"),
            fill("textbox", "Due date (YYYY-MM-DD)", due),
            fill("textbox", "Weight", str(weight)),
            click("button", "Save changes"),
            stop(),
        ]
        values = {"title": row["title"], "project": row["place"], "due": due, "weight": weight}
        done = edited(db, "gitlab", "issue_contents", row["id"], due=due, weight=weight)
        yield Case(values, about(f"issue:{row['title']}"), done, plan)


@template(
    "new-milestone", 'Plan a milestone "{{title}}" in {{project}} that starts on {{start}} and is due on {{due}}.'
)
def new_milestone(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Create a milestone."""
    for row in [row for _ in range(2) for row in projects(db, random, 20)]:
        title = f"Meeting in {random.choice(TOWNS)}"
        start, due = f"2025-07-{random.randrange(1, 28):02}", f"2025-09-{random.randrange(1, 30):02}"
        plan = [
            *to_project(row),
            click("link", "Milestones"),
            click("link", "New milestone"),
            fill("textbox", "Title", title),
            fill("textbox", "Start date (YYYY-MM-DD)", start),
            fill("textbox", "Due date (YYYY-MM-DD)", due),
            click("button", "Create milestone"),
            stop(),
        ]
        query = (
            f"SELECT project, title, start, due FROM milestones WHERE id > {last(db, 'milestones')}"
            " AND state = 'active'"  # a wrong one can be closed
        )
        made = rows("gitlab", query, (row["project_id"], title, start, due))
        values = {"title": title, "project": row["place"], "start": start, "due": due}
        yield Case(values, about(f"project:{row['place']}"), made, plan)


@template("new-label", 'Make a label "{{label}}" with the colour {{colour}} in {{project}}.')
def new_label(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Create a label."""
    names = ("hardware", "release blocker", "translation", "wish", "accessibility", "data loss", "upstream", "workshop")
    for row in [row for _ in range(2) for row in projects(db, random, 20)]:
        label, colour = random.choice(names), f"#{random.randrange(0x222222, 0xBBBBBB):06x}"
        plan = [
            *to_project(row),
            click("link", "Labels"),
            fill("textbox", "Label name", label),
            fill("textbox", "Colour", colour),
            click("button", "Create label"),
            stop(),
        ]
        query = f"SELECT project, name, lower(colour) FROM labels WHERE id > {last(db, 'labels')}"
        kept = rows("gitlab", query, (row["project_id"], label, colour))
        count = db.execute("SELECT count(*) FROM labels").fetchone()[0] + 1
        made = both(kept, rows("gitlab", "SELECT count(*) FROM labels", (count,)))
        values = {"label": label, "colour": colour, "project": row["place"]}
        yield Case(values, about(f"project:{row['place']}"), made, plan)


TEMPLATES = (new_issue, close_issue, comment_on_issue, label_issue, assign_issue, plan_issue, new_milestone, new_label)
