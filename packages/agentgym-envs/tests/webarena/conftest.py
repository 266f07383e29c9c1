from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.browser import Browser, acquire
from agentgym_envs.worlds.webarena.session import Session
from agentgym_envs.worlds.webarena.stillness import Patience
from gymnasium.error import DependencyNotInstalled

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import `pages_server`

from pages_server import PagesServer

QUICK = Patience(changing=0.4, loading=0.5, navigation=1.5)
"""For pages that never finish."""


@pytest.fixture(scope="package")
def kept_server() -> Iterator[PagesServer]:
    with PagesServer() as server:
        yield server


@pytest.fixture(scope="package")
def kept_browser(kept_server: PagesServer) -> Iterator[Browser]:
    browser = acquire(
        {
            "shop.example": kept_server.address,
            "wiki.example": kept_server.address,
            "port.example:8080": kept_server.address,
            "127.0.0.2": kept_server.address,
            "down.example": "127.0.0.1:1",
        }
    )
    try:
        browser.loop.run(browser.loop.run(browser.session(), 60).close(), 60)
    except DependencyNotInstalled as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    yield browser
    browser.release()


@pytest.fixture
def server(kept_server: PagesServer) -> Iterator[PagesServer]:
    """A web server on 127.0.0.1, empty at first; a test fills `server.pages`."""
    kept_server.clear()
    yield kept_server
    kept_server.clear()


@pytest.fixture
def browser(kept_browser: Browser) -> Browser:
    """A browser that is shared by the tests of this folder. For it the server is `shop.example` and `wiki.example` at
    every port, `127.0.0.2` where a secure origin is needed, and `port.example` at port 8080; nobody listens at
    `down.example`."""
    return kept_browser


@pytest.fixture
def run(browser: Browser) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on the browser's loop."""
    return lambda coroutine: browser.loop.run(coroutine, 60)


@pytest.fixture
def session(browser: Browser, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Iterator[Session]:
    """A fresh session with little patience."""
    session = run(browser.session(patience=QUICK))
    yield session
    run(session.close())
