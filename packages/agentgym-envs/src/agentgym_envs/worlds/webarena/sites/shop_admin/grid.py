"""Admin tables: records with a filter form, sortable columns and pagination."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_envs.worlds.webarena.sites.dates import iso_day
from agentgym_envs.worlds.webarena.sites.shop_admin.dashboard import cents, count
from agentgym_envs.worlds.webarena.sites.web import Visit, pages

Option = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    label: str
    key: str = ""
    """The selected value to sort by; empty if the column isn't sortable."""
    right: bool = False
    """Whether to align right, as for numbers."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A field of the filter form."""

    key: str
    label: str
    sql: str
    """A condition with one `?`; empty for a choice that only changes how the list is generated."""
    kind: Literal["words", "choice", "day", "money", "count"] = "words"
    options: tuple[Option, ...] = ()
    """For a choice: pairs of value and label."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The definition of a list."""

    select: str
    """`SELECT ... FROM ...` with an `id` and without a condition."""
    columns: tuple[Column, ...]
    filters: tuple[Filter, ...]
    order: str
    """The key of the default sort column."""
    down: bool = True
    """Whether the default order is descending."""
    size: int = 15
    where: str = ""
    """A condition that always applies."""
    group: str = ""
    """`GROUP BY ...`, if the rows are aggregates."""
    totals: tuple[str, ...] = ()
    """Names of the selected values that are summed below the table."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a list, for the macros of `grid.html`."""

    grid: Grid
    rows: Sequence[sqlite3.Row]
    pages: Mapping[str, int]
    chosen: Mapping[str, str]
    """Current values of the filter form."""
    options: Mapping[str, Sequence[Option]]
    sort: str
    down: bool
    errors: Sequence[str]
    totals: Mapping[str, int]
    """Sums over all pages."""


def listing(visit: Visit, grid: Grid, options: Mapping[str, Sequence[Option]] | None = None) -> Listing:
    """Return the requested page of the list; `options` are the choices that come from the database."""
    offered = {part.key: (options or {}).get(part.key, part.options) for part in grid.filters}
    conditions, values, errors = _conditions(visit, grid, offered)
    where = " WHERE " + " AND ".join(conditions) if conditions else ""
    select = f"{grid.select}{where} {grid.group}"
    sums = ", ".join(["count(*)", *(f"total({name})" for name in grid.totals)])
    total, *summed = visit.one(f"SELECT {sums} FROM ({select})", *values)
    shown = pages(total, grid.size, visit.number("page"))
    columns = {column.key: column for column in grid.columns if column.key}
    asked = visit.text("sort") in columns
    column = columns[visit.text("sort") if asked else grid.order]
    down = visit.text("dir") == "desc" if asked else grid.down
    order = f" ORDER BY {column.key} {'DESC' if down else 'ASC'}, id {'DESC' if down else 'ASC'}"
    rows = visit.all(f"SELECT * FROM ({select}){order} LIMIT ? OFFSET ?", *values, shown["size"], shown["offset"])
    default = column.key == grid.order and down == grid.down
    order_read = {} if default else {"sort": column.key, "dir": "desc" if down else "asc"}
    visit.canonical(**_read(visit, grid, offered), **order_read)
    chosen = {part.key: visit.text(part.key, 100) for part in grid.filters}
    totals = {name: int(value) for name, value in zip(grid.totals, summed, strict=True)}
    return Listing(grid, rows, shown, chosen, offered, column.key, down, errors, totals)


def _conditions(
    visit: Visit, grid: Grid, offered: Mapping[str, Sequence[Option]]
) -> tuple[list[str], list[Any], list[str]]:
    """Return the conditions of the filters in use, their values, and errors in the input."""
    conditions: list[str] = [grid.where] if grid.where else []
    values: list[Any] = []
    errors: list[str] = []
    for part in grid.filters:
        text = visit.text(part.key, 100)
        if not text or not part.sql:
            continue
        value = _value(part, text, offered[part.key])
        if value is None:
            errors.append(f"{part.label}: {text!r} isn't {_WANTED[part.kind]}; this filter was left out.")
        else:
            conditions.append(f"({part.sql})")
            values.append(value)
    return conditions, values, errors


def _read(visit: Visit, grid: Grid, offered: Mapping[str, Sequence[Option]]) -> dict[str, Any]:
    """Return the filters in use as the list understands them: words in lower case, since `LIKE` ignores it."""
    read: dict[str, Any] = {}
    for part in grid.filters:
        text = visit.text(part.key, 100)
        value = _value(part, text, offered[part.key]) if text else None
        if value is not None:
            read[part.key] = text.lower() if part.kind == "words" else value
    return read


_WANTED = {
    "words": "a text",
    "choice": "one of the choices",
    "day": "a date such as 2025-03-31 or 3/31/2025",
    "money": "an amount such as 24.50",
    "count": "a whole number",
}


def _value(part: Filter, text: str, options: Sequence[Option]) -> Any:
    match part.kind:
        case "words":
            escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            return f"%{escaped}%"
        case "choice":
            return text if any(text == value for value, _ in options) else None
        case "day":
            return iso_day(text)
        case "money":
            return cents(text)
        case "count":
            return count(text)
