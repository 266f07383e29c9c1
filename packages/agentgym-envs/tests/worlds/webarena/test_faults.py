"""Tests of faults of browsers and pages: affected sessions raise immediately, and new sessions work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any

import psutil
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser import browser as browser_module
from agentgym_envs.worlds.webarena.browser.browser import Browser, acquire
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page import snapshot
from agentgym_envs.worlds.webarena.page.observation import tree
from browser_processes import command_line, descendants
from pages_server import NEVER, Page, PagesServer
from patience import PATIENCE

Run = Callable[[Coroutine[Any, Any, Any]], Any]
URL = "http://fragile.example/a"


@pytest.fixture
def fragile(requires_browser: None, server: PagesServer) -> Iterator[Browser]:
    """A browser of its own for each test, which the test breaks."""
    server.pages |= {"/a": "<title>a</title>", "/never": Page(delay=NEVER)}
    browser = acquire({"fragile.example": server.address})
    yield browser
    browser.release()


def processes(target: str) -> Collection[psutil.Process]:
    """Return the processes of the fragile browser, or of its Playwright driver."""
    found = descendants("MAP fragile.example")
    browser = [p for p in found if (line := " ".join(command_line(p))) and "--type=" not in line]
    drivers = {parent for p in browser for parent in p.parents() if "run-driver" in command_line(parent)}
    return {"browser": browser, "driver": drivers}[target]


def kill(target: str) -> None:
    for process in processes(target):
        process.kill()


@pytest.mark.parametrize("target", ["browser", pytest.param("driver", marks=pytest.mark.long)])
def test_killed_browser_fails_all_eight_sessions(fragile: Browser, target: str) -> None:
    """Half of the sessions are navigating, the others idle."""

    async def navigate(session: Session) -> str:
        try:
            await session.goto("http://fragile.example/never")
        except EnvFault as error:
            return str(error)
        return "nothing"

    async def play() -> tuple[list[str], list[Session]]:
        sessions = await asyncio.gather(*(fragile.session() for _ in range(8)))
        busy = [asyncio.create_task(navigate(session)) for session in sessions[:4]]
        await asyncio.gather(*(session.goto(URL) for session in sessions[4:]))
        await asyncio.to_thread(kill, target)
        return await asyncio.gather(*busy), sessions

    errors, sessions = fragile.loop.run(play(), 60)
    assert errors == ["The browser is gone."] * 4
    for session in sessions[4:]:
        for operation in (session.settle, session.screenshot, session.go_back, session.new_tab):
            with pytest.raises(EnvFault, match="The browser is gone"):
                fragile.loop.run(operation(), PATIENCE)
    replacement = fragile.loop.run(fragile.session(), 60)
    assert fragile.loop.run(replacement.goto(URL), 60) is None
    for session in (*sessions, replacement):
        fragile.loop.run(session.close(), 60)


@pytest.mark.long
def test_session_right_after_a_kill_gets_a_new_browser(fragile: Browser) -> None:
    fragile.loop.run(fragile.session(), 60)
    kill("browser")
    session = fragile.loop.run(fragile.session(), 60)
    assert fragile.loop.run(session.goto(URL), 60) is None


@pytest.mark.long
def test_hanging_browser_is_replaced(fragile: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_module, "_PING_TIMEOUT", 0.5)
    monkeypatch.setattr(browser_module, "_CLOSE_TIMEOUT", 0.5)
    hanging = fragile.loop.run(fragile.session(), 60)
    for process in processes("browser"):
        process.suspend()
    with pytest.raises(EnvFault, match="The browser is gone"):
        fragile.loop.run(hanging.goto(URL), 60)
    session = fragile.loop.run(fragile.session(), 60)
    assert fragile.loop.run(session.goto(URL), 60) is None


def test_killed_browser_fails_a_waiting_session(fragile: Browser) -> None:
    session = fragile.loop.run(fragile.session(), 60)
    waiting: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def wait() -> None:
        await session.tab.page.evaluate("setTimeout(() => location = '/never'); 0")
        asyncio.get_running_loop().call_later(0.1, waiting.set_result, None)
        await session.settle()

    fragile.loop.run(session.goto(URL), 60)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        settled = pool.submit(fragile.loop.run, wait(), 60)
        waiting.result(PATIENCE)
        kill("browser")
        with pytest.raises(EnvFault, match="The browser is gone"):
            settled.result(PATIENCE)


def test_crashed_page_fails_only_its_own_session(server: PagesServer, browser: Browser, run: Run) -> None:
    server.pages |= {"/a": "<title>a</title>", "/never": Page(delay=NEVER)}
    broken, intact = run(browser.session()), run(browser.session())
    for session in (broken, intact):
        run(session.goto("http://shop.example/a"))

    async def crash() -> None:
        await broken.guard(broken.tab.cdp.send("Page.crash"))

    with pytest.raises(EnvFault, match="The page crashed"):
        run(crash())
    for operation in (broken.settle, broken.screenshot, broken.go_back, broken.close_tab):
        with pytest.raises(EnvFault, match="The page crashed"):
            run(operation())
    with pytest.raises(EnvFault, match="The page crashed"):
        run(broken.goto("http://shop.example/a"))
    run(intact.settle())
    assert intact.tab.title == "a"
    chromium = intact.context.browser
    assert chromium is not None
    for session in (broken, intact):
        run(session.close())
        assert session.context not in chromium.contexts


def test_an_oversized_page_is_not_read_and_can_be_left(
    server: PagesServer, browser: Browser, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_ELEMENTS", 300)
    rows = "<p>row</p>" * 200
    server.pages |= {"/a": "<title>a</title>", "/fits": rows, "/large": f"{rows}<iframe srcdoc='{rows}'></iframe>"}
    session = run(browser.session())

    async def read() -> snapshot.Snapshot:
        await session.settle()
        return await session.guard(snapshot.take_snapshot(session.tab))

    assert run(session.goto("http://shop.example/fits")) is None
    assert len(run(read()).nodes) > 200
    assert run(session.goto("http://shop.example/large")) is None
    page = run(read())
    assert not page.nodes
    assert page.layout.viewport[2:] == (1280, 720)
    told = r"\(This page has 4\d\d elements, which is too many to be read; go_back or goto \[url\] leaves it\.\)"
    assert re.fullmatch(told, tree(page, whole_page=True, max_chars=1000))
    assert run(session.go_back()) is None
    assert len(run(read()).nodes) > 200
    run(session.close())


class FakeConnection:
    """A fake connection to a browser, which responds from the given request on."""

    def __init__(self, responds_from: int) -> None:
        self.requests = 0
        self._responds_from = responds_from

    async def send(self, _: str) -> None:
        self.requests += 1
        if self.requests < self._responds_from:
            await asyncio.Event().wait()


@pytest.mark.parametrize(("responds_from", "alive"), [(1, True), (2, True), (3, False)])
def test_browser_is_pinged_twice_before_it_counts_as_dead(
    responds_from: int, alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response may also be late because this process is busy with a large page."""
    monkeypatch.setattr(browser_module, "_PING_TIMEOUT", 0.01)
    connection: Any = FakeConnection(responds_from)
    engine = browser_module._Engine(chromium=Any, cdp=connection)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    assert asyncio.run(engine.is_alive()) is alive
    assert engine.dead is not alive
    assert connection.requests == min(responds_from, 2)


@pytest.mark.long
@pytest.mark.parametrize("timeouts", [IdleTimeouts(answering=3)], ids=["short timeouts"])
def test_page_in_an_endless_loop_is_a_fault(server: PagesServer, session: Session, run: Run) -> None:
    server.pages["/a"] = "<title>a</title><script>setTimeout(() => { while (true); }, 20)</script>"
    run(session.goto("http://shop.example/a"))
    with pytest.raises(EnvFault, match=r"did not respond within 3 seconds"):
        run(session.settle())
        run(session.settle())


def test_closing_a_tab_during_evaluation_is_not_a_fault(server: PagesServer, session: Session, run: Run) -> None:
    server.pages["/a"] = "<title>a</title>"
    run(session.goto("http://shop.example/a"))
    run(session.new_tab())

    async def close_while_evaluating() -> None:
        tab = session.tab
        evaluation = session.guard(tab.page.evaluate("new Promise(() => {})"))
        await asyncio.gather(evaluation, session.close_tab())

    with pytest.raises(TabClosed):
        run(close_while_evaluating())
    run(session.settle())
    assert session.tab.title == "a"


def test_other_playwright_errors_are_faults(session: Session, run: Run) -> None:
    async def fail() -> None:
        await session.guard(session.tab.cdp.send("No.such"))

    with pytest.raises(EnvFault, match=r"The browser failed: .*No\.such"):
        run(fail())


def test_other_errors_are_propagated(session: Session, run: Run) -> None:
    async def fail() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        run(session.guard(fail()))


def test_cancelled_evaluation_frees_the_session(session: Session, browser: Browser) -> None:
    with pytest.raises(EnvFault, match="did not answer"):
        browser.loop.run(session.guard(session.tab.page.evaluate("new Promise(() => {})")), 0.2)
    browser.loop.run(session.settle(), PATIENCE)
