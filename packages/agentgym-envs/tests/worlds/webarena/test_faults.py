"""What breaks is told at once to those it breaks for, and the next session has a browser that works."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any

import psutil
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser import browser as module
from agentgym_envs.worlds.webarena.browser.browser import Browser, acquire
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page import snapshot
from browser_processes import command_line, descendants
from pages_server import NEVER, Page, PagesServer
from patience import PATIENCE

Run = Callable[[Coroutine[Any, Any, Any]], Any]
URL = "http://fragile.example/a"


@pytest.fixture
def fragile(requires_browser: None, server: PagesServer) -> Iterator[Browser]:
    """A browser of the test's own, to break."""
    server.pages |= {"/a": "<title>a</title>", "/never": Page(delay=NEVER)}
    browser = acquire({"fragile.example": server.address})
    yield browser
    browser.release()


def processes(what: str) -> Collection[psutil.Process]:
    """Those of the fragile browser, or of the driver that it belongs to."""
    found = descendants("MAP fragile.example")
    browser = [p for p in found if (line := " ".join(command_line(p))) and "--type=" not in line]
    drivers = {parent for p in browser for parent in p.parents() if "run-driver" in command_line(parent)}
    return {"browser": browser, "driver": drivers}[what]


def kill(what: str) -> None:
    for process in processes(what):
        process.kill()


@pytest.mark.parametrize("what", ["browser", pytest.param("driver", marks=pytest.mark.long)])
def test_eight_sessions_are_told_when_it_is_killed(fragile: Browser, what: str) -> None:
    """Half of them in the middle of something, half between two steps."""

    async def in_the_middle(session: Session) -> str:
        try:
            await session.goto("http://fragile.example/never")
        except EnvFault as error:
            return str(error)
        return "nothing"

    async def play() -> tuple[list[str], list[Session]]:
        sessions = await asyncio.gather(*(fragile.session() for _ in range(8)))
        busy = [asyncio.create_task(in_the_middle(session)) for session in sessions[:4]]
        await asyncio.gather(*(session.goto(URL) for session in sessions[4:]))
        await asyncio.to_thread(kill, what)
        return await asyncio.gather(*busy), sessions

    said, sessions = fragile.loop.run(play(), 60)
    assert said == ["The browser is gone."] * 4
    for session in sessions[4:]:
        for work in (session.settle, session.screenshot, session.go_back, session.new_tab):
            with pytest.raises(EnvFault, match="The browser is gone"):
                fragile.loop.run(work(), PATIENCE)
    again = fragile.loop.run(fragile.session(), 60)
    assert fragile.loop.run(again.goto(URL), 60) is None
    for session in (*sessions, again):
        fragile.loop.run(session.close(), 60)


@pytest.mark.long
def test_a_session_that_comes_just_after_the_kill_gets_a_new_browser(fragile: Browser) -> None:
    fragile.loop.run(fragile.session(), 60)
    kill("browser")
    session = fragile.loop.run(fragile.session(), 60)
    assert fragile.loop.run(session.goto(URL), 60) is None


@pytest.mark.long
def test_a_browser_that_hangs_is_replaced(fragile: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PING_TIMEOUT", 0.5)
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT", 0.5)
    hanging = fragile.loop.run(fragile.session(), 60)
    for process in processes("browser"):
        process.suspend()
    with pytest.raises(EnvFault, match="The browser is gone"):
        fragile.loop.run(hanging.goto(URL), 60)
    session = fragile.loop.run(fragile.session(), 60)
    assert fragile.loop.run(session.goto(URL), 60) is None


def test_one_that_waits_for_the_page_is_told_too(fragile: Browser) -> None:
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


def test_a_crashed_page_is_a_fault_of_its_own_session_only(server: PagesServer, browser: Browser, run: Run) -> None:
    server.pages |= {"/a": "<title>a</title>", "/never": Page(delay=NEVER)}
    broken, whole = run(browser.session()), run(browser.session())
    for session in (broken, whole):
        run(session.goto("http://shop.example/a"))

    async def crash() -> None:
        await broken.guard(broken.tab.cdp.send("Page.crash"))

    with pytest.raises(EnvFault, match="The page crashed"):
        run(crash())
    for work in (broken.settle, broken.screenshot, broken.go_back, broken.close_tab):
        with pytest.raises(EnvFault, match="The page crashed"):
            run(work())
    with pytest.raises(EnvFault, match="The page crashed"):
        run(broken.goto("http://shop.example/a"))
    run(whole.settle())
    assert whole.tab.title == "a"
    chromium = whole.context.browser
    assert chromium is not None
    for session in (broken, whole):
        run(session.close())
        assert session.context not in chromium.contexts


def test_a_page_too_large_to_be_read_is_a_fault_of_its_own_session_only(
    server: PagesServer, browser: Browser, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_ELEMENTS", 300)
    rows = "<p>row</p>" * 200
    server.pages |= {"/a": "<title>a</title>", "/fits": rows, "/large": f"{rows}<iframe srcdoc='{rows}'></iframe>"}
    heavy, whole = run(browser.session()), run(browser.session())

    async def read(session: Session, path: str) -> int:
        await session.goto(f"http://shop.example{path}")
        await session.settle()
        return len((await session.guard(snapshot.take_snapshot(session.tab))).nodes)

    assert run(read(heavy, "/fits")) > 200
    with pytest.raises(EnvFault, match=r"The page has 4\d\d elements; pages with more than 300 are not read"):
        run(read(heavy, "/large"))
    assert run(read(whole, "/a")) == 1
    assert run(read(heavy, "/a")) == 1
    for session in (heavy, whole):
        run(session.close())


class Pulse:
    """Stands for the connection to a browser: it answers once it was asked so many times."""

    def __init__(self, answers_from: int) -> None:
        self.asked = 0
        self._answers_from = answers_from

    async def send(self, _: str) -> None:
        self.asked += 1
        if self.asked < self._answers_from:
            await asyncio.Event().wait()


@pytest.mark.parametrize(("answers_from", "lives"), [(1, True), (2, True), (3, False)])
def test_a_browser_is_asked_twice_whether_it_lives(
    answers_from: int, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer comes late, too, where this process was busy with a large page."""
    monkeypatch.setattr(module, "_PING_TIMEOUT", 0.01)
    pulse: Any = Pulse(answers_from)
    engine = module._Engine(chromium=Any, cdp=pulse)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    assert asyncio.run(engine.is_alive()) is lives
    assert engine.dead is not lives
    assert pulse.asked == min(answers_from, 2)


@pytest.mark.long
@pytest.mark.parametrize("timeouts", [IdleTimeouts(answering=3)], ids=["impatient"])
def test_a_page_in_an_endless_loop_is_a_fault(server: PagesServer, session: Session, run: Run) -> None:
    server.pages["/a"] = "<title>a</title><script>setTimeout(() => { while (true); }, 20)</script>"
    run(session.goto("http://shop.example/a"))
    with pytest.raises(EnvFault, match=r"did not respond within 3 seconds"):
        run(session.settle())
        run(session.settle())


def test_a_tab_that_closes_in_the_middle_is_no_fault(server: PagesServer, session: Session, run: Run) -> None:
    server.pages["/a"] = "<title>a</title>"
    run(session.goto("http://shop.example/a"))
    run(session.new_tab())

    async def close_while_asking() -> None:
        tab = session.tab
        asking = session.guard(tab.page.evaluate("new Promise(() => {})"))
        await asyncio.gather(asking, session.close_tab())

    with pytest.raises(TabClosed):
        run(close_while_asking())
    run(session.settle())
    assert session.tab.title == "a"


def test_other_errors_of_playwrights_are_faults(session: Session, run: Run) -> None:
    async def fail() -> None:
        await session.guard(session.tab.cdp.send("No.such"))

    with pytest.raises(EnvFault, match=r"The browser failed: .*No\.such"):
        run(fail())


def test_other_errors_are_not(session: Session, run: Run) -> None:
    async def fail() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        run(session.guard(fail()))


def test_what_is_cancelled_does_not_go_on(session: Session, browser: Browser) -> None:
    with pytest.raises(EnvFault, match="did not answer"):
        browser.loop.run(session.guard(session.tab.page.evaluate("new Promise(() => {})")), 0.2)
    browser.loop.run(session.settle(), PATIENCE)
