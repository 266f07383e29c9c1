from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.browser.browser import Browser, acquire
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts
from agentgym_envs.worlds.webarena.browser.session import Session

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import `pages_server` and `page_agent`

from page_agent import PageAgent
from pages_server import SHOP, PagesServer

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="package")
def kept_server() -> Iterator[PagesServer]:
    with PagesServer() as server:
        yield server


@pytest.fixture(scope="package")
def kept_browser(requires_browser: None, kept_server: PagesServer) -> Iterator[Browser]:
    browser = acquire(
        {
            "shop.example": kept_server.address,
            "wiki.example": kept_server.address,
            "port.example:8080": kept_server.address,
            "127.0.0.2": kept_server.address,
            "down.example": "127.0.0.1:1",
        }
    )
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
def run(browser: Browser) -> Run:
    """Runs a coroutine on the browser's loop."""
    return lambda coroutine: browser.loop.run(coroutine, 60)


@pytest.fixture
def timeouts() -> IdleTimeouts:
    """How long `session` waits for pages; `pages_server.impatient` shortens it."""
    return IdleTimeouts()


@pytest.fixture
def session(browser: Browser, run: Run, timeouts: IdleTimeouts) -> Iterator[Session]:
    """A fresh session."""
    session = run(browser.session(timeouts=timeouts))
    yield session
    run(session.close())


@pytest.fixture
def visit(session: Session, run: Run) -> Callable[[str], list[str]]:
    """Opens a page of the shop; returns the notices."""

    def visit(path: str) -> list[str]:
        assert run(session.goto(SHOP + path)) is None
        run(session.settle())
        return session.take_notices()

    return visit


@pytest.fixture
def click(session: Session, run: Run) -> Callable[[str], list[str]]:
    """Clicks what a CSS selector finds in the active tab; returns the notices."""

    def click(selector: str) -> list[str]:
        run(session.guard(session.tab.page.click(selector, no_wait_after=True)))
        run(session.settle())
        return session.take_notices()

    return click


@pytest.fixture
def agent(server: PagesServer, session: Session, run: Run) -> PageAgent:
    """Plays on pages of the server."""
    return PageAgent(server, session, run)
