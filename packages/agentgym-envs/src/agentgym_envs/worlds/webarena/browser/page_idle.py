"""Waits until a tab has come to rest: nothing in flight, and its documents unchanged for a moment.

The document is watched from an isolated world of a random name: a page sees nothing of it and can't change what it
uses. Knows no actions and no tabs but the one it is given.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from playwright.async_api import CDPSession, Error

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.network_activity import Traffic
from agentgym_envs.worlds.webarena.browser.playwright_errors import is_lost

_WORLD = secrets.token_hex(16)
# A page may name its forms after the properties of `document` and so hide them; those of the prototype it can't reach.
_WATCH = """(async (grace, cap) => {
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
class Patience:
    """How long to wait for pages; all in seconds."""

    grace: float = 0.04
    """How long a document must stay unchanged with nothing in flight."""
    changing: float = 1.0
    """When a document that keeps changing is taken as it is."""
    loading: float = 5.0
    """When what a page still loads is no longer waited for, counted from when the page began to answer."""
    navigation: float = 30.0
    """When a page that no server sends is given up."""
    answering: float = 30.0
    """When a page whose scripts never end is given up."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A tab at rest."""

    title: str
    elements: int
    """How many the document and those in its frames have."""
    notices: tuple[str, ...]
    """What the agent should know about how it came to rest."""


async def come_to_rest(cdp: CDPSession, traffic: Traffic, patience: Patience) -> Rest:
    """Wait until the tab is at rest, or has had its time.

    Raises:
        EnvFault: when the page doesn't answer at all, as one in an endless loop.
        playwright.async_api.Error: when the tab closes.
    """
    clock = asyncio.get_running_loop().time
    notices: list[str] = []
    last = clock() + patience.navigation
    begun = clock()
    while True:
        if traffic.navigating:
            if not await _within(last, traffic, lambda: not traffic.navigating):
                await cdp.send("Page.stopLoading")
                traffic.forget()
                notices.append(f"The page did not finish loading within {patience.navigation:g} seconds.")
            begun = clock()
        end = min(last, begun + patience.loading)
        idle = await _within(end, traffic, lambda: traffic.navigating or not traffic.busy)
        if traffic.navigating and clock() < last:
            continue
        if not idle:
            traffic.forget()
            notices.append(f"The page was still loading after {patience.loading:g} seconds.")
        seen = traffic.count
        look = await _look(cdp, traffic, patience)
        if look is None:
            continue
        calm, title, elements = look
        if traffic.restless or traffic.count == seen or clock() >= end:
            if not (traffic.restless or (calm and traffic.count == seen)):
                traffic.restless = True
                notices.append("The page keeps changing by itself.")
            return Rest(title, elements, tuple(notices))


async def _within(end: float, traffic: Traffic, holds: Callable[[], bool]) -> bool:
    try:
        async with asyncio.timeout_at(end):
            await traffic.until(holds)
    except TimeoutError:
        return False
    return True


async def _look(cdp: CDPSession, traffic: Traffic, patience: Patience) -> tuple[bool, str, int] | None:
    """Whether the document has come to rest, its title and size; None when another took its place meanwhile."""
    changing = 3 * patience.grace if traffic.restless else patience.changing
    question = {"expression": f"{_WATCH}({1000 * patience.grace}, {1000 * changing})"}
    try:
        async with asyncio.timeout(patience.answering):
            world = await cdp.send("Page.createIsolatedWorld", {"frameId": traffic.main_frame, "worldName": _WORLD})
            where = {"contextId": world["executionContextId"], "awaitPromise": True, "returnByValue": True}
            answer = await cdp.send("Runtime.evaluate", question | where)
    except TimeoutError:
        raise EnvFault(f"The page did not answer within {patience.answering:g} seconds.") from None
    except Error as error:
        if is_lost(error):
            return None
        raise
    calm, title, elements = answer["result"].get("value", (True, "", 0))
    return bool(calm), str(title), int(elements)
