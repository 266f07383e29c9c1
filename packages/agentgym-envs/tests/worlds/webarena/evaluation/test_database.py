"""Tests of scoring a task by queries on the database of a site."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.evaluation import database


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    file = tmp_path / "a shop#1.sqlite"
    with closing(sqlite3.connect(file)) as shop:
        shop.executescript("CREATE TABLE item (id INTEGER, name TEXT, price REAL);")
        shop.executemany("INSERT INTO item VALUES (?, ?, ?)", [(1, "tea", 2.5), (2, None, 3.0)])
        shop.commit()
    return {"shopping": file}


ALL_ROWS = "SELECT id, name, price FROM item ORDER BY id"


@pytest.mark.parametrize(
    ("query", "rows", "expected"),
    [
        (ALL_ROWS, [[1, "tea", 2.5], [2, None, 3]], 1),
        (ALL_ROWS, [[2, None, 3], [1, "tea", 2.5]], 0),
        (ALL_ROWS, [[1, "tea", 2.5]], 0),
        (ALL_ROWS, [], 0),
        ("SELECT name FROM item WHERE id > 5", [], 1),
        ("SELECT count(*) FROM item", [["2"]], 0),
    ],
)
def test_rows_must_match_in_order(files: dict[str, Path], query: str, rows: list[Any], expected: float) -> None:
    assert database.score([{"site": "shopping", "query": query, "rows": rows}], files) == expected


def test_every_query_must_match(files: dict[str, Path]) -> None:
    matching = {"site": "shopping", "query": "SELECT 1", "rows": [[1]]}
    assert database.score([matching, matching], files) == 1
    assert database.score([matching, {**matching, "rows": [[2]]}], files) == 0


def test_failing_queries_and_missing_databases_raise(files: dict[str, Path], tmp_path: Path) -> None:
    query = {"site": "shopping", "query": "SELECT wrong FROM item", "rows": []}
    with pytest.raises(EnvFault, match=r"site shopping .*no such column: wrong"):
        database.score([query], files)
    with pytest.raises(EnvFault, match="unable to open database file"):
        database.score([query], {"shopping": tmp_path / "nothing.sqlite"})
    assert not (tmp_path / "nothing.sqlite").exists()
    with pytest.raises(ValueError, match="There is no database of the site shopping; there are databases of no sites"):
        database.score([query], {})


def test_queries_are_read_only(files: dict[str, Path]) -> None:
    before = files["shopping"].read_bytes()
    with pytest.raises(EnvFault, match="readonly"):
        database.score([{"site": "shopping", "query": "DELETE FROM item", "rows": []}], files)
    assert files["shopping"].read_bytes() == before
