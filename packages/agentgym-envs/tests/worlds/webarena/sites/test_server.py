"""The frame around every page: sessions and addresses."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any


def test_a_new_session_is_never_one_that_there_is(browse: Callable[..., Any]) -> None:
    visit = browse("shopping")
    account = {"name": "emma.holt", "password": "harbor-42"}
    assert visit.post("/login", data=account).status_code == 200
    with closing(sqlite3.connect(visit.folder / "shop.sqlite")) as db, db:
        db.execute("DELETE FROM sessions WHERE id = 'clerk'")  # who signed out of the administration
    assert visit.post("/login", data=account).status_code == 200
    assert len(visit.rows("SELECT * FROM sessions")) == 3


def test_an_address_of_any_length_is_answered(browse: Callable[..., Any]) -> None:
    visit = browse("shopping")
    assert visit.get(f"/product/{'9' * 1_900}").status_code == 404
    assert visit.get(f"/product/{'9' * 5_000}").status_code == 414
