"""Tests of what all sites share: sessions and URLs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any


def test_new_session_gets_an_unused_id(browse: Callable[..., Any]) -> None:
    client = browse("shopping")
    account = {"name": "emma.holt", "password": "harbor-42"}
    assert client.post("/login", data=account).status_code == 200
    with closing(sqlite3.connect(client.folder / "shop.sqlite")) as db, db:
        db.execute("DELETE FROM sessions WHERE id = 'clerk'")  # as if the clerk had signed out of the administration
    assert client.post("/login", data=account).status_code == 200
    assert len(client.rows("SELECT * FROM sessions")) == 3


def test_urls_of_any_length_get_a_response(browse: Callable[..., Any]) -> None:
    client = browse("shopping")
    assert client.get(f"/product/{'9' * 1_900}").status_code == 404
    assert client.get(f"/product/{'9' * 5_000}").status_code == 414
