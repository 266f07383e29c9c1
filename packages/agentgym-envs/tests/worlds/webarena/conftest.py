from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.browser.browser import Browser, acquire
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.env import WebArena

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import `pages_server` and `page_agent`

from page_agent import PageAgent
from pages_server import SHOP, PagesServer

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def idle_envs(request: pytest.FixtureRequest, requires_browser: None) -> Iterator[SimpleQueue[WebArena]]:
    """A queue of environments that aren't in use, as many as the module's `CONCURRENT`; a parameter is their skin."""
    envs = [WebArena(skin=getattr(request, "param", "plain")) for _ in range(request.module.CONCURRENT)]
    queue: SimpleQueue[WebArena] = SimpleQueue()
    for env in envs:
        queue.put(env)
    yield queue
    for env in envs:
        env.close()


@pytest.fixture(scope="package")
def shared_server() -> Iterator[PagesServer]:
    with PagesServer() as server:
        yield server


@pytest.fixture(scope="package")
def shared_browser(requires_browser: None, shared_server: PagesServer) -> Iterator[Browser]:
    browser = acquire(
        {
            "shop.example": shared_server.address,
            "wiki.example": shared_server.address,
            "port.example:8080": shared_server.address,
            "127.0.0.2": shared_server.address,
            "down.example": "127.0.0.1:1",
        }
    )
    yield browser
    browser.release()


@pytest.fixture
def server(shared_server: PagesServer) -> Iterator[PagesServer]:
    """A web server on 127.0.0.1 without pages; tests fill `server.pages`."""
    shared_server.clear()
    yield shared_server
    shared_server.clear()


@pytest.fixture
def browser(shared_browser: Browser) -> Browser:
    """A browser that the tests of this folder share.

    It resolves `shop.example` and `wiki.example` at all ports, `port.example` at port 8080 and `127.0.0.2` (a secure
    origin) to the server. Connections to `down.example` are refused.
    """
    return shared_browser


@pytest.fixture
def run(browser: Browser) -> Run:
    """A function that runs a coroutine on the browser's event loop."""
    return lambda coroutine: browser.loop.run(coroutine, 60)


@pytest.fixture
def timeouts() -> IdleTimeouts:
    """The timeouts of `session`; `pages_server.short_timeouts` overrides them."""
    return IdleTimeouts()


@pytest.fixture
def session(browser: Browser, run: Run, timeouts: IdleTimeouts) -> Iterator[Session]:
    """A new browser session."""
    session = run(browser.session(timeouts=timeouts))
    yield session
    run(session.close())


@pytest.fixture
def visit(session: Session, run: Run) -> Callable[[str], list[str]]:
    """A function that opens a page of the shop and returns the notices."""

    def visit(path: str) -> list[str]:
        assert run(session.goto(SHOP + path)) is None
        run(session.settle())
        return session.take_notices()

    return visit


@pytest.fixture
def click(session: Session, run: Run) -> Callable[[str], list[str]]:
    """A function that clicks the element of a CSS selector in the active tab and returns the notices."""

    def click(selector: str) -> list[str]:
        run(session.guard(session.tab.page.click(selector, no_wait_after=True)))
        run(session.settle())
        return session.take_notices()

    return click


@pytest.fixture
def agent(server: PagesServer, session: Session, run: Run) -> PageAgent:
    """An agent on pages of the server."""
    return PageAgent(server, session, run)


@pytest.fixture(scope="module")
def running_browser(requires_browser: None, shared_server: PagesServer) -> Iterator[None]:
    """Keep the browser of `custom_env` running between tests."""
    browser = acquire({shared_server.address: None})
    yield
    browser.release()


@pytest.fixture
def custom_env(server: PagesServer, running_browser: None, tmp_path: Path) -> Iterator[Callable[..., WebArena]]:
    """A function that returns an environment on the test's pages, with tasks in WebArena's JSON format."""
    envs: list[WebArena] = []

    def make_env(*tasks: dict[str, Any], **options: Any) -> WebArena:
        records = [{"task_id": i, "intent": "Find it.", "start_url": "__SHOPPING__"} | t for i, t in enumerate(tasks)]
        (tmp_path / "mine.json").write_text(json.dumps(records))
        options = {"sites": f"shopping=http://{server.address}"} | options
        envs.append(WebArena(task_set=tmp_path / "mine.json", **options))
        return envs[-1]

    server.pages["/"] = "<title>Front</title><h1>Front</h1><a href=/more>More</a><button>Dead end</button>"
    server.pages["/more"] = "<title>More</title><h1>It is 42</h1><label>Say <input></label>"
    yield make_env
    for env in envs:
        env.close()
