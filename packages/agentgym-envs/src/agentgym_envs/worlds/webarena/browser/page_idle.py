"""Wait until a tab is idle: nothing is in flight, and its documents stay unchanged for a moment.

The document is observed from an isolated world with a random name, which the page can neither detect nor manipulate.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from playwright.async_api import CDPSession, Error

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.network_activity import NetworkActivity
from agentgym_envs.worlds.webarena.browser.playwright_errors import is_lost

_WORLD = secrets.token_hex(16)
# A page may shadow properties of `document` with named forms, but not those of the prototype in this isolated world.
_WATCH_SCRIPT = """(async (grace, cap) => {
  const all = Document.prototype.querySelectorAll;
  const tags = Document.prototype.getElementsByTagName;
  const title = Object.getOwnPropertyDescriptor(Document.prototype, "title").get;
  const size = node => {
    let count = tags.call(node, "*").length;
    for (const {contentDocument: inner} of all.call(node, "iframe, frame")) if (inner) count += size(inner);
    return count;
  };
  const calm = await new Promise(done => {
    let timer, limit;
    const end = calm => { watcher.disconnect(); clearTimeout(timer); clearTimeout(limit); done(calm); };
    const watcher = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(end, grace, true); });
    const watch = node => {
      watcher.observe(node, {subtree: true, childList: true, attributes: true, characterData: true});
      for (const frame of all.call(node, "iframe, frame")) if (frame.contentDocument) watch(frame.contentDocument);
    };
    watch(document);
    limit = setTimeout(end, cap, false);
    timer = setTimeout(end, grace, true);
  });
  return [calm, title.call(document), size(document)];
})"""


@dataclass(frozen=True, slots=True)
class IdleTimeouts:
    """How long to wait for pages, in seconds."""

    grace: float = 0.04
    """How long a document must stay unchanged with nothing in flight to be idle."""
    changing: float = 1.0
    """Timeout for a document that keeps changing; after it, the document is observed as it is."""
    loading: float = 5.0
    """Timeout for everything that a page loads, counted from the beginning of its response."""
    navigation: float = 30.0
    """Timeout for a navigation to which the server does not respond."""
    answering: float = 30.0
    """Timeout for a page whose scripts block it."""


@dataclass(frozen=True, slots=True)
class IdlePage:
    """The state of a tab that is idle."""

    title: str
    elements: int
    """Number of elements in the document and those of its frames."""
    notices: tuple[str, ...]
    """Messages for the agent about the wait, such as timeouts."""


async def wait_until_idle(cdp: CDPSession, network: NetworkActivity, timeouts: IdleTimeouts) -> IdlePage:
    """Wait until the tab is idle, or the timeouts have expired.

    Raises:
        EnvFault: if the page doesn't respond at all, for example in an endless loop.
        playwright.async_api.Error: if the tab closes.
    """
    clock = asyncio.get_running_loop().time
    notices: list[str] = []
    deadline = clock() + timeouts.navigation
    begun = clock()
    while True:
        if network.navigating:
            if not await _within(deadline, network, lambda: not network.navigating):
                await cdp.send("Page.stopLoading")
                network.forget()
                notices.append(f"The page did not finish loading within {timeouts.navigation:g} seconds.")
            begun = clock()
        end = min(deadline, begun + timeouts.loading)
        idle = await _within(end, network, lambda: network.navigating or not network.busy)
        if network.navigating and clock() < deadline:
            continue
        if not idle:
            network.forget()
            notices.append(f"The page was still loading after {timeouts.loading:g} seconds.")
        started = network.started
        inspected = await _inspect(cdp, network, timeouts)
        if inspected is None:
            continue
        unchanged, title, elements = inspected
        if network.keeps_changing or network.started == started or clock() >= end:
            if not (network.keeps_changing or (unchanged and network.started == started)):
                network.keeps_changing = True
                notices.append("The page keeps changing by itself.")
            return IdlePage(title, elements, tuple(notices))


async def _within(end: float, network: NetworkActivity, condition: Callable[[], bool]) -> bool:
    try:
        async with asyncio.timeout_at(end):
            await network.until(condition)
    except TimeoutError:
        return False
    return True


async def _inspect(cdp: CDPSession, network: NetworkActivity, timeouts: IdleTimeouts) -> tuple[bool, str, int] | None:
    """Return whether the document is unchanged, its title and its size; None if another document has replaced it."""
    changing = 3 * timeouts.grace if network.keeps_changing else timeouts.changing
    expression = {"expression": f"{_WATCH_SCRIPT}({1000 * timeouts.grace}, {1000 * changing})"}
    try:
        async with asyncio.timeout(timeouts.answering):
            world = await cdp.send("Page.createIsolatedWorld", {"frameId": network.main_frame, "worldName": _WORLD})
            options = {"contextId": world["executionContextId"], "awaitPromise": True, "returnByValue": True}
            response = await cdp.send("Runtime.evaluate", expression | options)
    except TimeoutError:
        raise EnvFault(f"The page did not respond within {timeouts.answering:g} seconds.") from None
    except Error as error:
        if is_lost(error):
            return None
        raise
    unchanged, title, elements = response["result"].get("value", (True, "", 0))
    return bool(unchanged), str(title), int(elements)
