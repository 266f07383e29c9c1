"""One episode's browser context: its tabs, navigation between pages, and notices for the agent.

Faults of the environment raise `EnvFault`. Requests that can't be met return a sentence for the agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Dialog, Download, Error, Page

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.hosts import BLANK, Hosts
from agentgym_envs.worlds.webarena.browser.network_activity import NetworkActivity
from agentgym_envs.worlds.webarena.browser.options import SessionOptions
from agentgym_envs.worlds.webarena.browser.page_idle import wait_until_idle
from agentgym_envs.worlds.webarena.browser.page_timers import TRACK_SCRIPT
from agentgym_envs.worlds.webarena.browser.playwright_errors import (
    GONE,
    TabClosed,
    first_line,
    is_closed,
    playwright_errors,
)
from agentgym_envs.worlds.webarena.browser.tab import Tab, describe_failure

T = TypeVar("T")
_QUOTED = 300  # characters of a page's text that a notice quotes at most
_MAX_NOTICES = 20
_CLOSE_TIMEOUT = 10.0  # seconds


class Session:
    """A browser context with its tabs, opened by `Browser.session`. Use it on the browser's loop only."""

    def __init__(self, context: BrowserContext, hosts: Hosts, options: SessionOptions) -> None:
        self.context = context
        self.hosts = hosts
        self.options = options
        self.tabs: list[Tab] = []
        self.active = 0
        """Index of the active tab in `tabs`."""
        self.notices: list[str] = []
        self.action_time = 0.0
        """When the last action began, in seconds since the epoch: `settle` waits for timers from then on."""
        self.clipboard = ""
        """The copied text. Chromium's own clipboard is shared by all sessions."""
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._adopting: dict[Page, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._popups = 0
        self._changed = asyncio.Event()
        self._in_background = False
        self._closing = False
        context.on("page", self._on_page)
        context.on("dialog", lambda dialog: self._run_task(self._on_dialog(dialog)))

    @classmethod
    async def open(cls, browser: Browser, hosts: Hosts, options: SessionOptions) -> Session:
        """Open a new context in `browser` with one blank tab.

        Raises:
            EnvFault: if the browser fails.
        """
        try:
            with playwright_errors():
                session = cls(await browser.new_context(**options.for_context()), hosts, options)
                try:
                    await session._begin()
                except BaseException:
                    await session.close()
                    raise
        except TabClosed as error:
            raise EnvFault(GONE) from error
        return session

    async def _begin(self) -> None:
        tracking = (TRACK_SCRIPT,) if self.options.timeouts.timers else ()
        for script in (*tracking, *self.options.init_scripts):
            await self.context.add_init_script(script)
        await self.context.add_cookies(self.options.for_cookies())
        await self.new_tab()

    @property
    def tab(self) -> Tab:
        """The active tab.

        Raises:
            TabClosed: if a page has just closed the last tab; `settle` opens another.
        """
        if not self.tabs:
            raise TabClosed("The last tab has closed.")
        return self.tabs[self.active]

    async def guard(self, work: Awaitable[T]) -> T:
        """Await `work`, translate Playwright's errors, and stop waiting if the browser or a page dies.

        Raises:
            EnvFault: as soon as the browser is gone or a page has crashed, and for Playwright's errors.
            TabClosed: if the tab that it uses closes.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self._failure.done():
                try:
                    with playwright_errors():
                        return task.result()
                except TabClosed:
                    if await self._alive():
                        raise
                    self.fail(GONE)
            raise EnvFault(self._failure.result())
        finally:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()

    def fail(self, reason: str) -> None:
        """Make all current and later operations raise `EnvFault(reason)`."""
        if not self._failure.done():
            self._failure.set_result(reason)

    def take_notices(self) -> list[str]:
        """Return and clear the notices since the last call."""
        notices, self.notices = self.notices, []
        return notices

    # Navigation and tabs.

    async def goto(self, url: str) -> str | None:
        """Open a URL in the active tab. Returns None, or a sentence on why it can't be opened."""
        url = url.strip()
        return self.hosts.refusal(url) or await self.guard(
            (await self._tab()).goto(url, self.hosts, self.options.timeouts.navigation)
        )

    async def go_back(self) -> str | None:
        """Go one page back in the active tab's history. Returns None, or a sentence on why it can't."""
        return await self.guard((await self._tab()).travel(-1))

    async def go_forward(self) -> str | None:
        """Go one page forward in the active tab's history. Returns None, or a sentence on why it can't."""
        return await self.guard((await self._tab()).travel(+1))

    async def new_tab(self) -> str | None:
        """Open a blank tab and make it the active one. Returns None, or a sentence on why it can't."""
        if len(self.tabs) >= self.options.max_tabs:
            return f"There are {len(self.tabs)} tabs already; close one first."
        page = await self.guard(self.context.new_page())
        if page in self._adopting:
            await self.guard(self._adopting[page])
        return None

    async def close_tab(self) -> str | None:
        """Close the active tab and activate the last remaining tab, or a new blank one. Returns None."""
        tab = await self._tab()
        await self.guard(tab.page.close())
        self._remove_tab(tab.page)
        await self._tab()
        return None

    async def focus(self, index: int) -> str | None:
        """Make the tab with that index the active one. Returns None, or a sentence on why it can't."""
        if not 0 <= index < len(self.tabs):
            return f"There is no tab {index}; there are 0 to {len(self.tabs) - 1}."
        self.active = index
        await self.guard(self.tab.page.bring_to_front())
        return None

    def begin_action(self) -> None:
        """Record the beginning of an action: `settle` waits for the short timers that are started from now on."""
        self.action_time = time.time()

    async def settle(self) -> None:
        """Wait until the active tab is idle and all windows that pages opened have become tabs."""
        while True:
            tab = await self._tab()
            try:
                page = await self.guard(wait_until_idle(tab.cdp, tab.network, self.options.timeouts, self.action_time))
                await self.guard(self._await_popups())
            except TabClosed:
                continue
            failures = tab.network.take_failures()
            for notice in (*page.notices, *(describe_failure(failure, self.hosts) for failure in failures)):
                self._notify(notice)
            tab.title, tab.elements = one_line(page.title), page.elements
            if self.tabs and tab is self.tab:
                return

    async def screenshot(self) -> bytes:
        """Take a screenshot of the active tab's viewport as PNG."""
        return await self.guard((await self._tab()).page.screenshot(animations="disabled"))

    @asynccontextmanager
    async def background_page(self) -> AsyncGenerator[Page]:
        """Open a page of this context that is not one of the agent's tabs, for the duration of the block."""
        self._in_background = True
        try:
            page = await self.guard(self.context.new_page())
        finally:
            self._in_background = False
        try:
            yield page
        finally:
            await self.guard(page.close())

    async def close(self) -> None:
        """Close the context and all its tabs. May be called twice, and if the browser is gone."""
        if self._closing:
            return
        self._closing = True
        for task in (*self._adopting.values(), *self._tasks):
            task.cancel()
        if self._failure.done() and self._failure.result() == GONE:
            return  # its contexts are gone, too
        with suppress(EnvFault, TabClosed, TimeoutError):  # the context ends with the browser at the latest
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                with playwright_errors():
                    await self.context.close()

    # Events from pages.

    def _on_page(self, page: Page) -> None:
        if self._in_background or self._closing:
            return
        open_tabs = len(self.tabs) + len(self._adopting)
        if open_tabs < self.options.max_tabs:
            self._adopting[page] = asyncio.create_task(self._adopt(page))
        else:
            self._popup_arrived()
            self._notify(f"The page opened another tab; as there were {open_tabs} already, it was closed.")
            self._run_task(page.close())

    async def _adopt(self, page: Page) -> None:
        """Make a page one of the tabs."""
        try:
            if not urlsplit(page.url).scheme:  # opened for a download; it stays empty
                await page.close()
                return
            page.on("crash", lambda _: self.fail("The page crashed."))
            page.on("close", self._remove_tab)
            page.on("download", lambda download: self._on_download(download))
            cdp = await self.context.new_cdp_session(page)
            network = NetworkActivity(cdp, self._on_popup)
            await network.watch()
            self.tabs.append(Tab(page, cdp, network))
            self.active = len(self.tabs) - 1
        except Error as error:
            if not is_closed(error):
                self.fail(f"The browser failed: {first_line(error)}")
        finally:
            self._adopting.pop(page, None)
            self._popup_arrived()

    def _on_popup(self) -> None:
        self._popups += 1

    def _popup_arrived(self) -> None:
        self._popups = max(0, self._popups - 1)
        self._changed.set()

    async def _await_popups(self) -> None:
        """Wait for the windows that pages opened, which appear when the response of their first page begins."""
        try:
            async with asyncio.timeout(self.options.timeouts.loading):
                while self._popups or self._adopting:
                    self._changed.clear()
                    await self._changed.wait()
                if self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            self._popups = 0
            self._notify("A tab that the page opened did not begin to load.")

    async def _on_dialog(self, dialog: Dialog) -> None:
        message = one_line(dialog.message)[:_QUOTED]
        leaving = dialog.type == "beforeunload"
        answer = "it was left all the same" if leaving else "it was dismissed"
        what = "The page asked whether to leave it" if leaving else f"The page showed a dialog ({dialog.type})"
        self._notify(f"{what} ({message!r}); {answer}." if message else f"{what}; {answer}.")
        # Some pages could never be left if such questions were dismissed.
        await (dialog.accept() if leaving else dialog.dismiss())

    def _on_download(self, download: Download) -> None:
        self._notify(f"A download ({one_line(download.suggested_filename)[:_QUOTED]!r}) was refused.")

    def _notify(self, notice: str) -> None:
        if len(self.notices) < _MAX_NOTICES:  # a page may show dialogs continuously
            self.notices.append(notice)

    def _remove_tab(self, page: Page) -> None:
        index = next((i for i, tab in enumerate(self.tabs) if tab.page is page), None)
        if index is None:
            return
        del self.tabs[index]
        if index == self.active:
            self.active = max(0, len(self.tabs) - 1)
        elif index < self.active:
            self.active -= 1

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            with suppress(Error):  # the page or dialog has closed in the meantime
                await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Helpers.

    async def _tab(self) -> Tab:
        """Return the active tab, or a new one if pages have closed all tabs."""
        if self._failure.done():
            raise EnvFault(self._failure.result())
        if not self.tabs:
            await self.new_tab()
        return self.tab

    async def _alive(self) -> bool:
        try:
            await self.context.cookies(BLANK)
        except Error:
            return False
        return True


def one_line(text: str) -> str:
    """Remove line breaks and control characters from a page's text, which could otherwise imitate our own lines."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
