"""The eval type `database`: each query on a site's final database must return exactly the task's rows, in order.

Files are opened read-only. Only our own tasks use it; WebArena's sites don't expose their databases.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.site_urls import KEYS
from agentgym_envs.worlds.webarena.evaluation.fields import check_known, object_list

_LOCK_TIMEOUT = 5.0  # seconds to wait for a writer's lock


def score(queries: Sequence[Mapping[str, Any]], files: Mapping[str, Path]) -> float:
    """Return 1.0 if every query returns exactly its rows, else 0.0.

    Raises:
        ValueError: if there is no file for a queried site.
        EnvFault: if a database can't be read or a query fails.
    """
    for query in queries:
        site = query["site"]
        if site not in files:
            raise ValueError(
                f"There is no database of the site {site}; there are databases of {', '.join(files) or 'no sites'}."
            )
        if _rows(files[site], query["query"], site) != query["rows"]:
            return 0.0
    return 1.0


def _rows(file: Path, query: str, site: str) -> list[list[Any]]:
    try:
        with closing(
            sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT)
        ) as database:
            return [list(row) for row in database.execute(query)]
    except sqlite3.Error as error:
        raise EnvFault(f"The query {query!r} on the database of the site {site} ({file}) failed: {error}.") from error


def check(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and normalize the queries of an `eval`. See `parts.Part`."""
    queries = object_list(evaluation.get("database"), "eval.database")
    for number, query in enumerate(queries):
        field = f"eval.database[{number}]"
        check_known([str(query.get("site"))], KEYS, f"{field}.site")
        if not isinstance(query.get("query"), str):
            raise ValueError(f"`{field}.query` is {query.get('query')!r}; it must be an SQL query.")
        rows = query.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in cast("list[object]", rows)):
            raise ValueError(f"`{field}.rows` is {rows!r}; it must be a list of rows, each a list.")
    return {"database": queries}


def count(evaluation: Mapping[str, Any]) -> int:
    """Return the number of queries."""
    return len(evaluation["database"])
