"""Track what a tab is loading through events of the DevTools protocol, without timers.

Within one DevTools session events are ordered: once the page has responded to a command that was sent after a click,
the events of all navigations and requests that the click's handlers started have arrived here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playwright.async_api import CDPSession

_ENDLESS = ("EventSource", "Media", "Ping", "CSPViolationReport", "Prefetch")
"""Types of requests that may never end, or that no page waits for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A page that failed to load in the tab."""

    url: str
    """The URL that failed: the last one after redirects."""
    error: str
    """Chromium's error, such as `net::ERR_CONNECTION_REFUSED`."""


@dataclass(frozen=True, slots=True)
class _Request:
    url: str
    kind: str
    frame: str
    loader: str


class NetworkActivity:
    """The requests and navigations in flight in one tab, including its subframes."""

    def __init__(self, cdp: CDPSession, popup: Callable[[], None]) -> None:
        """Initialize the tracker of a tab.

        Args:
            cdp: The DevTools session of the tab's page; `watch` enables its events.
            popup: Called when the page opens another window.
        """
        self._cdp = cdp
        self._popup = popup
        self._main = ""
        self._requested: set[str] = set()
        self._loading: set[str] = set()
        self._requests: dict[str, _Request] = {}
        self._failures: list[Failure] = []
        self._changed = asyncio.Event()
        self._navigation: str | None = None
        self.started = 0
        """Incremented with every navigation, load and request that starts."""
        self.keeps_changing = False
        """Whether the current document was found to change continuously, for example because it shows a clock."""

    @property
    def navigating(self) -> bool:
        """Whether the tab is navigating to another page whose response has not begun."""
        return self._navigation is not None

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return bool(self.navigating or self._requested or self._loading or self._requests)

    @property
    def main_frame(self) -> str:
        """The DevTools id of the main frame."""
        return self._main

    async def watch(self) -> None:
        """Start tracking."""
        handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "Page.frameRequestedNavigation": self._on_requested_navigation,
            "Page.frameClearedScheduledNavigation": lambda event: self._requested.discard(event["frameId"]),
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

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is checked after each event."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def forget(self) -> None:
        """Stop tracking everything that is in flight now."""
        self._navigation = None
        self._requested.clear()
        self._loading.clear()
        self._requests.clear()

    def take_failures(self) -> list[Failure]:
        """Return the pages that failed to load since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def _then_wake(self, handler: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
        def handle(event: dict[str, Any]) -> None:
            handler(event)
            self._changed.set()

        return handle

    def _on_requested_navigation(self, event: dict[str, Any]) -> None:
        if event["disposition"] == "currentTab":
            self._requested.add(event["frameId"])
            self.started += 1

    def _on_navigating(self, event: dict[str, Any]) -> None:
        self._requested.discard(event["frameId"])
        self.started += 1
        if event["frameId"] == self._main and "ameDocument" not in event["navigationType"]:
            self._navigation = event["loaderId"]

    def _on_loading(self, event: dict[str, Any]) -> None:
        self._loading.add(event["frameId"])
        self.started += 1

    def _on_stopped(self, event: dict[str, Any]) -> None:
        frame = event["frameId"]
        self._requested.discard(frame)
        self._loading.discard(frame)
        if frame == self._main:
            self._navigation = None

    def _on_navigated(self, event: dict[str, Any]) -> None:
        """Drop the requests of the document that a new one has replaced."""
        frame = event["frame"]
        if frame["id"] == self._main:
            self.keeps_changing = False
            if frame["loaderId"] == self._navigation:
                self._navigation = None
            self._requests = {i: r for i, r in self._requests.items() if r.loader == frame["loaderId"]}
        else:
            self._requests = {
                i: r for i, r in self._requests.items() if r.frame != frame["id"] or r.loader == frame["loaderId"]
            }

    def _drop_frame(self, frame: str) -> None:
        self._requested.discard(frame)
        self._loading.discard(frame)
        self._requests = {i: r for i, r in self._requests.items() if r.frame != frame}

    def _on_request(self, event: dict[str, Any]) -> None:
        kind = event.get("type", "Other")
        # The script of a worker has no loader, and its end is not reported in this session.
        if kind not in _ENDLESS and event["loaderId"]:
            url, frame = event["request"]["url"], event.get("frameId", "")
            self._requests[event["requestId"]] = _Request(url, kind, frame, event["loaderId"])
            self.started += 1

    def _on_failed(self, event: dict[str, Any]) -> None:
        request = self._requests.pop(event["requestId"], None)
        if request is None or request.kind != "Document" or request.frame != self._main:
            return
        if not event.get("canceled") and event["errorText"] != "net::ERR_ABORTED":
            self._failures.append(Failure(request.url, event["errorText"]))
