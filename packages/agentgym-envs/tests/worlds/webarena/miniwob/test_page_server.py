"""Tests of the server of MiniWoB++'s pages."""

from __future__ import annotations

import http.client
import multiprocessing
from collections.abc import Iterator

import pytest
from agentgym_envs.worlds.webarena.miniwob import page_server
from agentgym_envs.worlds.webarena.miniwob.page_server import PageServer
from dev_packages import require_packages
from gymnasium.error import DependencyNotInstalled
from patience import PATIENCE

require_packages("miniwob")


@pytest.fixture
def server() -> Iterator[PageServer]:
    server = page_server.enter()
    yield server
    page_server.leave(server)


def status(server: PageServer, path: str) -> int:
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE)
    connection.request("GET", path)
    answer = connection.getresponse().status
    connection.close()
    return answer


def test_the_files_of_pages_are_served_and_nothing_else(server: PageServer) -> None:
    assert status(server, "/miniwob/click-button.html") == 200
    assert status(server, "/core/core.js?x=1") == 200
    for path in (
        "/",
        "/miniwob/",
        "/../__init__.py",
        "/%2e%2e/environment.py",
        "/miniwob/../../registration.py",
        "/no.js",
    ):
        assert status(server, path) == 404, path


def test_a_process_has_one_server_until_its_last_user_leaves(server: PageServer) -> None:
    other = page_server.enter()
    assert other is server
    page_server.leave(other)
    assert status(server, "/core/core.css") == 200


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_its_own_server(server: PageServer) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        own = page_server.enter()
        sender.send((own is server, status(own, "/core/core.css")))
        page_server.leave(own)

    process = context.Process(target=child)
    process.start()
    assert receiver.recv() == (False, 200)
    process.join()


def test_a_missing_package_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyNotInstalled, match=r"The package miniwob is missing\. Install it: .*miniwob"):
        page_server.html_folder()
