"""Queries of the index for episodes: filters, rows and facets."""

from __future__ import annotations

import json
import re
import sqlite3
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from agentgym_eval.storage.annotations import Annotation
from agentgym_eval.viewer.index.annotations import (
    ANNOTATED,
    MATCHING,
    NOT_ANNOTATED,
    SAME,
    WITH_ANY,
    WITH_LABEL,
    WITHOUT,
)
from agentgym_eval.viewer.index.filters import FilterSet, Listing, search_terms
from agentgym_eval.viewer.index.links import Address

_MAX_INTEGER = 2**63 - 1
"""The largest SQLite integer."""
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
    "cause": "e.cause",
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
    "decoding": "f.decoding",
    "env": "e.env",
    "split": "e.split",
    "task": "e.task",
    "category": "e.category",
    "difficulty": "e.difficulty",
    "policy": "e.policy",
    "stop": "e.stop",
    "cause": "e.cause",
    "tokens": "e.tokens",
}
OUTCOMES = {"yes": "e.success = 1", "no": "e.success = 0", "failed": "e.stop = 'failed'"}
_CHOICES = {"success": OUTCOMES}
FACETS = ("env", "split", "category", "difficulty", "policy", "stop", "cause", "run", "part", "tokens")
"""Filters with few enough values to offer as a choice."""


@dataclass(frozen=True, slots=True)
class Filters(FilterSet):
    """Filters of episodes. Without `sort`, the most recently written file comes first."""

    SORTS = _SORTS
    CHOICES = _CHOICES

    run: str = ""
    file: str = ""
    part: str = ""
    """Part of the run: played, evaluation, rollouts or data."""
    step: int | None = None
    decoding: str = ""
    env: str = ""
    split: str = ""
    task: str = ""
    category: str = ""
    difficulty: int | None = None
    policy: str = ""
    stop: str = ""
    cause: str = ""
    """Kind of `FailureCause`."""
    tokens: str = ""
    """Recorded token data: `kept` for text, advantage and entropy; `sampled` for ids and log-probabilities."""
    success: str = ""
    """`yes`, `no`, or `failed` for episodes that ended with an error."""
    turns_from: int | None = None
    turns_to: int | None = None
    label: str = ""
    """A label that a reader gave, `*` for any annotation, or `!*` for none."""
    text: str = ""
    """Words that must all occur in observations or replies, or in the annotation; the last one may be a prefix, "in
    quotes" is a phrase.
    """


@dataclass(frozen=True, slots=True)
class Row:
    """An episode in the list of episodes."""

    address: Address
    part: str
    step: int | None
    decoding: str
    env: str
    split: str
    task: str
    category: str
    difficulty: int
    policy: str
    sample: int
    turns: int
    """Number of actions."""
    invalid: int
    """Number of actions that the environment rejected."""
    stop: str
    score: float | None
    success: bool | None
    cause: str | None
    """Kind of its `FailureCause`; None for a success and an episode that broke."""
    cause_turn: int | None
    tokens: str
    """As in `Filters`; empty if no token data was recorded."""
    annotation: Annotation
    """Without labels and note if there is none."""

    @property
    def filter_values(self) -> dict[str, str | int | float | list[str] | None]:
        """The values to filter and sort by, by the names of `Filters`: for lists filtered in the browser."""
        location = {"run": self.address.run, "file": self.address.file, "number": self.address.number}
        outcome = "failed" if self.success is None else "yes" if self.success else "no"
        other = ("address", "annotation")
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in other}
        annotated = [ANNOTATED] if self.annotation != Annotation() else []
        return location | values | {"success": outcome, "label": [*annotated, *self.annotation.labels]}


_FROM = "FROM episodes e JOIN files f ON f.id = e.file"
_ROWS = (
    "SELECT e.*, f.run, f.slug, f.part, f.step, f.decoding, a.labels, a.note, a.written "
    f"{_FROM} LEFT JOIN annotations a ON {SAME}"
)


def listing(database: sqlite3.Connection, filters: Filters) -> Listing[Row]:
    """Return the page of episodes that `filters` selects."""
    where, values = _where(filters)
    _find_hits(database, filters)
    (total,) = database.execute(f"SELECT count(*) {_FROM} {where}", values).fetchone()
    page = database.execute(
        f"SELECT e.id {_FROM} {where} {_order(filters)} LIMIT ? OFFSET ?",
        (*values, filters.size, (filters.page - 1) * filters.size),
    )
    ids = [row_id for (row_id,) in page]  # sorting ids alone takes a fraction of the time of sorting whole rows
    rows = rows_by_id(database, ids)
    return Listing([rows[row_id] for row_id in ids if row_id in rows], total, filters)


def ordered_ids(database: sqlite3.Connection, filters: Filters, including: int | None = None) -> array[int]:
    """Return the ids of all episodes that match `filters`, in their order.

    Args:
        database: The index.
        filters: The filters and the order; their page is ignored.
        including: The id of an episode that is part of the result even if it doesn't match.
    """
    where, values = _where(filters)
    if where and including is not None:
        where, values = f"{where} OR e.id = ?", [*values, including]
    _find_hits(database, filters)
    found = database.execute(f"SELECT e.id {_FROM} {where} {_order(filters)}", values)
    return array("q", (row[0] for row in found))


def rows_by_id(database: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Row]:
    """Return the rows of the episodes with these ids, without those that have been deleted."""
    marks = ", ".join("?" * len(ids))
    return {row["id"]: make_row(row) for row in database.execute(f"{_ROWS} WHERE e.id IN ({marks})", ids)}


def _find_hits(database: sqlite3.Connection, filters: Filters) -> None:
    """Search once for the text of `filters`; the conditions of `_where` refer to the hits."""
    if terms := fts_terms(filters.text):
        database.execute("CREATE TEMP TABLE IF NOT EXISTS hits (id INTEGER PRIMARY KEY)")
        database.execute("DELETE FROM hits")
        query = " AND ".join(terms)
        database.execute("INSERT INTO hits SELECT rowid FROM words WHERE words MATCH ?", (query,))
        database.execute(f"INSERT OR IGNORE INTO hits {MATCHING}", (query,))


def _order(filters: Filters) -> str:
    direction = "DESC" if filters.sort.startswith("-") else ""
    return f"ORDER BY {_SORTS[filters.sort.removeprefix('-')]} {direction} NULLS LAST, e.id"


def facets(database: sqlite3.Connection, run: str) -> dict[str, list[tuple[str, int]]]:
    """Return, for each of `FACETS`, its values among the episodes of a run (or all) with their counts."""
    counts = database.execute(
        "SELECT c.facet, c.value, sum(c.episodes) FROM counts c JOIN files f ON f.id = c.file "
        "WHERE ? IN ('', f.run) GROUP BY c.facet, c.value "
        "UNION ALL SELECT 'run', run, sum(lines - damaged - repeated) FROM files GROUP BY run "
        "UNION ALL SELECT 'part', part, sum(lines - damaged - repeated) FROM files WHERE ? IN ('', run) GROUP BY part "
        "ORDER BY 1, 2",
        (run, run),
    )
    values: dict[str, list[tuple[str, int]]] = {name: [] for name in FACETS}
    for name, value, episodes in counts:
        values[name].append((str(value), episodes))
    return values


def find_row(database: sqlite3.Connection, address: Address) -> sqlite3.Row | None:
    """Return the database row of one episode, with its position in its file; None if there is none."""
    if abs(address.number) > _MAX_INTEGER:
        return None
    return database.execute(
        f"{_ROWS} WHERE f.run = ? AND f.slug = ? AND e.number = ?",
        (address.run, address.file, address.number),
    ).fetchone()


def make_row(record: sqlite3.Row) -> Row:
    """Convert a database row to a `Row`."""
    same = ("part", "step", "decoding", "env", "split", "task", "category", "difficulty", "policy", "sample")
    played = ("turns", "invalid", "stop", "score", "cause", "cause_turn", "tokens")
    return Row(
        address=Address(record["run"], record["slug"], record["number"]),
        success=None if record["success"] is None else bool(record["success"]),
        annotation=_annotation(record),
        **{name: record[name] for name in (*same, *played)},
    )


def _annotation(record: sqlite3.Row) -> Annotation:
    if record["labels"] is None:
        return Annotation()
    return Annotation(tuple(json.loads(record["labels"])), record["note"], record["written"])


def _where(filters: Filters) -> tuple[str, list[Any]]:
    """Build the WHERE clause and its parameters."""
    conditions: list[str] = []
    values: list[Any] = []
    for name, column in _EQUAL.items():
        if (value := getattr(filters, name)) not in ("", None):
            conditions.append(f"{column} = ?")
            values.append(value)
    for condition, value in (("e.turns >= ?", filters.turns_from), ("e.turns <= ?", filters.turns_to)):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if filters.success:
        conditions.append(OUTCOMES[filters.success])
    if filters.label in (ANNOTATED, NOT_ANNOTATED):
        conditions.append(WITH_ANY if filters.label == ANNOTATED else WITHOUT)
    elif filters.label:
        conditions.append(WITH_LABEL)
        values.append(filters.label)
    if fts_terms(filters.text):
        conditions.append("e.id IN (SELECT id FROM hits)")
    return (f"WHERE {' AND '.join(conditions)}" if conditions else ""), values


def fts_terms(text: str) -> list[str]:
    """Convert a search text to FTS5 terms: each is quoted, so no input is a syntax error; the last is a prefix."""
    terms = [f'"{part}"' for part in search_terms(text.replace("\0", " ")) if re.search(r"\w", part)]
    if terms and not text.rstrip().endswith('"'):
        terms[-1] += "*"
    return terms
