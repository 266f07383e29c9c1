"""Questions to the index: filters that come from an address and go back into one, and the rows that pass them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agentgym_eval.errors import UsageError, did_you_mean, listed
from agentgym_eval.viewer.links import Address

PAGE = 50
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
}
OUTCOMES = {"yes": "e.success = 1", "no": "e.success = 0", "failed": "e.stop = 'failed'"}
FACETS = ("env", "split", "category", "difficulty", "policy", "stop", "run", "part")
"""Filters whose values are few enough to choose from."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which episodes, in which order; empty text and None stand for all. Names are those of addresses."""

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
    success: str = ""
    """`yes`, `no`, or `failed` for those that broke."""
    turns_from: int | None = None
    turns_to: int | None = None
    text: str = ""
    """Words that all occur in what was said and shown, the last one perhaps begun only; "in quotes" side by side."""
    sort: str = ""
    """A column; with `-` before it the largest first. When empty the file first that was written last."""
    page: int = 1
    size: int = PAGE

    def __post_init__(self) -> None:
        if self.sort.removeprefix("-") not in _SORTS:
            raise UsageError(f"Nothing sorts by {self.sort}; there are {', '.join(filter(None, _SORTS))}.")
        if self.success not in ("", *OUTCOMES):
            raise UsageError(f"success is one of {', '.join(OUTCOMES)}, not {self.success}.")
        if self.page < 1 or not 1 <= self.size <= 1000:
            raise UsageError("page counts from 1, and size is from 1 to 1000.")

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filters:
        """The filters in an address; empty values are none.

        Raises:
            UsageError: for names that don't exist and values that can't be.
        """
        types = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in query.items():
            if name not in types:
                near = did_you_mean(name, list(types))
                raise UsageError(f"There is no filter {name[:50]}; there are {listed(list(types), 20)}.{near}")
            if value.strip():
                values[name] = value.strip() if types[name] == "str" else _number(name, value)
        return cls(**values)

    def query(self, **changes: str | int) -> dict[str, str | int]:
        """What of the filters isn't as it is anyway, for an address; `changes` replace some, and begin at page 1."""
        found = {field.name: getattr(self, field.name) for field in fields(self)} | {"page": 1} | changes
        plain = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, "") and value != plain[name]}


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

    @property
    def facts(self) -> dict[str, str | int | float | None]:
        """What filters and sorting look at, by the names of `Filters`: for lists that no server filters."""
        at = {"run": self.address.run, "file": self.address.file, "number": self.address.number}
        outcome = "failed" if self.success is None else "yes" if self.success else "no"
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "address"}
        return at | plain | {"success": outcome}


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of rows, and how many there are on all."""

    rows: list[Row]
    total: int
    filters: Filters

    @property
    def first(self) -> int:
        """The number of the first row, from 1; 0 where there is none."""
        return (self.filters.page - 1) * self.filters.size + 1 if self.rows else 0

    @property
    def pages(self) -> int:
        """How many pages there are, at least 1."""
        return max(1, -(-self.total // self.filters.size))


_FROM = "FROM episodes e JOIN files f ON f.id = e.file"
_ROWS = f"SELECT e.*, f.run, f.slug, f.part, f.step, f.manner {_FROM}"


def listing(database: sqlite3.Connection, filters: Filters) -> Listing:
    """The page of episodes that `filters` asks for."""
    where, values = _where(filters)
    if words := _match(filters.text):  # asked once, as both questions below need it
        database.execute("CREATE TEMP TABLE hits (id INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO hits SELECT rowid FROM words WHERE words MATCH ?", (words,))
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
        **{name: found[name] for name in (*same, "turns", "invalid", "stop", "score")},
    )


def _where(filters: Filters) -> tuple[str, list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    for name, column in _EQUAL.items():
        if (value := getattr(filters, name)) not in ("", None):
            terms.append(f"{column} = ?")
            values.append(value)
    for term, value in (("e.turns >= ?", filters.turns_from), ("e.turns <= ?", filters.turns_to)):
        if value is not None:
            terms.append(term)
            values.append(value)
    if filters.success:
        terms.append(OUTCOMES[filters.success])
    if _match(filters.text):
        terms.append("e.id IN (SELECT id FROM hits)")
    return (f"WHERE {' AND '.join(terms)}" if terms else ""), values


def _match(text: str) -> str:
    """A question to FTS5 that no text can break: every word and phrase quoted, the last word open at its end."""
    parts = [quoted or word for quoted, word in re.findall(r'"([^"]*)"|([^\s"]+)', text.replace("\0", " "))]
    asked = [f'"{part}"' for part in parts if re.search(r"\w", part)]
    if asked and not text.rstrip().endswith('"'):
        asked[-1] += "*"
    return " AND ".join(asked)


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII):
        raise UsageError(f"{name} is a whole number, not {value[:50]}.")
    return int(value)
