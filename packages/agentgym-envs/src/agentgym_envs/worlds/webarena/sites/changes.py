"""Judges what an episode has changed: the contents of rows at its end, compared with those at its beginning.

A site's `contents.sql` has views of what visitors see of rows, without time stamps, and `store` keeps the initial rows
of each view `NAME` in a table `initial_NAME`. Rows that were changed and restored therefore don't differ.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from agentgym_envs.worlds.webarena.sites.tasks import rows


def changed(
    site: str, view: str, *, new: Iterable[Sequence[Any]] = (), old: Iterable[Sequence[Any]] = ()
) -> dict[str, Any]:
    """Judge that exactly the rows `new` have come into a view of a site's database, and exactly `old` have gone.

    Args:
        site: The site's key.
        view: A view in `contents.sql` of the site's database.
        new: Whole rows, in ascending order.
        old: Whole rows, in ascending order.
    """
    query = (
        f"SELECT 'new', * FROM (SELECT * FROM {view} EXCEPT SELECT * FROM initial_{view} ORDER BY 1)"
        f" UNION ALL SELECT 'old', * FROM (SELECT * FROM initial_{view} EXCEPT SELECT * FROM {view} ORDER BY 1)"
    )
    return rows(site, query, *(("new", *row) for row in new), *(("old", *row) for row in old))


def edited(db: sqlite3.Connection, site: str, view: str, number: int, **values: Any) -> dict[str, Any]:
    """Judge that one row of a view has these values, and that nothing else in the view has changed.

    Args:
        db: A connection to the site's database as episodes begin with it.
        site: The site's key.
        view: A view in `contents.sql` of the site's database, with a column `id`.
        number: The row's `id`.
        **values: The new values by column.

    Raises:
        KeyError: If the view has no such column.
    """
    before = db.execute(f"SELECT * FROM {view} WHERE id = ?", (number,)).fetchone()
    columns = before.keys()
    if missing := values.keys() - set(columns):
        raise KeyError(f"{view} has no column {', '.join(sorted(missing))}.")
    after = [values.get(column, before[column]) for column in columns]
    return changed(site, view, new=[after], old=[tuple(before)])
