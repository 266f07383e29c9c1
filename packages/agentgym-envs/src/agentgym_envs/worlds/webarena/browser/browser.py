"""One Chromium per process and set of hosts, shared by many sessions and relaunched after it dies.

`acquire` and `release` count the users. The first session starts Playwright's driver and Chromium; the last `release`,
or the end of the process, ends both.
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

from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.installation import install
from agentgym_envs.worlds.webarena.browser.hosts import Hosts
from agentgym_envs.worlds.webarena.browser.playwright_errors import GONE

if TYPE_CHECKING:
    import playwright.async_api as api

    from agentgym_envs.worlds.webarena.browser.session import Session

_PING_INTERVAL = 1.0  # seconds between two liveness checks
_PING_TIMEOUT = 20.0  # seconds
_PING_ATTEMPTS = 2  # a single timeout may mean that the loop itself was busy with a large page
_CLOSE_TIMEOUT = 5.0  # seconds for Chromium to close, after which its driver has to kill it
_RELEASE_TIMEOUT = 30.0  # seconds for Chromium and the driver to end


@dataclass(eq=False, slots=True)
class _Engine:
    """A running Chromium and its sessions."""

    chromium: api.Browser
    cdp: api.CDPSession
    sessions: set[Session] = field(default_factory=set["Session"])
    dead: bool = False

    def mark_dead(self) -> None:
        """Fail all sessions."""
        self.dead = True
        for session in self.sessions:
            session.fail(GONE)
        self.sessions.clear()

    async def is_alive(self) -> bool:
        """Ping Chromium; mark it as dead if it does not respond."""
        from playwright.async_api import Error

        for _ in range(_PING_ATTEMPTS):
            try:
                async with asyncio.timeout(_PING_TIMEOUT):
                    await self.cdp.send("Browser.getVersion")
                return not self.dead
            except TimeoutError:
                continue
            except Error:
                break
        self.mark_dead()
        return False

    async def watch(self) -> None:
        """Ping Chromium until it is dead. Playwright sends no event if its driver has died."""
        while await self.is_alive():
            await asyncio.sleep(_PING_INTERVAL)


class Browser:
    """A Chromium that can reach certain hosts only; use `acquire` to get one. `session` must run on its `loop`."""

    def __init__(self, hosts: Hosts, executable_path: str | None, loop: LoopThread) -> None:
        self.hosts = hosts
        self.loop = loop
        self.users = 0
        self._executable_path = executable_path
        self._driver: api.Playwright | None = None
        self._engine: _Engine | None = None
        self._watch: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def session(self, **options: Any) -> Session:
        """Open a new browser context with one blank tab. Starts or restarts the browser if needed.

        Args:
            **options: The fields of `options.SessionOptions`.

        Raises:
            DependencyNotInstalled: if Playwright or Chromium is missing; the message has the install command.
            EnvFault: if the browser doesn't start.
            TypeError: for an unknown option.
        """
        engine = await self._running()
        from agentgym_envs.worlds.webarena.browser.options import SessionOptions
        from agentgym_envs.worlds.webarena.browser.session import Session

        settings = SessionOptions(**options)
        try:
            session = await Session.open(engine.chromium, self.hosts, settings)
        except EnvFault:
            if await engine.is_alive():
                raise
            engine = await self._running()  # it had died before, which was not yet known
            session = await Session.open(engine.chromium, self.hosts, settings)
        engine.sessions.add(session)
        session.context.on("close", lambda _: engine.sessions.discard(session))
        return session

    def release(self) -> None:
        """Give up one use. The last release ends the browser."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, browser in _browsers.items() if browser is self]:
                del _browsers[key]
        self.loop.run(self.end(), _RELEASE_TIMEOUT)

    async def end(self) -> None:
        """End the browser and its driver, if they are running."""
        async with self._starting:
            if self._engine is not None:
                await self._stop_engine(self._engine)
            await self._stop_driver()

    async def _running(self) -> _Engine:
        async with self._starting:
            if self._engine is not None and self._engine.dead:
                await self._stop_engine(self._engine)
            if self._engine is None:
                self._engine = await self._start_engine()
                self._watch = asyncio.create_task(self._engine.watch())
            return self._engine

    async def _start_engine(self) -> _Engine:
        """Start a new Chromium with the current driver or, if that fails, with a new driver."""
        from agentgym_envs.worlds.webarena.browser.launch import launch

        chromium = None
        if self._driver is not None:
            with suppress(EnvFault):
                chromium = await launch(self._driver, self.hosts, self._executable_path)
        if chromium is None:
            await self._stop_driver()
            self._driver = await _start_driver()
            try:
                chromium = await launch(self._driver, self.hosts, self._executable_path)
            except BaseException:
                await self._stop_driver()
                raise
        engine = _Engine(chromium, await chromium.new_browser_cdp_session())
        chromium.on("disconnected", lambda _: engine.mark_dead())
        return engine

    async def _stop_engine(self, engine: _Engine) -> None:
        from playwright.async_api import Error

        self._engine = None
        engine.mark_dead()
        if self._watch is not None:
            self._watch.cancel()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await engine.chromium.close()
        except Error:
            return  # already closed
        except TimeoutError:
            await self._stop_driver()

    async def _stop_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.stop()


async def _start_driver() -> api.Playwright:
    try:
        from playwright.async_api import async_playwright
    except ModuleNotFoundError as error:
        raise DependencyNotInstalled(
            f"The package playwright is not installed. Install it: {install('agentgym-envs[webarena]')}"
        ) from error
    return await async_playwright().start()


_lock = threading.Lock()
_browsers: dict[tuple[Hosts, str | None], Browser] = {}
_loops: list[LoopThread] = []


def acquire(hosts: Mapping[str, str | None], executable_path: str | None = None) -> Browser:
    """Return the process's browser for `hosts`. The caller must `release` it.

    Args:
        hosts: The hosts that the browser can reach: maps `host` or `host:port` to the address that it resolves to, such
            as `127.0.0.1:8000`, or to None for the host itself. No other host resolves.
        executable_path: The Chromium to run, instead of Playwright's own or the system's.

    Raises:
        ValueError: for an invalid host.
    """
    key = (Hosts.of(hosts), executable_path)
    with _lock:
        if not _loops:
            _loops.append(LoopThread("The browser"))
        browser = _browsers.setdefault(key, Browser(*key, _loops[0]))
        browser.users += 1
        return browser


def _end_all() -> None:
    """End all browsers when the process ends."""
    with _lock:
        browsers = list(_browsers.values())
        _browsers.clear()
    for browser in browsers:
        browser.loop.run(browser.end(), _RELEASE_TIMEOUT)
    for loop in _loops:
        loop.stop()


def _forget() -> None:
    """Drop the parent's browsers in a forked child, which has none of its parent's threads and must not use them."""
    global _lock
    _lock = threading.Lock()
    _browsers.clear()
    _loops.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget)
