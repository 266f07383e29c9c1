"""Tests of the server process of the sites: start, restart, copies of databases, and cleanup."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.sites import process
from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.process import Copy, SitesServer
from browser_processes import alive
from patience import PATIENCE, eventually


@pytest.fixture(scope="module")
def server() -> Iterator[SitesServer]:
    server = process.enter()
    yield server
    process.leave(server)


@pytest.fixture
def copy(server: SitesServer) -> Iterator[Copy]:
    server.ensure()
    copy = server.open()
    yield copy
    copy.discard()


def get_page(server: SitesServer, copy: Copy, key: str = "homepage", path: str = "/") -> httpx.Response:
    account = PLACES[key].account
    cookies = {"session": account.session} if account else {}
    headers = {"Host": PLACES[key].host, "X-Episode": copy.token}
    with httpx.Client(headers=headers, cookies=cookies, follow_redirects=False, timeout=PATIENCE) as client:
        return client.get(f"http://127.0.0.1:{server.port}{path}")


@pytest.mark.parametrize("key", PLACES)
def test_every_site_serves_its_front_page(server: SitesServer, copy: Copy, key: str) -> None:
    answer = get_page(server, copy, key)
    assert answer.status_code == 200
    assert PLACES[key].title in answer.text


def test_unknown_episode_tokens_get_404(server: SitesServer) -> None:
    for token in ("", "0" * 32, "../..", "x" * 32):
        assert get_page(server, Copy(token, Path())).status_code == 404


def test_unknown_hosts_get_404(server: SitesServer, copy: Copy) -> None:
    headers = {"Host": "shop.example.evil", "X-Episode": copy.token}
    assert httpx.get(f"http://127.0.0.1:{server.port}/", headers=headers).status_code == 404


def test_killed_server_restarts_on_the_same_port(server: SitesServer, copy: Copy) -> None:
    port, pid = server.port, server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    server.ensure()
    assert (server.port, get_page(server, copy).status_code) == (port, 200)
    assert server.pid != pid


def test_copies_are_independent(server: SitesServer) -> None:
    copies = [server.open() for _ in range(16)]
    assert len({copy.token for copy in copies}) == 16
    for index, copy in enumerate(copies):
        with closing(sqlite3.connect(copy.files()["reddit"])) as db, db:
            db.execute("UPDATE accounts SET name = ? WHERE id = 1", (f"renamed-{index}",))
    for index, copy in enumerate(copies):
        with closing(sqlite3.connect(copy.files()["reddit"])) as db:
            assert db.execute("SELECT name FROM accounts WHERE id = 1").fetchone() == (f"renamed-{index}",)
        copy.discard()
        assert not copy.folder.exists()


_OWNER_SCRIPT = """
import os, sys
from agentgym_envs.worlds.webarena.sites import process
server = process.enter()
copy = server.open()
print(server.pid, server.port, copy.folder, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("ending", ["forgetful", "killed"])
def test_server_does_not_outlive_its_owner(ending: str) -> None:
    owner = subprocess.run(
        [sys.executable, "-c", _OWNER_SCRIPT, ending], capture_output=True, text=True, timeout=PATIENCE
    )
    pid, port, folder = owner.stdout.split()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE)
    eventually(lambda: not alive([int(pid)]))
    assert not Path(folder).exists()


def test_fork_does_not_affect_its_parents_server(server: SitesServer, copy: Copy) -> None:
    child = os.fork()
    if child == 0:
        copy.discard()
        process.leave(process.enter())
        try:
            server.ensure()
        except EnvFault:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert get_page(server, copy).status_code == 200
    assert copy.folder.exists()
