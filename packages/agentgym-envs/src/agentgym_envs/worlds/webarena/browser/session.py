"""One episode's browser context: its tabs, moving between pages, and what happened that the agent should be told.

Knows neither the agent's actions nor what a page looks like to it. What is the world's fault raises `EnvFault`; what is
the agent's comes back as a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Dialog, Download, Error, Page

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.hosts import BLANK, Hosts
from agentgym_envs.worlds.webarena.browser.network_activity import Traffic
from agentgym_envs.worlds.webarena.browser.options import SessionOptions
from agentgym_envs.worlds.webarena.browser.page_idle import come_to_rest
from agentgym_envs.worlds.webarena.browser.playwright_errors import (
    GONE,
    TabClosed,
    first_line,
    is_closed,
    playwright_errors,
)
from agentgym_envs.worlds.webarena.browser.tab import Tab, why

T = TypeVar("T")
_QUOTED = 300  # characters of a page's own words in a notice
_MAX_NOTICES = 20
_CLOSING = 10.0  # seconds


class Session:
    """A browser context with its tabs; `Browser.session` opens one. To be used on the browser's loop only."""

    def __init__(self, context: BrowserContext, hosts: Hosts, options: SessionOptions) -> None:
        self.context = context
        self.hosts = hosts
        self.options = options
        self.tabs: list[Tab] = []
        self.active = 0
        """Index of the active tab in `tabs`."""
        self.notices: list[str] = []
        self.clipboard = ""
        """What was copied; Chromium's own clipboard is the same for all sessions."""
        self._broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._adopting: dict[Page, asyncio.Task[None]] = {}
        self._chores: set[asyncio.Task[Any]] = set()
        self._popups = 0
        self._changed = asyncio.Event()
        self._aside = False
        self._closing = False
        context.on("page", self._on_page)
        context.on("dialog", lambda dialog: self._chore(self._on_dialog(dialog)))

    @classmethod
    async def open(cls, browser: Browser, hosts: Hosts, options: SessionOptions) -> Session:
        """A new context in `browser` with one blank tab.

        Raises:
            EnvFault: when the browser fails.
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
        for script in self.options.init_scripts:
            await self.context.add_init_script(script)
        await self.context.add_cookies(self.options.for_cookies())
        await self.new_tab()

    @property
    def tab(self) -> Tab:
        """The active tab.

        Raises:
            TabClosed: when a page has just closed the last one; `settle` opens another.
        """
        if not self.tabs:
            raise TabClosed("The last tab has closed.")
        return self.tabs[self.active]

    async def guard(self, work: Awaitable[T]) -> T:
        """The result of `work`, in which Playwright's errors are told as ours, also when it would wait for ever.

        Raises:
            EnvFault: as soon as the browser is gone or a page has crashed, and for Playwright's errors.
            TabClosed: when the tab that it works on closes.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self._broken.done():
                try:
                    with playwright_errors():
                        return task.result()
                except TabClosed:
                    if await self._alive():
                        raise
                    self.broke(GONE)
            raise EnvFault(self._broken.result())
        finally:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()

    def broke(self, why: str) -> None:
        """Everything that is being done, and will be, raises `EnvFault(why)`."""
        if not self._broken.done():
            self._broken.set_result(why)

    def take_notices(self) -> list[str]:
        """What happened since the last time."""
        notices, self.notices = self.notices, []
        return notices

    # Moving about.

    async def goto(self, url: str) -> str | None:
        """Open an address in the active tab. None, or why it can't be opened."""
        url = url.strip()
        return self.hosts.refusal(url) or await self.guard(
            (await self._tab()).goto(url, self.hosts, self.options.patience.navigation)
        )

    async def go_back(self) -> str | None:
        """One page back in the active tab's history. None, or why not."""
        return await self.guard((await self._tab()).travel(-1))

    async def go_forward(self) -> str | None:
        """One page forward in the active tab's history. None, or why not."""
        return await self.guard((await self._tab()).travel(+1))

    async def new_tab(self) -> str | None:
        """Open a blank tab, which becomes the active one. None, or why not."""
        if len(self.tabs) >= self.options.max_tabs:
            return f"There are {len(self.tabs)} tabs already; close one first."
        page = await self.guard(self.context.new_page())
        if page in self._adopting:
            await self.guard(self._adopting[page])
        return None

    async def close_tab(self) -> str | None:
        """Close the active tab; the last of the others becomes active, or a blank one where there is none."""
        tab = await self._tab()
        await self.guard(tab.page.close())
        self._lose(tab.page)
        await self._tab()
        return None

    async def focus(self, index: int) -> str | None:
        """Make the tab of that index the active one. None, or why not."""
        if not 0 <= index < len(self.tabs):
            return f"There is no tab {index}; there are 0 to {len(self.tabs) - 1}."
        self.active = index
        await self.guard(self.tab.page.bring_to_front())
        return None

    async def settle(self) -> None:
        """Wait until the active tab is at rest and every window that a page asked for is there."""
        while True:
            tab = await self._tab()
            try:
                rest = await self.guard(come_to_rest(tab.cdp, tab.traffic, self.options.patience))
                await self.guard(self._await_popups())
            except TabClosed:
                continue
            for notice in (*rest.notices, *(why(failure, self.hosts) for failure in tab.traffic.take_failures())):
                self._tell(notice)
            tab.title, tab.elements = one_line(rest.title), rest.elements
            if self.tabs and tab is self.tab:
                return

    async def screenshot(self) -> bytes:
        """The active tab's viewport as PNG."""
        return await self.guard((await self._tab()).page.screenshot(animations="disabled"))

    @asynccontextmanager
    async def page_aside(self) -> AsyncGenerator[Page]:
        """A page of this context that is no tab, for looking at things unseen."""
        self._aside = True
        try:
            page = await self.guard(self.context.new_page())
        finally:
            self._aside = False
        try:
            yield page
        finally:
            await self.guard(page.close())

    async def close(self) -> None:
        """Close the context and all its tabs. May be called twice, and when the browser is gone."""
        if self._closing:
            return
        self._closing = True
        for task in (*self._adopting.values(), *self._chores):
            task.cancel()
        if self._broken.done() and self._broken.result() == GONE:
            return  # the context went with it
        with suppress(EnvFault, TabClosed, TimeoutError):  # it goes with the browser
            async with asyncio.timeout(_CLOSING):
                with playwright_errors():
                    await self.context.close()

    # What pages do by themselves.

    def _on_page(self, page: Page) -> None:
        if self._aside or self._closing:
            return
        open_tabs = len(self.tabs) + len(self._adopting)
        if open_tabs < self.options.max_tabs:
            self._adopting[page] = asyncio.create_task(self._adopt(page))
        else:
            self._popup_came()
            self._tell(f"The page opened another tab; as there were {open_tabs} already, it was closed.")
            self._chore(page.close())

    async def _adopt(self, page: Page) -> None:
        """Make a tab of a page."""
        try:
            if not urlsplit(page.url).scheme:  # opened for a download, it will never show anything
                await page.close()
                return
            page.on("crash", lambda _: self.broke("The page crashed."))
            page.on("close", self._lose)
            page.on("download", lambda download: self._on_download(download))
            cdp = await self.context.new_cdp_session(page)
            traffic = Traffic(cdp, self._on_popup)
            await traffic.watch()
            self.tabs.append(Tab(page, cdp, traffic))
            self.active = len(self.tabs) - 1
        except Error as error:
            if not is_closed(error):
                self.broke(f"The browser failed: {first_line(error)}")
        finally:
            self._adopting.pop(page, None)
            self._popup_came()

    def _on_popup(self) -> None:
        self._popups += 1

    def _popup_came(self) -> None:
        self._popups = max(0, self._popups - 1)
        self._changed.set()

    async def _await_popups(self) -> None:
        """Wait for the windows that pages asked for, which appear when their first page begins to answer."""
        try:
            async with asyncio.timeout(self.options.patience.loading):
                while self._popups or self._adopting:
                    self._changed.clear()
                    await self._changed.wait()
                if self._chores:
                    await asyncio.wait(self._chores)
        except TimeoutError:
            self._popups = 0
            self._tell("A tab that the page opened did not begin to load.")

    async def _on_dialog(self, dialog: Dialog) -> None:
        said = one_line(dialog.message)[:_QUOTED]
        leaving = dialog.type == "beforeunload"
        answer = "it was left all the same" if leaving else "it was dismissed"
        what = "The page asked whether to leave it" if leaving else f"The page showed a dialog ({dialog.type})"
        self._tell(f"{what} ({said!r}); {answer}." if said else f"{what}; {answer}.")
        # Who stayed for each such question could never leave some pages.
        await (dialog.accept() if leaving else dialog.dismiss())

    def _on_download(self, download: Download) -> None:
        self._tell(f"A download ({one_line(download.suggested_filename)[:_QUOTED]!r}) was refused.")

    def _tell(self, notice: str) -> None:
        if len(self.notices) < _MAX_NOTICES:  # a page may show dialogs all the time
            self.notices.append(notice)

    def _lose(self, page: Page) -> None:
        index = next((i for i, tab in enumerate(self.tabs) if tab.page is page), None)
        if index is None:
            return
        del self.tabs[index]
        if index == self.active:
            self.active = max(0, len(self.tabs) - 1)
        elif index < self.active:
            self.active -= 1

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        async def do() -> None:
            with suppress(Error):  # what it was about has gone meanwhile
                await work

        task = asyncio.create_task(do())
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    # How it is done.

    async def _tab(self) -> Tab:
        """The active tab, a new one where pages have closed them all."""
        if self._broken.done():
            raise EnvFault(self._broken.result())
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
    """A page's words without line breaks and control characters, which could pass for our own lines."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
