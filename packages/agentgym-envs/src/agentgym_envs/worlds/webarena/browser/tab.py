"""A browser tab and its navigations."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.async_api import CDPSession, Error, Page
from playwright.async_api import TimeoutError as PlaywrightTimeoutError

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.hosts import BLANK, Hosts
from agentgym_envs.worlds.webarena.browser.network_activity import Failure, NetworkActivity
from agentgym_envs.worlds.webarena.browser.playwright_errors import first_line, is_closed

_ABORTED = "ERR_ABORTED"
_INTERRUPTED = "interrupted by another navigation"
"""Part of Playwright's error if the previous page started a navigation of its own."""
_DOWN_ERRORS = tuple(
    f"net::ERR_{kind}" for kind in ("CONNECTION_", "EMPTY_", "ADDRESS_", "NAME_", "TIMED_", "NETWORK_", "SOCKET_")
)
"""Prefixes of the errors that mean that a site is down."""


@dataclass(eq=False, slots=True)
class Tab:
    """A browser tab."""

    page: Page
    cdp: CDPSession
    """The page's DevTools session, open as long as the tab is, with the domains Page and Network enabled."""
    network: NetworkActivity
    title: str = ""
    """As of the last wait for an idle page."""
    elements: int = 0
    """Number of elements on the page, as of the last wait."""

    @property
    def url(self) -> str:
        """The URL of the current page."""
        return self.page.url

    async def goto(self, url: str, hosts: Hosts, timeout: float, *, retry: bool = True) -> str | None:
        """Open a URL.

        Args:
            url: The URL.
            hosts: The hosts that can be reached.
            timeout: Seconds for the page to load.
            retry: Whether to try once more if another navigation interrupts this one.

        Returns:
            None, or a sentence for the agent on why it wasn't opened.

        Raises:
            EnvFault: if the URL is one of the sites, which is down.
            playwright.async_api.Error: if the tab is closed.
        """
        self.network.take_failures()
        try:
            await self.page.goto(url, timeout=1000 * timeout, wait_until="domcontentloaded")
        except PlaywrightTimeoutError:
            await self.cdp.send("Page.stopLoading")
            self.network.forget()
            return f"{url} did not finish loading within {timeout:g} seconds."
        except Error as error:
            if is_closed(error):
                raise
            failures = self.network.take_failures()
            if failures:
                return describe_failure(failures[-1], hosts)
            if _INTERRUPTED in str(error):
                await self.network.until(lambda: not self.network.navigating)
                if self.url == url:
                    return None
            if retry and any(message in str(error) for message in (_ABORTED, _INTERRUPTED)):
                return await self.goto(url, hosts, timeout, retry=False)
            return f"{url} was not opened: {_reason(error)}."
        return None

    async def travel(self, by: int) -> str | None:
        """Go `by` pages forward in the history, or back if negative. Returns None, or a sentence on why it can't."""
        history = await self.cdp.send("Page.getNavigationHistory")
        target = history["currentIndex"] + by
        if not 0 <= target < len(history["entries"]) or history["entries"][target]["url"] == BLANK:
            return f"There is no page to go {'back' if by < 0 else 'forward'} to."
        await self.cdp.send("Page.navigateToHistoryEntry", {"entryId": history["entries"][target]["id"]})
        return None


def describe_failure(failure: Failure, hosts: Hosts) -> str:
    """Describe, as a sentence for the agent, why a page failed to load.

    Raises:
        EnvFault: if it belongs to one of the sites, which is down.
    """
    refusal = hosts.refusal(failure.url)
    if refusal is None and failure.error.startswith(_DOWN_ERRORS):
        raise EnvFault(f"The site at {failure.url} can't be reached ({failure.error}).")
    return refusal or f"{failure.url} can't be shown ({failure.error})."


def _reason(error: Error) -> str:
    text = first_line(error)
    return "it is a download, which is refused" if "Download is starting" in text else text.split(": ", 1)[-1]
