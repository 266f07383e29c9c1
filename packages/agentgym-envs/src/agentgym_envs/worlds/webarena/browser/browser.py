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

from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.installation import install
from agentgym_envs.worlds.webarena.browser.hosts import Hosts
from agentgym_envs.worlds.webarena.browser.playwright_errors import GONE

if TYPE_CHECKING:
    import playwright.async_api as api

    from agentgym_envs.worlds.webarena.browser.session import Session

_PULSE = 1.0  # seconds between two looks at whether it lives
_HUNG = 20.0  # seconds after which a browser that doesn't say its own name is asked again, or counts as dead
_ASKED = 2  # times; by one answer that comes late, the loop itself may have been busy with a large page
_ENDING = 5.0  # seconds for Chromium to close, after which its driver has to kill it
_RELEASE = 30.0  # seconds for both


@dataclass(eq=False, slots=True)
class _Engine:
    """A running Chromium and who works in it."""

    chromium: api.Browser
    pulse: api.CDPSession
    sessions: set[Session] = field(default_factory=set["Session"])
    dead: bool = False

    def died(self) -> None:
        """Tell everyone."""
        self.dead = True
        for session in self.sessions:
            session.broke(GONE)
        self.sessions.clear()

    async def beats(self) -> bool:
        """Whether it still answers; one that doesn't is dead from then on."""
        from playwright.async_api import Error

        for _ in range(_ASKED):
            try:
                async with asyncio.timeout(_HUNG):
                    await self.pulse.send("Browser.getVersion")
                return not self.dead
            except TimeoutError:
                continue
            except Error:
                break
        self.died()
        return False

    async def watch(self) -> None:
        """Notice its death also when the driver died, which nobody tells."""
        while await self.beats():
            await asyncio.sleep(_PULSE)


class Browser:
    """A Chromium that can reach certain hosts only; `acquire` gives one. `session` is for its loop: `loop.run(...)`."""

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
        """A fresh browser context with one blank tab. Starts the browser if it doesn't run, or not any more.

        Args:
            **options: Those of `options.SessionOptions`.

        Raises:
            DependencyNotInstalled: when Playwright or Chromium is missing; the message has the command.
            EnvFault: when the browser doesn't come up.
            TypeError: for an unknown option.
        """
        engine = await self._running()
        from agentgym_envs.worlds.webarena.browser.options import SessionOptions
        from agentgym_envs.worlds.webarena.browser.session import Session

        settings = SessionOptions(**options)
        try:
            session = await Session.open(engine.chromium, self.hosts, settings)
        except EnvFault:
            if await engine.beats():
                raise
            engine = await self._running()  # it had died a moment before, which is known only now
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
        self.loop.run(self.end(), _RELEASE)

    async def end(self) -> None:
        """End the browser and its driver, if they run."""
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
        """A new Chromium, by the driver there is or, where that fails, by a new one."""
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
        chromium.on("disconnected", lambda _: engine.died())
        return engine

    async def _stop_engine(self, engine: _Engine) -> None:
        from playwright.async_api import Error

        self._engine = None
        engine.died()
        if self._watch is not None:
            self._watch.cancel()
        try:
            async with asyncio.timeout(_ENDING):
                await engine.chromium.close()
        except Error:
            return  # it is closed already
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
            f"The package playwright is missing. Install it: {install('agentgym-envs[webarena]')}"
        ) from error
    return await async_playwright().start()


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
            _loops.append(LoopThread("The browser"))
        browser = _browsers.setdefault(key, Browser(*key, _loops[0]))
        browser.users += 1
        return browser


def _end_all() -> None:
    """At the end of the process."""
    with _lock:
        browsers = list(_browsers.values())
        _browsers.clear()
    for browser in browsers:
        browser.loop.run(browser.end(), _RELEASE)
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
