"""Tests of the shared browser: sharing, start and end, and cleanup of processes and files."""

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


def all_exit(pids: Sequence[int]) -> bool:
    """Return whether the processes end."""
    return eventually(lambda: not alive(pids))


def child_pids(pid: int | None = None) -> list[int]:
    return alive([child.pid for child in psutil.Process(pid).children(recursive=True)])


@pytest.fixture
def own_browser(requires_browser: None, server: PagesServer) -> Iterator[Browser]:
    """A browser that only one test uses."""
    browser = acquire({"another.example": server.address})
    yield browser
    if browser.users:
        browser.release()


def test_users_with_the_same_hosts_share_a_browser(browser: Browser) -> None:
    hosts = dict(browser.hosts.targets)
    same = acquire(hosts)
    reordered = acquire(dict(reversed(hosts.items())))
    other = acquire({"other.example": None})
    assert same is reordered is browser
    assert other is not browser
    assert other.loop is browser.loop
    for acquired in (same, reordered, other):
        acquired.release()


def test_browser_starts_with_first_session_and_ends_with_last_user(own_browser: Browser) -> None:
    before = child_pids()
    second = acquire(dict(own_browser.hosts.targets))
    assert child_pids() == before
    session = own_browser.loop.run(own_browser.session(), 60)
    started = [pid for pid in child_pids() if pid not in before]
    assert len(started) > 1
    own_browser.loop.run(session.close(), 60)
    second.release()
    assert len(alive(started)) > 1
    own_browser.release()
    assert all_exit(started)


def test_open_session_does_not_keep_the_browser_running(own_browser: Browser) -> None:
    before = child_pids()
    session = own_browser.loop.run(own_browser.session(), 60)
    started = [pid for pid in child_pids() if pid not in before]
    own_browser.release()
    assert all_exit(started)
    own_browser.loop.run(session.close(), 60)


@pytest.mark.long
def test_threads_share_the_browser_concurrently(own_browser: Browser, server: PagesServer) -> None:
    server.pages["/a"] = "<title>a</title>"
    before = child_pids()

    def visit(_: int) -> str:
        session = own_browser.loop.run(own_browser.session(), 60)
        own_browser.loop.run(session.goto("http://another.example/a"), 60)
        own_browser.loop.run(session.settle(), 60)
        title = session.tab.title
        own_browser.loop.run(session.close(), 60)
        return title

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(visit, range(8))) == ["a"] * 8
    command_lines = [
        command_line(child) for child in psutil.Process().children(recursive=True) if child.pid not in before
    ]
    drivers = [line for line in command_lines if "run-driver" in line]
    assert len(drivers) == 1


def test_browser_works_inside_a_running_event_loop(browser: Browser, server: PagesServer) -> None:
    server.pages["/a"] = "<title>a</title>"

    async def visit() -> str:
        session = browser.loop.run(browser.session(), 60)
        browser.loop.run(session.goto("http://shop.example/a"), 60)
        browser.loop.run(session.settle(), 60)
        title = session.tab.title
        browser.loop.run(session.close(), 60)
        return title

    assert asyncio.run(visit()) == "a"


@pytest.mark.long
def test_sixteen_concurrent_sessions_are_isolated(browser: Browser, run: Run, server: PagesServer) -> None:
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

    async def visit_all() -> list[list[str]]:
        return await asyncio.gather(*(visit() for _ in range(16)))

    assert run(visit_all()) == [["1", "2"]] * 16


def test_closed_sessions_leave_no_process_behind(browser: Browser, run: Run) -> None:
    run(run(browser.session()).close())
    before = child_pids()
    sessions = [run(browser.session()) for _ in range(3)]
    pages = [pid for pid in child_pids() if pid not in before]
    assert pages
    for session in sessions:
        run(session.close())
    assert all_exit(pages)


def _child_process(hosts: dict[str, str | None], results: multiprocessing.SimpleQueue[object]) -> None:
    browser = acquire(hosts)
    session = browser.loop.run(browser.session(), 60)
    browser.loop.run(session.goto("http://shop.example/a"), 60)
    results.put((browser.users, session.tab.url))
    browser.loop.run(session.close(), 60)
    browser.release()


@pytest.mark.long
def test_forked_child_starts_its_own_browser(browser: Browser, run: Run, server: PagesServer) -> None:
    server.pages["/a"] = "a"
    session = run(browser.session())
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=_child_process, args=(dict(browser.hosts.targets), results))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get() == (1, "http://shop.example/a")
    assert run(session.goto("http://shop.example/a")) is None
    run(session.close())


OWNER_SCRIPT = """
    import os, signal, sys
    import psutil
    from agentgym_envs.worlds.webarena.browser.browser import acquire
    browser = acquire({"shop.example": None})
    session = browser.loop.run(browser.session(), 60)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    END
"""


@pytest.mark.parametrize(
    "ending",
    [
        *(pytest.param(ending, marks=pytest.mark.long) for ending in ("sys.exit()", "1 / 0")),
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_browser_does_not_outlive_the_process(requires_browser: None, ending: str, tmp_path: Path) -> None:
    script = textwrap.dedent(OWNER_SCRIPT).replace("END", ending)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment
    )
    pids = [int(pid) for pid in process.stdout.split()]
    assert len(pids) > 1
    assert all_exit(pids)
    assert ("ZeroDivisionError" in process.stderr) == (ending == "1 / 0")
    eventually(lambda: not list(tmp_path.iterdir()), "an empty folder for temporary files")


def test_browser_leaves_no_files_behind(own_browser: Browser) -> None:
    before = child_pids()
    session = own_browser.loop.run(own_browser.session(), 60)
    started = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    arguments = [argument for child in started for argument in command_line(child)]
    profiles = {Path(argument.partition("=")[2]) for argument in arguments if argument.startswith("--user-data-dir=")}
    assert [profile.is_dir() for profile in profiles] == [True]
    own_browser.loop.run(session.close(), 60)
    own_browser.release()
    assert [profile.exists() for profile in profiles] == [False]
