"""What a tab is loading, followed through the events of the DevTools protocol. Waits for nothing by the clock.

Within one DevTools session events keep their order: once the page has answered a question that was put after a click,
every navigation and request which that click's handlers began has been seen here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playwright.async_api import CDPSession

_ENDLESS = ("EventSource", "Media", "Ping", "CSPViolationReport", "Prefetch")
"""Kinds of requests that may go on for ever, or that no page waits for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A page that couldn't be loaded into the tab."""

    url: str
    """The address at which it failed; behind redirects the last one."""
    error: str
    """Chromium's word for it, such as `net::ERR_CONNECTION_REFUSED`."""


@dataclass(frozen=True, slots=True)
class _Request:
    url: str
    kind: str
    frame: str
    loader: str


class Traffic:
    """What is in flight in one tab, subframes included."""

    def __init__(self, cdp: CDPSession, popup: Callable[[], None]) -> None:
        """Follow a tab.

        Args:
            cdp: The DevTools session of the tab's page; `watch` turns its events on.
            popup: Called when the page asks for another window.
        """
        self._cdp = cdp
        self._popup = popup
        self._main = ""
        self._asked: set[str] = set()
        self._loading: set[str] = set()
        self._requests: dict[str, _Request] = {}
        self._failures: list[Failure] = []
        self._changed = asyncio.Event()
        self._coming: str | None = None
        self.count = 0
        """Grows with everything that begins."""
        self.restless = False
        """Whether this document was found to change all the time, as one with a running clock does."""

    @property
    def navigating(self) -> bool:
        """Whether the tab is on its way to another page, which has not begun to answer."""
        return self._coming is not None

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return bool(self.navigating or self._asked or self._loading or self._requests)

    @property
    def main_frame(self) -> str:
        """DevTools' id of the main frame."""
        return self._main

    async def watch(self) -> None:
        """Begin."""
        handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "Page.frameRequestedNavigation": self._on_asked,
            "Page.frameClearedScheduledNavigation": lambda event: self._asked.discard(event["frameId"]),
            "Page.frameStartedNavigating": self._on_navigating,
            "Page.frameStartedLoading": self._on_loading,
            "Page.frameStoppedLoading": self._on_stopped,
            "Page.frameNavigated": self._on_navigated,
            "Page.frameDetached": lambda event: self._drop_frame(event["frameId"]),
            "Page.windowOpen": lambda event: self._popup(),
            "Network.requestWillBeSent": self._on_request,
            "Network.loadingFinished": lambda event: self._requests.pop(event["requestId"], None),
            "Network.loadingFailed": self._on_failed,
        }
        for name, handler in handlers.items():
            self._cdp.on(name, self._then_wake(handler))
        tree, *_ = await asyncio.gather(
            self._cdp.send("Page.getFrameTree"), self._cdp.send("Page.enable"), self._cdp.send("Network.enable")
        )
        self._main = tree["frameTree"]["frame"]["id"]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds`, which is asked after each event."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def forget(self) -> None:
        """Wait no more for what is in flight now."""
        self._coming = None
        self._asked.clear()
        self._loading.clear()
        self._requests.clear()

    def take_failures(self) -> list[Failure]:
        """The pages that couldn't be loaded since the last time."""
        failures, self._failures = self._failures, []
        return failures

    def _then_wake(self, handler: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
        def handle(event: dict[str, Any]) -> None:
            handler(event)
            self._changed.set()

        return handle

    def _on_asked(self, event: dict[str, Any]) -> None:
        if event["disposition"] == "currentTab":
            self._asked.add(event["frameId"])
            self.count += 1

    def _on_navigating(self, event: dict[str, Any]) -> None:
        self._asked.discard(event["frameId"])
        self.count += 1
        if event["frameId"] == self._main and "ameDocument" not in event["navigationType"]:
            self._coming = event["loaderId"]

    def _on_loading(self, event: dict[str, Any]) -> None:
        self._loading.add(event["frameId"])
        self.count += 1

    def _on_stopped(self, event: dict[str, Any]) -> None:
        frame = event["frameId"]
        self._asked.discard(frame)
        self._loading.discard(frame)
        if frame == self._main:
            self._coming = None

    def _on_navigated(self, event: dict[str, Any]) -> None:
        """A new document took a frame over; nobody waits any more for what the old one had asked for."""
        frame = event["frame"]
        if frame["id"] == self._main:
            self.restless = False
            if frame["loaderId"] == self._coming:
                self._coming = None
            self._requests = {i: r for i, r in self._requests.items() if r.loader == frame["loaderId"]}
        else:
            self._requests = {
                i: r for i, r in self._requests.items() if r.frame != frame["id"] or r.loader == frame["loaderId"]
            }

    def _drop_frame(self, frame: str) -> None:
        self._asked.discard(frame)
        self._loading.discard(frame)
        self._requests = {i: r for i, r in self._requests.items() if r.frame != frame}

    def _on_request(self, event: dict[str, Any]) -> None:
        kind = event.get("type", "Other")
        if kind not in _ENDLESS and event["loaderId"]:  # a worker's script has none, and its end isn't told here
            url, frame = event["request"]["url"], event.get("frameId", "")
            self._requests[event["requestId"]] = _Request(url, kind, frame, event["loaderId"])
            self.count += 1

    def _on_failed(self, event: dict[str, Any]) -> None:
        request = self._requests.pop(event["requestId"], None)
        if request is None or request.kind != "Document" or request.frame != self._main:
            return
        if not event.get("canceled") and event["errorText"] != "net::ERR_ABORTED":
            self._failures.append(Failure(request.url, event["errorText"]))
