"""The history of a project: commits, branches, merge requests, tags and releases."""

from __future__ import annotations

import hashlib
import sqlite3
from datetime import datetime, timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.code.data_projects import Project
from agentgym_envs.worlds.webarena.sites.code.prose import Prose, moments

_LAST = datetime(2025, 6, 14)
_STALE = {
    "Python": ("    # temporary, see the tracker\n", "    return None\n", "limit = 10\n", "import os, sys\n"),
    "TypeScript": ("// eslint-disable-next-line\n", "let limit = 10;\n", "  return null;\n"),
    "Go": ("\t// temporary, see the tracker\n", "var limit = 10\n", "\treturn nil\n"),
    "Rust": ("// temporary, see the tracker\n", "    .unwrap()\n", "let limit = 10;\n"),
    "Ruby": ("# temporary, see the tracker\n", "LIMIT = 10\n", "  nil\n"),
    "C": ("/* temporary, see the tracker */\n", "#define LIMIT 10\n", "    return 0;\n"),
}
_PATCHES = {
    "Python": "LARGEST = {k}\n\n\ndef shorten(text: str, most: int = LARGEST) -> str:\n    return text[:most]\n\n\n",
    "TypeScript": "export function shorten(text: string, most = {k}): string {\n  return text.slice(0, most);\n}\n\n",
    "Go": "func shorten(text string) string {\n\tif len(text) > {k} {\n\t\treturn text[:{k}]\n\t}\n"
    "\treturn text\n}\n\n",
    "Rust": "fn shorten(text: &str) -> &str {\n    text.get(..{k}).unwrap_or(text)\n}\n\n",
    "Ruby": "def shorten(text, most = {k})\n  text[0, most]\nend\n\n",
    "C": "static size_t shorten(size_t length)\n{\n    return length > {k} ? {k} : length;\n}\n\n",
}
_TOPICS = ("fix", "add", "try", "speed-up", "tidy", "docs")


def add_history(db: sqlite3.Connection, random: Random, project: Project, prose: Prose) -> None:
    """Write commits, merge requests and tags, and set the date of the last change."""
    branch = db.execute("SELECT default_branch FROM projects WHERE id = ?", (project.id,)).fetchone()[0]
    first = max(project.created, datetime(2024, 3, 1))
    when = moments(random, first, _LAST, random.randrange(18, 60))
    authors = project.team + project.friends[:2]
    weights = [1 / (rank + 0.8) for rank in range(len(authors))]
    for moment in when:
        _commit(db, random, project, prose, branch, random.choices(authors, weights)[0], moment)
    _tags(db, random, project, prose, when)
    opened = moments(random, datetime(2024, 6, 1), _LAST, random.randrange(3, 9))
    for iid, moment in enumerate(opened, start=1):
        _merge_request(db, random, project, prose, branch, iid, moment)
    if 1 in project.team:
        for number in range(2):
            _branch(db, random, project, prose, 1, f"jonas-{_slug(random, project)}-{number + 1}", "2025-06-12 17:30")
    values = (max(when[-1], opened[-1]), project.id)
    db.execute("UPDATE projects SET updated = ? WHERE id = ?", values)


def sha_of(*parts: object) -> str:
    """Return the SHA of a commit, 40 digits."""
    return hashlib.sha1("/".join(map(str, parts)).encode(), usedforsecurity=False).hexdigest()


def _commit(
    db: sqlite3.Connection, random: Random, project: Project, prose: Prose, branch: str, author: int, moment: str
) -> int:
    component = random.choice(project.components)
    slug = component.replace(" ", "_").replace("-", "_").lower()
    path = next(path for path in project.files if path.startswith(f"src/{slug}."))
    lines = project.files[path].count("\n")
    count = random.randrange(1, min(6, lines))
    old = _content(db, random.choice(_STALE[project.language])) if random.random() < 0.5 else None
    values = (random.randrange(1, lines - count + 1), count, old, None)
    return _write(db, project, branch, author, moment, prose.say("commit", c=component), path, values)


def _write(
    db: sqlite3.Connection,
    project: Project,
    branch: str,
    author: int,
    moment: str,
    message: str,
    path: str,
    values: tuple[int, int, int | None, int | None],
) -> int:
    number = db.execute("SELECT coalesce(max(id), 0) + 1 FROM commits").fetchone()[0]
    made = db.execute(
        "INSERT INTO commits (project, branch, sha, author, created, message, path, line, lines, old, patch)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (project.id, branch, sha_of(project.where, number), author, moment, message, path, *values),
    ).lastrowid
    assert made is not None
    return made


def _tags(db: sqlite3.Connection, random: Random, project: Project, prose: Prose, when: list[str]) -> None:
    major = random.randrange(0, 4)
    count = random.randrange(2, 6)
    for minor, position in enumerate(sorted(random.sample(range(3, len(when)), count))):
        moment = when[position]
        commit = db.execute(
            "SELECT id FROM commits WHERE project = ? AND created = ? ORDER BY id", (project.id, moment)
        ).fetchone()[0]
        name = f"v{major}.{minor}.{random.randrange(4)}"
        parts = random.sample(project.components, 2)
        notes = prose.say("release notes", c=parts[0], d=parts[1]) if random.random() < 0.7 else None
        values = (project.id, name, commit, moment, f"Version {name[1:]}", notes)
        db.execute("INSERT INTO tags VALUES (?, ?, ?, ?, ?, ?)", values)


def _merge_request(
    db: sqlite3.Connection, random: Random, project: Project, prose: Prose, branch: str, iid: int, moment: str
) -> None:
    parts = random.sample(project.components, 2)
    state = "opened" if iid > 2 and random.random() < 0.5 else random.choice(("merged", "merged", "merged", "closed"))
    author = random.choice(project.team + project.friends[:1])
    others = [person for person in project.team if person != author] or project.team
    reviewer = random.choice(others) if random.random() < 0.75 else None
    assignee = random.choice(project.team) if random.random() < 0.6 else None
    done = _later(random, moment)
    source = f"{_slug(random, project)}-{iid}"
    label = random.choice(list(project.labels.values())) if random.random() < 0.5 else None
    merge = db.execute(
        "INSERT INTO merges (project, iid, title, body, author, source, target, state, created, updated, merged,"
        " merged_by, assignee, reviewer, label) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(project.id, iid, prose.say_new("merge title", c=parts[0], d=parts[1])),
            *(prose.paragraph("merge body", 2, d=parts[1]), author, source, branch, state, moment, done),
            *((done, random.choice(project.team)) if state == "merged" else (None, None)),
            *(assignee, reviewer, label),
        ),
    ).lastrowid
    if state == "merged":
        made = [_commit(db, random, project, prose, branch, author, moment) for _ in range(random.randrange(1, 3))]
    else:
        made = _branch(db, random, project, prose, author, source, moment)
    db.executemany("UPDATE commits SET merge = ? WHERE id = ?", [(merge, commit) for commit in made])
    for written in moments(random, *_span(moment, done), random.choice((0, 1, 1, 2, 3))):
        values = (merge, random.choice(project.team + project.friends), prose.say("review", c=parts[0]), written)
        db.execute("INSERT INTO comments (merge, author, body, created) VALUES (?, ?, ?, ?)", values)
    if reviewer is not None and random.random() < 0.4:
        db.execute("INSERT INTO approvals VALUES (?, ?)", (merge, reviewer))


def _branch(
    db: sqlite3.Connection, random: Random, project: Project, prose: Prose, author: int, name: str, moment: str
) -> list[int]:
    """Write a branch that is ahead of the default branch by commits to different files."""
    db.execute("INSERT INTO branches VALUES (?, ?, ?)", (project.id, name, moment))
    sources = [path for path in project.files if path.startswith("src/")]
    made: list[int] = []
    for path in random.sample(sources, random.randrange(1, 3)):
        patch = _PATCHES[project.language].replace("{k}", str(random.randrange(16, 400)))
        blank = [number for number, line in enumerate(project.files[path].split("\n"), start=1) if not line]
        values = (blank[0] + 1, patch.count("\n"), None, _content(db, patch))
        component = path.split("/")[1].split(".")[0].replace("_", " ")
        made.append(_write(db, project, name, author, moment, prose.say("commit", c=component), path, values))
    return made


def _content(db: sqlite3.Connection, text: str) -> int:
    found = db.execute("SELECT id FROM contents WHERE length(text) < 200 AND text = ?", (text,)).fetchone()
    made = found[0] if found else db.execute("INSERT INTO contents (text) VALUES (?)", (text,)).lastrowid
    assert made is not None
    return made


def _slug(random: Random, project: Project) -> str:
    return f"{random.choice(_TOPICS)}-{random.choice(project.components).replace(' ', '-').lower()}"


def _later(random: Random, moment: str) -> str:
    later = datetime.fromisoformat(moment) + timedelta(days=random.randrange(1, 20), minutes=random.randrange(600))
    return f"{min(later, _LAST + timedelta(hours=random.randrange(8, 20))):%Y-%m-%d %H:%M}"


def _span(first: str, last: str) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(first) + timedelta(days=1), datetime.fromisoformat(last) + timedelta(days=1)
