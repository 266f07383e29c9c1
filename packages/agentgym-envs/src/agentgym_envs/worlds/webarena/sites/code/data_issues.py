"""A project's issues with their comments, and Jonas's to-do list."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.code.data_projects import Project
from agentgym_envs.worlds.webarena.sites.code.prose import Prose, moments

_KINDS = {
    "bug": ("bug", 40),
    "feature": ("feature", 25),
    "docs": ("documentation", 10),
    "chore": ("refactoring", 9),
    "speed": ("performance", 9),
    "question": ("question", 7),
}
"""Label and relative frequency of each kind of issue."""
_LAST = datetime(2025, 6, 14)


def add_issues(db: sqlite3.Connection, random: Random, project: Project, prose: Prose) -> None:
    """Write the issues of a project with labels, assignees and comments."""
    opened = moments(random, max(project.created, datetime(2024, 1, 8)), _LAST, random.randrange(20, 44))
    for iid, moment in enumerate(opened, start=1):
        _issue(db, random, project, prose, iid, moment)


def _issue(db: sqlite3.Connection, random: Random, project: Project, prose: Prose, iid: int, moment: str) -> None:
    kind = random.choices(list(_KINDS), [share for _, share in _KINDS.values()])[0]
    parts = random.sample(project.components, 2)
    title = prose.say_new(f"{kind} title", c=parts[0], d=parts[1])
    body = prose.paragraph(f"{kind} body", random.choice((1, 1, 2)), c=parts[0], d=parts[1])
    closed = _later(random, moment) if random.random() < 0.55 else None
    milestone = _milestone(random, project, closed)
    due = (
        f"{_LAST + timedelta(days=random.randrange(3, 60)):%Y-%m-%d}" if not closed and random.random() < 0.15 else None
    )
    weight = random.randrange(1, 9) if random.random() < 0.25 else None
    author = random.choice(project.team + project.friends)
    issue = db.execute(
        "INSERT INTO issues (project, iid, title, body, author, state, created, updated, closed, milestone, due,"
        " weight, confidential) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(project.id, iid, title[0].upper() + title[1:], body, author, "closed" if closed else "opened", moment),
            *(closed or _later(random, moment), closed, milestone, due, weight, int(random.random() < 0.02)),
        ),
    ).lastrowid
    assert issue is not None
    _details(db, random, project, issue, _KINDS[kind][0])
    for written in moments(random, *_span(moment), random.choice((0, 0, 1, 1, 2))):
        body = prose.say("comment", c=parts[0], d=parts[1])
        values = (issue, random.choice(project.team + project.friends), body, written)
        db.execute("INSERT INTO comments (issue, author, body, created) VALUES (?, ?, ?, ?)", values)


def _details(db: sqlite3.Connection, random: Random, project: Project, issue: int, label: str) -> None:
    names = [label] if label in project.labels and random.random() < 0.85 else []
    names += random.sample(list(project.labels), random.choice((0, 0, 1, 2)))
    for name in dict.fromkeys(names):
        db.execute("INSERT INTO issue_labels VALUES (?, ?)", (issue, project.labels[name]))
    for person in random.sample(project.team, min(len(project.team), random.choice((0, 1, 1, 1, 2)))):
        db.execute("INSERT INTO issue_assignees VALUES (?, ?)", (issue, person))


def _milestone(random: Random, project: Project, closed: str | None) -> int | None:
    wanted = [key for key, state in project.milestones.items() if closed or state == "active"]
    return random.choice(wanted) if wanted and random.random() < 0.45 else None


def _later(random: Random, moment: str) -> str:
    later = datetime.fromisoformat(moment) + timedelta(days=random.randrange(1, 60), minutes=random.randrange(600))
    return f"{min(later, _LAST + timedelta(hours=random.randrange(8, 20))):%Y-%m-%d %H:%M}"


def _span(moment: str) -> tuple[datetime, datetime]:
    start = min(datetime.fromisoformat(moment) + timedelta(days=1), _LAST)
    return start, min(start + timedelta(days=25), _LAST + timedelta(days=1))


def add_todos(db: sqlite3.Connection, random: Random) -> None:
    """Write Jonas's to-do items: reviews requested of him and issues assigned to him, some of them done."""
    asked = db.execute(
        "SELECT id, author, updated FROM merges WHERE reviewer = 1 AND author <> 1 ORDER BY id"
    ).fetchall()
    given = db.execute(
        "SELECT issues.id, author, updated FROM issues JOIN issue_assignees ON issue = issues.id AND account = 1"
        " WHERE author <> 1 ORDER BY issues.id"
    ).fetchall()
    found = [(None, merge, author, "asked you to review", at) for merge, author, at in random.sample(asked, 12)]
    found += [(issue, None, author, "assigned you", at) for issue, author, at in random.sample(given, 24)]
    for issue, merge, author, action, moment in sorted(found, key=lambda todo: todo[4]):
        values = (issue, merge, author, action, moment, int(random.random() < 0.3))
        db.execute(
            "INSERT INTO todos (account, issue, merge, author, action, created, done) VALUES (1, ?, ?, ?, ?, ?, ?)",
            values,
        )
