"""A tab, and how it gets from page to page. Knows no other tab."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.async_api import CDPSession, Error, Page
from playwright.async_api import TimeoutError as PlaywrightTimeoutError

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.hosts import BLANK, Hosts
from agentgym_envs.worlds.webarena.browser.network_activity import Failure, Traffic
from agentgym_envs.worlds.webarena.browser.playwright_errors import first_line, is_closed

_ABORTED = "ERR_ABORTED"
_INTERRUPTED = "interrupted by another navigation"
"""What is said when the page before was about to leave by itself."""
_DOWN = tuple(
    f"net::ERR_{kind}" for kind in ("CONNECTION_", "EMPTY_", "ADDRESS_", "NAME_", "TIMED_", "NETWORK_", "SOCKET_")
)
"""How errors begin that say that nobody is there."""


@dataclass(eq=False, slots=True)
class Tab:
    """A tab."""

    page: Page
    cdp: CDPSession
    """A DevTools session with the page, open as long as the tab is, with the domains Page and Network turned on."""
    traffic: Traffic
    title: str = ""
    """As of the last look."""
    elements: int = 0
    """How many its page had at the last look."""

    @property
    def url(self) -> str:
        """The address."""
        return self.page.url

    async def goto(self, url: str, hosts: Hosts, patience: float, *, again: bool = True) -> str | None:
        """Open an address.

        Args:
            url: Where to.
            hosts: What can be reached.
            patience: Seconds for the page to come.
            again: Whether to try once more when another navigation got in the way.

        Returns:
            None, or a sentence that says why it wasn't opened.

        Raises:
            EnvFault: when it is one of the sites, which is down.
            playwright.async_api.Error: when the tab is closed.
        """
        self.traffic.take_failures()
        try:
            await self.page.goto(url, timeout=1000 * patience, wait_until="domcontentloaded")
        except PlaywrightTimeoutError:
            await self.cdp.send("Page.stopLoading")
            self.traffic.forget()
            return f"{url} did not finish loading within {patience:g} seconds."
        except Error as error:
            if is_closed(error):
                raise
            failures = self.traffic.take_failures()
            if failures:
                return why(failures[-1], hosts)
            if _INTERRUPTED in str(error):
                await self.traffic.until(lambda: not self.traffic.navigating)
                if self.url == url:
                    return None
            if again and any(said in str(error) for said in (_ABORTED, _INTERRUPTED)):
                return await self.goto(url, hosts, patience, again=False)
            return f"{url} was not opened: {_reason(error)}."
        return None

    async def travel(self, by: int) -> str | None:
        """Go `by` pages forward in the history, back when it is negative. None, or a sentence that says why not."""
        history = await self.cdp.send("Page.getNavigationHistory")
        to = history["currentIndex"] + by
        if not 0 <= to < len(history["entries"]) or history["entries"][to]["url"] == BLANK:
            return f"There is no page to go {'back' if by < 0 else 'forward'} to."
        await self.cdp.send("Page.navigateToHistoryEntry", {"entryId": history["entries"][to]["id"]})
        return None


def why(failure: Failure, hosts: Hosts) -> str:
    """Why a page couldn't be loaded, as a sentence.

    Raises:
        EnvFault: when it is one of the sites, which is down.
    """
    refusal = hosts.refusal(failure.url)
    if refusal is None and failure.error.startswith(_DOWN):
        raise EnvFault(f"The site at {failure.url} can't be reached ({failure.error}).")
    return refusal or f"{failure.url} can't be shown ({failure.error})."


def _reason(error: Error) -> str:
    text = first_line(error)
    return "it is a download, which is refused" if "Download is starting" in text else text.split(": ", 1)[-1]
