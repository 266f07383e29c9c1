"""One Chromium per process and set of hosts, shared by many sessions, relaunched after its death. Knows no page.

Users are counted: `acquire` and `release`. The first session starts Playwright's driver and Chromium, the last
`release`, or the end of the process, ends both.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.text_env import EnvFault
from agentgym_envs.worlds.webarena.hosts import Hosts
from agentgym_envs.worlds.webarena.loop import LoopThread

if TYPE_CHECKING:
    import playwright.async_api as api

    from agentgym_envs.worlds.webarena.session import Session

_ENDING = 10.0  # seconds for Chromium to close, after which it is left to its driver


@dataclass(eq=False, slots=True)
class _Engine:
    """A running driver with its Chromium."""

    playwright: api.Playwright
    chromium: api.Browser
    sessions: set[Session] = field(default_factory=set["Session"])
    dead: bool = False

    def died(self) -> None:
        """Tell everyone who works in it."""
        self.dead = True
        for session in self.sessions:
            session.broke("The browser is gone.")
        self.sessions.clear()


class Browser:
    """A Chromium that can reach certain hosts only; `acquire` gives one. `session` is for its loop: `loop.run(...)`."""

    def __init__(self, hosts: Hosts, executable_path: str | None, loop: LoopThread) -> None:
        self.hosts = hosts
        self.loop = loop
        self.users = 0
        self._executable_path = executable_path
        self._engine: _Engine | None = None
        self._starting = asyncio.Lock()

    async def session(self, **options: Any) -> Session:
        """A fresh browser context with one blank tab. Starts the browser if it doesn't run, or not any more.

        Args:
            **options: Those of `session.SessionOptions`.

        Raises:
            DependencyNotInstalled: when Playwright or Chromium is missing; the message has the command.
            EnvFault: when the browser doesn't come up.
        """
        engine = await self._running()
        from agentgym_envs.worlds.webarena.faults import TabClosed
        from agentgym_envs.worlds.webarena.session import Session, SessionOptions

        settings = SessionOptions(**options)
        try:
            session = await Session.open(engine.chromium, self.hosts, settings)
        except (EnvFault, TabClosed):
            if engine.chromium.is_connected():
                raise
            engine.died()  # it died a moment ago, which is known only now
            engine = await self._running()
            session = await Session.open(engine.chromium, self.hosts, settings)
        engine.sessions.add(session)
        session.context.on("close", lambda _: engine.sessions.discard(session))
        return session

    def release(self) -> None:
        """Use it no more. The last one ends the browser."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, browser in _browsers.items() if browser is self]:
                del _browsers[key]
        self.loop.run(self.end(), 2 * _ENDING)

    async def end(self) -> None:
        """End the browser and its driver, if they run."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await _end(engine)

    async def _running(self) -> _Engine:
        async with self._starting:
            engine = self._engine
            if engine is not None and (engine.dead or not engine.chromium.is_connected()):
                engine.died()
                await self.end()
                engine = None
            if engine is None:
                engine = self._engine = await _start(self.hosts, self._executable_path)
            return engine


async def _start(hosts: Hosts, executable_path: str | None) -> _Engine:
    try:
        from playwright.async_api import async_playwright
    except ModuleNotFoundError as error:
        raise DependencyNotInstalled(
            "The package playwright is missing. Install it: pip install 'agentgym-envs[webarena]'"
        ) from error
    from agentgym_envs.worlds.webarena.chromium import launch

    playwright = await async_playwright().start()
    try:
        chromium = await launch(playwright, hosts, executable_path)
    except BaseException:
        await playwright.stop()
        raise
    engine = _Engine(playwright, chromium)
    chromium.on("disconnected", lambda _: engine.died())
    return engine


async def _end(engine: _Engine) -> None:
    from playwright.async_api import Error

    with suppress(Error, TimeoutError):  # a dead one is closed already, and one that hangs is its driver's to kill
        async with asyncio.timeout(_ENDING):
            await engine.chromium.close()
    await engine.playwright.stop()


_lock = threading.Lock()
_browsers: dict[tuple[Hosts, str | None], Browser] = {}
_loops: list[LoopThread] = []


def acquire(hosts: Mapping[str, str | None], executable_path: str | None = None) -> Browser:
    """The process's browser for `hosts`; give it back with `release`.

    Args:
        hosts: What can be reached: `host` or `host:port` to the address it resolves to, such as `127.0.0.1:8000`, or
            to None for itself. Nothing else is there for the browser.
        executable_path: The Chromium to run, instead of Playwright's own or the machine's.

    Raises:
        ValueError: for what isn't a host.
    """
    key = (Hosts.of(hosts), executable_path)
    with _lock:
        if not _loops:
            _loops.append(LoopThread())
        browser = _browsers.setdefault(key, Browser(*key, _loops[0]))
        browser.users += 1
        return browser


def _end_all() -> None:
    """At the end of the process."""
    with _lock:
        browsers = list(_browsers.values())
        _browsers.clear()
    for browser in browsers:
        browser.loop.run(browser.end(), 2 * _ENDING)
    for loop in _loops:
        loop.stop()


def _forget() -> None:
    """In a forked child, which has none of its parent's threads and must leave its browsers alone."""
    global _lock
    _lock = threading.Lock()
    _browsers.clear()
    _loops.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget)
