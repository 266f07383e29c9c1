"""What is in the sites' databases at the end: for each query, all rows, in order, must be the task's.

Files are opened for reading only. Our own tasks use it; WebArena's sites show their databases to nobody.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.site_urls import KEYS
from agentgym_envs.worlds.webarena.evaluation.fields import known, objects

_PATIENCE = 5.0  # seconds that a writer may keep a reader waiting


def score(queries: Sequence[Mapping[str, Any]], files: Mapping[str, Path]) -> float:
    """1.0 when every query gives exactly its rows, else 0.0.

    Raises:
        ValueError: when there is no file for a site that is asked about.
        EnvFault: when a database can't be read, or not with that query.
    """
    for query in queries:
        site = query["site"]
        if site not in files:
            raise ValueError(
                f"No database is known of the site {site}; there are those of {', '.join(files) or 'none'}."
            )
        if _rows(files[site], query["query"], site) != query["rows"]:
            return 0.0
    return 1.0


def _rows(file: Path, query: str, site: str) -> list[list[Any]]:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE)) as database:
            return [list(row) for row in database.execute(query)]
    except sqlite3.Error as error:
        raise EnvFault(f"The database of the site {site} ({file}) can't be asked {query!r}: {error}.") from error


def check(judged: Mapping[str, Any]) -> dict[str, Any]:
    """The queries of an `eval`, put in order. See `parts.Part`."""
    queries = objects(judged.get("database"), "eval.database")
    for number, query in enumerate(queries):
        field = f"eval.database[{number}]"
        known([str(query.get("site"))], KEYS, f"{field}.site")
        if not isinstance(query.get("query"), str):
            raise ValueError(f"`{field}.query` is {query.get('query')!r}; it must be SQL.")
        rows = query.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in cast("list[object]", rows)):
            raise ValueError(f"`{field}.rows` is {rows!r}; it must be a list of rows, which are lists.")
    return {"database": queries}


def count(judged: Mapping[str, Any]) -> int:
    """One for each query."""
    return len(judged["database"])
