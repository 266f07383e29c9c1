"""Tasks that edit files in the web editor and commit them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.code.data_files import MISSPELT
from agentgym_envs.worlds.webarena.sites.code.task_parts import about, ask, projects, template, to_project
from agentgym_envs.worlds.webarena.sites.tasks import Case, Step, both, click, fill, rows, stop

_DEFAULT = re.compile(r"`limit`: how many entries it keeps, (\d+) by default")
_PARTS = ("a plug-in for editors", "a page of statistics", "a test server", "sample data", "a command for backups")
_MESSAGES = ("List one more part", "Complete the list of parts", "Update the read-me", "Mention what was forgotten")
_OF_PATH = (
    "SELECT path, text FROM files JOIN contents ON contents.id = content WHERE project = ? AND path LIKE ?"
    " ORDER BY path"
)


def _edited(project: int, path: str, text: str) -> dict[str, Any]:
    """Judge that a file has this text, whatever blanks end its lines, and that no other file has changed."""
    wanted = "\n".join(line.rstrip(" ") for line in text.splitlines()).rstrip()
    return rows("gitlab", "SELECT project, path, text FROM changed_files ORDER BY 1, 2", (project, path, wanted))


def _to_file(row: sqlite3.Row, path: str) -> list[Step]:
    """Navigate from any page to a file of a project."""
    return [*to_project(row), *(click("link", part) for part in path.split("/"))]


def _editing(row: sqlite3.Row, path: str, text: str, *message: str) -> list[Step]:
    """Return the plan that replaces the text of a file."""
    typed = [fill("textbox", "Content", text), *(fill("textbox", "Commit message", words) for words in message)]
    return [*_to_file(row, path), click("link", "Edit file"), *typed, click("button", "Commit changes"), stop()]


def _files(db: sqlite3.Connection, random: Random, pattern: str) -> Iterator[tuple[sqlite3.Row, str, str]]:
    """Yield (project, path, text) of the files that the visitor may edit."""
    for row in projects(db, random, 30):
        found: Sequence[sqlite3.Row] = ask(db, random, _OF_PATH, row["project_id"], pattern)
        yield from ((row, file["path"], file["text"]) for file in found)


@template(
    "set-default",
    "The default of `limit` that {{path}} in {{project}} gives is out of date: it is {{number}} now. Correct the file"
    " on the default branch, and change nothing else in it.",
)
def set_default(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Change a value in a file."""
    for row, path, text in _files(db, random, "docs/%.md"):
        found = _DEFAULT.search(text)
        if found is None:
            continue
        number = random.choice([n for n in range(20, 900, 5) if str(n) != found[1]])
        after = text[: found.start(1)] + str(number) + text[found.end(1) :]
        values = {"path": path, "project": row["place"], "number": number}
        done = _edited(row["project_id"], path, after)
        yield Case(values, about(f"project:{row['place']}"), done, _editing(row, path, after))


@template(
    "readme-part",
    'Add "{{part}}" as the last entry to the list of parts in the README.md of {{project}}. The commit\'s message shall'
    ' be "{{message}}".',
)
def readme_part(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Add a line to a list in a file."""
    for row, path, text in _files(db, random, "README.md"):
        part, message = random.choice(_PARTS), random.choice(_MESSAGES)
        before, _, after = text.partition("\n\n## Help\n")
        if not after:
            continue
        changed = f"{before}\n- {part}\n\n## Help\n{after}"
        last = (
            f"SELECT message FROM commits WHERE project = {row['project_id']} AND path = 'README.md'"
            " ORDER BY id DESC LIMIT 1"
        )
        done = both(_edited(row["project_id"], path, changed), rows("gitlab", last, (message,)))
        values = {"part": part, "project": row["place"], "message": message}
        yield Case(values, about(f"project:{row['place']}"), done, _editing(row, path, changed, message))


@template(
    "fix-typo",
    "There is a misspelt word in the CHANGELOG.md of {{project}}. Correct it, and change nothing else in that file.",
    held_out=True,
)
def fix_typo(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find and correct a typo."""
    for row, path, text in _files(db, random, "CHANGELOG.md"):
        corrected = text
        for right, wrong in MISSPELT:
            corrected = corrected.replace(wrong, right)
        if corrected != text:
            done = _edited(row["project_id"], path, corrected)
            yield Case(
                {"project": row["place"]}, about(f"project:{row['place']}"), done, _editing(row, path, corrected)
            )


TEMPLATES = (set_default, readme_part, fix_typo)
