"""Questions to the index: filters of episodes, and the rows that pass them."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass, fields
from typing import Any

from agentgym_eval.viewer.index.filters import FilterSet, Listing, looked_for
from agentgym_eval.viewer.index.links import Address

_LARGEST = 2**63 - 1
"""Integer that SQLite knows."""
_SORTS = {
    "": "f.mtime DESC, e.file",
    "number": "e.number",
    "task": "e.task",
    "env": "e.env",
    "category": "e.category",
    "policy": "e.policy",
    "run": "f.run",
    "step": "f.step",
    "stop": "e.stop",
    "turns": "e.turns",
    "invalid": "e.invalid",
    "score": "e.score",
    "success": "e.success",
}
_EQUAL = {
    "run": "f.run",
    "file": "f.slug",
    "part": "f.part",
    "step": "f.step",
    "manner": "f.manner",
    "env": "e.env",
    "split": "e.split",
    "task": "e.task",
    "category": "e.category",
    "difficulty": "e.difficulty",
    "policy": "e.policy",
    "stop": "e.stop",
    "tokens": "e.tokens",
}
OUTCOMES = {"yes": "e.success = 1", "no": "e.success = 0", "failed": "e.stop = 'failed'"}
_CHOICES = {"success": OUTCOMES}
FACETS = ("env", "split", "category", "difficulty", "policy", "stop", "run", "part", "tokens")
"""Filters whose values are few enough to choose from."""


@dataclass(frozen=True, slots=True)
class Filters(FilterSet):
    """Which episodes, in which order: without `sort` the file first that was written last."""

    SORTS = _SORTS
    CHOICES = _CHOICES

    run: str = ""
    file: str = ""
    part: str = ""
    """Of its run: played, evaluation, rollouts or data."""
    step: int | None = None
    manner: str = ""
    env: str = ""
    split: str = ""
    task: str = ""
    category: str = ""
    difficulty: int | None = None
    policy: str = ""
    stop: str = ""
    tokens: str = ""
    """What is known of the tokens: `kept` for text, advantage and entropy; `sampled` for ids and log-probabilities."""
    success: str = ""
    """`yes`, `no`, or `failed` for those that broke."""
    turns_from: int | None = None
    turns_to: int | None = None
    text: str = ""
    """Words that all occur in what was said and shown, the last one perhaps begun only; "in quotes" side by side."""


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of an episode."""

    address: Address
    part: str
    step: int | None
    manner: str
    env: str
    split: str
    task: str
    category: str
    difficulty: int
    policy: str
    sample: int
    turns: int
    """Actions."""
    invalid: int
    """Actions that the world didn't understand."""
    stop: str
    score: float | None
    success: bool | None
    tokens: str
    """As in `Filters`; empty where nothing is known."""

    @property
    def facts(self) -> dict[str, str | int | float | None]:
        """What filters and sorting look at, by the names of `Filters`: for lists that no server filters."""
        at = {"run": self.address.run, "file": self.address.file, "number": self.address.number}
        outcome = "failed" if self.success is None else "yes" if self.success else "no"
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "address"}
        return at | plain | {"success": outcome}


_FROM = "FROM episodes e JOIN files f ON f.id = e.file"
_ROWS = f"SELECT e.*, f.run, f.slug, f.part, f.step, f.manner {_FROM}"


def listing(database: sqlite3.Connection, filters: Filters) -> Listing[Row]:
    """The page of episodes that `filters` asks for."""
    where, values = _where(filters)
    if words := terms(filters.text):  # asked once, as both questions below need it
        database.execute("CREATE TEMP TABLE hits (id INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO hits SELECT rowid FROM words WHERE words MATCH ?", (" AND ".join(words),))
    (total,) = database.execute(f"SELECT count(*) {_FROM} {where}", values).fetchone()
    direction = "DESC" if filters.sort.startswith("-") else ""
    order = f"{_SORTS[filters.sort.removeprefix('-')]} {direction} NULLS LAST, e.id"
    page = database.execute(
        f"SELECT e.id {_FROM} {where} ORDER BY {order} LIMIT ? OFFSET ?",
        (*values, filters.size, (filters.page - 1) * filters.size),
    )
    ids = [identity for (identity,) in page]  # sorted alone, which takes a fraction of sorting whole rows
    marks = ", ".join("?" * len(ids))
    found = {row["id"]: row for row in database.execute(f"{_ROWS} WHERE e.id IN ({marks})", ids)}
    return Listing([make_row(found[identity]) for identity in ids if identity in found], total, filters)


def facets(database: sqlite3.Connection, run: str) -> dict[str, list[tuple[str, int]]]:
    """For each of `FACETS` the values that the episodes of a run, or of all, have, and how many have each."""
    counted = database.execute(
        "SELECT c.facet, c.value, sum(c.episodes) FROM counts c JOIN files f ON f.id = c.file "
        "WHERE ? IN ('', f.run) GROUP BY c.facet, c.value "
        "UNION ALL SELECT 'run', run, sum(lines - damaged) FROM files GROUP BY run "
        "UNION ALL SELECT 'part', part, sum(lines - damaged) FROM files WHERE ? IN ('', run) GROUP BY part "
        "ORDER BY 1, 2",
        (run, run),
    )
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in FACETS}
    for name, value, episodes in counted:
        found[name].append((str(value), episodes))
    return found


def only(database: sqlite3.Connection, address: Address) -> sqlite3.Row | None:
    """The row of one episode, with its place in its file; None when there is none."""
    if address.number > _LARGEST:
        return None
    return database.execute(
        f"{_ROWS} WHERE f.run = ? AND f.slug = ? AND e.number = ?",
        (address.run, address.file, address.number),
    ).fetchone()


def make_row(found: sqlite3.Row) -> Row:
    """A row of the database as a value."""
    same = ("part", "step", "manner", "env", "split", "task", "category", "difficulty", "policy", "sample")
    return Row(
        address=Address(found["run"], found["slug"], found["number"]),
        success=None if found["success"] is None else bool(found["success"]),
        **{name: found[name] for name in (*same, "turns", "invalid", "stop", "score", "tokens")},
    )


def _where(filters: Filters) -> tuple[str, list[Any]]:
    tests: list[str] = []
    values: list[Any] = []
    for name, column in _EQUAL.items():
        if (value := getattr(filters, name)) not in ("", None):
            tests.append(f"{column} = ?")
            values.append(value)
    for test, value in (("e.turns >= ?", filters.turns_from), ("e.turns <= ?", filters.turns_to)):
        if value is not None:
            tests.append(test)
            values.append(value)
    if filters.success:
        tests.append(OUTCOMES[filters.success])
    if terms(filters.text):
        tests.append("e.id IN (SELECT id FROM hits)")
    return (f"WHERE {' AND '.join(tests)}" if tests else ""), values


def terms(text: str) -> list[str]:
    """What is looked for, in FTS5's words, that no text can break: each quoted, the last word open at its end."""
    asked = [f'"{part}"' for part in looked_for(text.replace("\0", " ")) if re.search(r"\w", part)]
    if asked and not text.rstrip().endswith('"'):
        asked[-1] += "*"
    return asked
