"""Wait until a tab is idle: nothing is in flight, no short timer is pending, and its documents stay unchanged for a
moment.

The document is observed from an isolated world with a random name, which the page can neither detect nor manipulate.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from playwright.async_api import CDPSession, Error

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.network_activity import NetworkActivity
from agentgym_envs.worlds.webarena.browser.page_timers import ANSWER, QUESTION
from agentgym_envs.worlds.webarena.browser.playwright_errors import is_lost

_WORLD = secrets.token_hex(16)
# A page may shadow properties of `document` with named forms, but not those of the prototype in this isolated world.
_WATCH_SCRIPT = (
    (
        """(async (grace, cap, since, patience) => {
  const all = Document.prototype.querySelectorAll, animations = Document.prototype.getAnimations;
  const tags = Document.prototype.getElementsByTagName;
  const title = Object.getOwnPropertyDescriptor(Document.prototype, "title").get;
  const {addEventListener, removeEventListener, dispatchEvent} = EventTarget.prototype;
  const began = Date.now(), documents = [];
  const size = node => {
    let count = tags.call(node, "*").length;
    for (const {contentDocument: inner} of all.call(node, "iframe, frame")) if (inner) count += size(inner);
    return count;
  };
  const timers = node => {
    let due = 0;
    const listen = event => { due = event.detail; };
    addEventListener.call(node, "ANSWER", listen);
    dispatchEvent.call(node, new CustomEvent("QUESTION", {detail: since}));
    removeEventListener.call(node, "ANSWER", listen);
    return due && Math.max(due - Date.now(), 1);
  };
  const appearing = node => animations.call(node)
    .filter(({transitionProperty: name}) => name === "visibility" || name === "display")
    .map(({effect, currentTime}) => effect.getComputedTiming().endTime - currentTime);
  const expected = () => {
    const left = began + patience - Date.now();
    return left > 0 ? Math.min(left, Math.max(0, ...documents.flatMap(node => [timers(node), ...appearing(node)]))) : 0;
  };
  let waited = 0;
  const calm = await new Promise(done => {
    let timer, limit, later;
    const stop = () => { for (const id of [timer, limit, later]) clearTimeout(id); };
    const start = () => {
      stop();
      later = undefined;
      limit = setTimeout(check, cap, false);
      timer = setTimeout(check, grace, true);
    };
    const check = calm => {
      stop();
      const wait = expected();
      if (wait > 0) {
        waited += wait;
        later = setTimeout(start, wait);
      } else {
        watcher.disconnect();
        done(calm);
      }
    };
    const watcher = new MutationObserver(() => {
      if (later !== undefined) {
        if (!expected()) start();
      } else {
        clearTimeout(timer);
        timer = setTimeout(check, grace, true);
      }
    });
    const watch = node => {
      documents.push(node);
      watcher.observe(node, {subtree: true, childList: true, attributes: true, characterData: true});
      for (const frame of all.call(node, "iframe, frame")) if (frame.contentDocument) watch(frame.contentDocument);
    };
    watch(document);
    start();
  });
  return [calm, title.call(document), size(document), waited];
})"""
    )
    .replace("QUESTION", QUESTION)
    .replace("ANSWER", ANSWER)
)


@dataclass(frozen=True, slots=True)
class IdleTimeouts:
    """How long to wait for pages, in seconds."""

    grace: float = 0.04
    """How long a document must stay unchanged with nothing in flight to be idle."""
    changing: float = 1.0
    """Timeout for a document that keeps changing; after it, the document is observed as it is."""
    timers: float = 1.0
    """Timeout for short timers that the last action started, and for delayed transitions of visibility. With 0, timers
    are not tracked."""
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


class _Inspection(NamedTuple):
    unchanged: bool
    title: str
    elements: int
    waited: float
    """Seconds spent on timers."""


async def wait_until_idle(
    cdp: CDPSession, network: NetworkActivity, timeouts: IdleTimeouts, since: float = 0.0
) -> IdlePage:
    """Wait until the tab is idle, or the timeouts have expired.

    Args:
        cdp: The tab's DevTools session.
        network: What the tab is loading.
        timeouts: The timeouts.
        since: The time in seconds since the epoch from which on the page's timers are waited for.

    Raises:
        EnvFault: if the page doesn't respond at all, for example in an endless loop.
        playwright.async_api.Error: if the tab closes.
    """
    clock = asyncio.get_running_loop().time
    notices: list[str] = []
    begun = clock()
    deadline, timers = begun + timeouts.navigation, timeouts.timers
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
        page = await _inspect(cdp, network, replace(timeouts, timers=timers), since)
        if page is None:
            continue
        timers -= page.waited
        if network.started != started and (page.waited or not network.keeps_changing) and clock() < end:
            continue
        if not (network.keeps_changing or (page.unchanged and network.started == started)):
            network.keeps_changing = True
            notices.append("The page keeps changing by itself.")
        return IdlePage(page.title, page.elements, tuple(notices))


async def _within(end: float, network: NetworkActivity, condition: Callable[[], bool]) -> bool:
    try:
        async with asyncio.timeout_at(end):
            await network.until(condition)
    except TimeoutError:
        return False
    return True


async def _inspect(
    cdp: CDPSession, network: NetworkActivity, timeouts: IdleTimeouts, since: float
) -> _Inspection | None:
    """Wait until the document is unchanged and no timer is pending; None if another document has replaced it."""
    changing = 3 * timeouts.grace if network.keeps_changing else timeouts.changing
    arguments = (1000 * timeouts.grace, 1000 * changing, int(1000 * since), 1000 * timeouts.timers)
    expression = {"expression": f"{_WATCH_SCRIPT}({', '.join(map(str, arguments))})"}
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
    unchanged, title, elements, waited = response["result"].get("value", (True, "", 0, 0))
    return _Inspection(bool(unchanged), str(title), int(elements), waited / 1000)
