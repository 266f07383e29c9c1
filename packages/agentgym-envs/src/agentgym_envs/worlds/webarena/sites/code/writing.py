"""Database writes shared by several pages: commits, files, comments and system notes on issues and merge requests."""

from __future__ import annotations

import hashlib
import sqlite3

from agentgym_envs.worlds.webarena.sites.code.base import RIGHT_NOW
from agentgym_envs.worlds.webarena.sites.web import Refused, Visit


def file_text(visit: Visit, project: int, branch: str, path: str) -> str | None:
    """Return the content of a file on a branch, or None if it doesn't exist."""
    text = visit.value(
        "SELECT text FROM files JOIN contents ON contents.id = content WHERE project = ? AND path = ?", project, path
    )
    if text is not None:
        for commit in unmerged(visit, project, branch):
            if commit["path"] == path:
                text = patched(text, commit)
    return text


def unmerged(visit: Visit, project: int, branch: str) -> list[sqlite3.Row]:
    """Return the file-changing commits that a branch is ahead by, oldest first."""
    return visit.all(
        "SELECT commits.*, contents.text AS added FROM commits JOIN contents ON contents.id = patch"
        " WHERE project = ? AND branch = ? ORDER BY commits.created, commits.id",
        project,
        branch,
    )


def patched(text: str, commit: sqlite3.Row) -> str:
    """Return a file's text with the lines that a branch's commit adds."""
    lines = text.splitlines(keepends=True)
    place = min(commit["line"] - 1, len(lines))
    return "".join(lines[:place]) + commit["added"] + "".join(lines[place:])


def write_file(visit: Visit, project: int, path: str, text: str) -> None:
    """Create or overwrite a file."""
    content = visit.run("INSERT INTO contents (text) VALUES (?)", text)
    visit.run("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", project, path, content)


def commit_file(visit: Visit, project: int, branch: str, path: str, text: str, message: str) -> str:
    """Write a file and its commit; return the commit's SHA."""
    write_file(visit, project, path, text)
    return add_commit(visit, project, branch, message, path, max(1, len(text.splitlines())))


def add_commit(visit: Visit, project: int, branch: str, message: str, path: str, lines: int) -> str:
    """Write a commit by the visitor; return its SHA."""
    number = visit.value("SELECT coalesce(max(id), 0) + 1 FROM commits")
    sha = hashlib.sha1(f"{project}/{branch}/{number}".encode(), usedforsecurity=False).hexdigest()
    visit.run(
        "INSERT INTO commits (project, branch, sha, author, created, message, path, line, lines)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?)",
        *(project, branch, sha, visit.signed_in()["id"], RIGHT_NOW, message, path, lines),
    )
    visit.run("UPDATE projects SET updated = ? WHERE id = ?", RIGHT_NOW, project)
    return sha


def note(visit: Visit, kind: str, target: int, text: str) -> None:
    """Add a system note about the visitor's action to an `issue` or a `merge`."""
    visit.run(
        f"INSERT INTO comments ({kind}, author, body, created, system) VALUES (?, ?, ?, ?, 1)",
        *(target, visit.signed_in()["id"], text, RIGHT_NOW),
    )
    visit.run(f"UPDATE {kind}s SET updated = ? WHERE id = ?", RIGHT_NOW, target)


def comment(visit: Visit, kind: str, target: int, text: str) -> None:
    """Add a comment by the visitor to an `issue` or a `merge`."""
    visit.run(
        f"INSERT INTO comments ({kind}, author, body, created) VALUES (?, ?, ?, ?)",
        *(target, visit.signed_in()["id"], text, RIGHT_NOW),
    )
    visit.run(f"UPDATE {kind}s SET updated = ? WHERE id = ?", RIGHT_NOW, target)


def delete_comment(visit: Visit, kind: str, target: int, number: int) -> None:
    """Delete the visitor's own comment on an `issue` or a `merge`.

    Raises:
        Refused: if the visitor hasn't written such a comment.
    """
    own = (number, target, visit.signed_in()["id"])
    where = f"id = ? AND {kind} = ? AND author = ? AND NOT system"
    if not visit.all(f"SELECT id FROM comments WHERE {where}", *own):
        raise Refused("Only their author can delete comments.")
    visit.run(f"DELETE FROM comments WHERE {where}", *own)


def comments_on(visit: Visit, kind: str, target: int) -> list[sqlite3.Row]:
    """Return the comments on an `issue` or a `merge`, in order."""
    return visit.all(
        "SELECT comments.*, name, full_name FROM comments JOIN accounts ON accounts.id = author"
        f" WHERE {kind} = ? ORDER BY comments.created, comments.id",
        target,
    )
