from __future__ import annotations

import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.directory import EPISODE_HEADER, PLACES, SESSION_COOKIE
from agentgym_envs.worlds.webarena.sites.server import Web
from agentgym_envs.worlds.webarena.sites.store import database
from starlette.testclient import TestClient


class Visitor(TestClient):
    """Asks one site for pages in an episode of its own; `rows` looks into the database behind them."""

    def __init__(self, web: Web, key: str, room: Path, *, signed_in: bool) -> None:
        self.place = PLACES[key]
        token = secrets.token_hex(16)
        self.folder = room / token
        self.folder.mkdir()
        if self.place.database is not None:
            shutil.copyfile(database(self.place.database), self.folder / f"{self.place.database}.sqlite")
        account = self.place.account if signed_in else None
        super().__init__(
            web,
            base_url=self.place.url,
            headers={EPISODE_HEADER: token},
            cookies={SESSION_COOKIE: account.session} if account else None,
        )

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / f"{self.place.database}.sqlite")) as db:
            return db.execute(sql, values).fetchall()


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[Callable[..., Visitor]]:
    """`browse(key)`: a visitor to that site in a fresh episode, signed in as its account unless `signed_in=False`.

    Only that site is served, so that no site's tests need the others.
    """
    with ExitStack() as visits:

        def visitor(key: str, *, signed_in: bool = True) -> Visitor:
            visit = Visitor(Web(tmp_path, [key]), key, tmp_path, signed_in=signed_in)
            visits.callback(shutil.rmtree, visit.folder)
            visits.callback(visit.close)
            return visit

        yield visitor
