"""Who shares a browser, when it starts and ends, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from agentgym_envs.worlds.webarena.browser.browser import Browser, acquire
from browser_processes import alive, command_line
from pages_server import PagesServer
from patience import eventually

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def gone(pids: Sequence[int]) -> bool:
    """Whether the processes end."""
    return eventually(lambda: not alive(pids))


def children(of: int | None = None) -> list[int]:
    return alive([child.pid for child in psutil.Process(of).children(recursive=True)])


@pytest.fixture
def another(requires_browser: None, server: PagesServer) -> Iterator[Browser]:
    """A browser of the test's own."""
    browser = acquire({"another.example": server.address})
    yield browser
    if browser.users:
        browser.release()


def test_users_with_the_same_hosts_share_a_browser(browser: Browser) -> None:
    hosts = dict(browser.hosts.targets)
    again = acquire(hosts)
    reordered = acquire(dict(reversed(hosts.items())))
    other = acquire({"other.example": None})
    assert again is reordered is browser
    assert other is not browser
    assert other.loop is browser.loop
    for taken in (again, reordered, other):
        taken.release()


def test_it_starts_with_its_first_session_and_ends_with_its_last_user(another: Browser) -> None:
    before = children()
    second = acquire(dict(another.hosts.targets))
    assert children() == before
    session = another.loop.run(another.session(), 60)
    started = [pid for pid in children() if pid not in before]
    assert len(started) > 1
    another.loop.run(session.close(), 60)
    second.release()
    assert len(alive(started)) > 1
    another.release()
    assert gone(started)


def test_a_session_left_open_does_not_hold_the_browser(another: Browser) -> None:
    before = children()
    session = another.loop.run(another.session(), 60)
    started = [pid for pid in children() if pid not in before]
    another.release()
    assert gone(started)
    another.loop.run(session.close(), 60)


@pytest.mark.long
def test_many_threads_may_come_at_once(another: Browser, server: PagesServer) -> None:
    server.pages["/a"] = "<title>a</title>"
    before = children()

    def visit(_: int) -> str:
        session = another.loop.run(another.session(), 60)
        another.loop.run(session.goto("http://another.example/a"), 60)
        another.loop.run(session.settle(), 60)
        title = session.tab.title
        another.loop.run(session.close(), 60)
        return title

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(visit, range(8))) == ["a"] * 8
    names = [command_line(child) for child in psutil.Process().children(recursive=True) if child.pid not in before]
    drivers = [line for line in names if "run-driver" in line]
    assert len(drivers) == 1


def test_it_works_inside_a_running_loop(browser: Browser, server: PagesServer) -> None:
    server.pages["/a"] = "<title>a</title>"

    async def notebook() -> str:
        session = browser.loop.run(browser.session(), 60)
        browser.loop.run(session.goto("http://shop.example/a"), 60)
        browser.loop.run(session.settle(), 60)
        title = session.tab.title
        browser.loop.run(session.close(), 60)
        return title

    assert asyncio.run(notebook()) == "a"


@pytest.mark.long
def test_sixteen_contexts_at_once(browser: Browser, run: Run, server: PagesServer) -> None:
    server.pages["/a"] = "<script>localStorage.n = (+localStorage.n || 0) + 1; document.title = localStorage.n</script>"

    async def visit() -> list[str]:
        session = await browser.session()
        titles: list[str] = []
        for _ in range(2):
            await session.goto("http://shop.example/a")
            await session.settle()
            titles.append(session.tab.title)
        await session.close()
        return titles

    async def together() -> list[list[str]]:
        return await asyncio.gather(*(visit() for _ in range(16)))

    assert run(together()) == [["1", "2"]] * 16


def test_closed_contexts_leave_no_process_behind(browser: Browser, run: Run) -> None:
    run(run(browser.session()).close())
    before = children()
    sessions = [run(browser.session()) for _ in range(3)]
    pages = [pid for pid in children() if pid not in before]
    assert pages
    for session in sessions:
        run(session.close())
    assert gone(pages)


def _child(hosts: dict[str, str | None], answers: multiprocessing.SimpleQueue[object]) -> None:
    browser = acquire(hosts)
    session = browser.loop.run(browser.session(), 60)
    browser.loop.run(session.goto("http://shop.example/a"), 60)
    answers.put((browser.users, session.tab.url))
    browser.loop.run(session.close(), 60)
    browser.release()


@pytest.mark.long
def test_a_forked_child_makes_its_own(browser: Browser, run: Run, server: PagesServer) -> None:
    server.pages["/a"] = "a"
    session = run(browser.session())
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=_child, args=(dict(browser.hosts.targets), answers))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get() == (1, "http://shop.example/a")
    assert run(session.goto("http://shop.example/a")) is None
    run(session.close())


ORPHAN = """
    import os, signal, sys
    import psutil
    from agentgym_envs.worlds.webarena.browser.browser import acquire
    browser = acquire({"shop.example": None})
    session = browser.loop.run(browser.session(), 60)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    END
"""


@pytest.mark.parametrize(
    "end",
    [
        *(pytest.param(end, marks=pytest.mark.long) for end in ("sys.exit()", "1 / 0")),
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_nothing_outlives_the_process(requires_browser: None, end: str, tmp_path: Path) -> None:
    script = textwrap.dedent(ORPHAN).replace("END", end)
    surroundings = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=surroundings)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) > 1
    assert gone(pids)
    assert ("ZeroDivisionError" in done.stderr) == (end == "1 / 0")
    eventually(lambda: not list(tmp_path.iterdir()), "an empty folder for temporary files")


def test_the_browser_leaves_no_files_behind(another: Browser) -> None:
    before = children()
    session = another.loop.run(another.session(), 60)
    started = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    words = [word for child in started for word in command_line(child)]
    profiles = {Path(word.partition("=")[2]) for word in words if word.startswith("--user-data-dir=")}
    assert [profile.is_dir() for profile in profiles] == [True]
    another.loop.run(session.close(), 60)
    another.release()
    assert [profile.exists() for profile in profiles] == [False]
