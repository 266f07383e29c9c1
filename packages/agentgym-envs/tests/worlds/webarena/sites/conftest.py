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


class SiteClient(TestClient):
    """A client of one site in its own episode; `rows` queries the site's database, `change` changes it."""

    def __init__(self, web: Web, key: str, root: Path, *, signed_in: bool) -> None:
        self.place = PLACES[key]
        token = secrets.token_hex(16)
        self.folder = root / token
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

    def change(self, sql: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.folder / f"{self.place.database}.sqlite")) as db, db:
            db.execute(sql, values)


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[Callable[..., SiteClient]]:
    """A function that returns a client of the site with the given key, signed in unless `signed_in=False`.

    Each client has a new episode. Only its site is served, so that the tests of a site don't need the others.
    """
    with ExitStack() as stack:

        def open_site(key: str, *, signed_in: bool = True) -> SiteClient:
            client = SiteClient(Web(tmp_path, [key]), key, tmp_path, signed_in=signed_in)
            stack.callback(shutil.rmtree, client.folder)
            stack.callback(client.close)
            return client

        yield open_site
