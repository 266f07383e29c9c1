"""The options of a browser session, and their translation to Playwright's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts

MAX_TABS = 8


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options that a browser context is opened with."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """HTTP headers sent with every request."""
    cookies: Sequence[Mapping[str, Any]] = ()
    """In the form that Playwright's `add_cookies` takes."""
    storage_state: Mapping[str, Any] | str | Path | None = None
    """Cookies and local storage as Playwright stores them, or a file with them."""
    viewport: tuple[int, int] = (1280, 720)
    """Width and height in pixels."""
    geolocation: Mapping[str, float] | None = None
    """`latitude` and `longitude`; None denies pages the geolocation."""
    record_har_path: str | Path | None = None
    """The HAR file to which the requests are written when the session closes."""
    init_scripts: Sequence[str] = ()
    """JavaScript that runs in every document before its own scripts."""
    max_tabs: int = MAX_TABS
    timeouts: IdleTimeouts = field(default_factory=IdleTimeouts)

    def for_context(self) -> dict[str, Any]:
        """Return the arguments of Playwright's `new_context`."""
        width, height = self.viewport
        return {
            "viewport": {"width": width, "height": height},
            "device_scale_factor": 1,
            "reduced_motion": "reduce",
            "locale": "en-US",
            "timezone_id": "UTC",
            "accept_downloads": False,
            "service_workers": "block",
            "permissions": ["geolocation"] if self.geolocation else [],
            "geolocation": dict(self.geolocation) if self.geolocation else None,
            "extra_http_headers": dict(self.headers),
            "storage_state": self.storage_state,
            "record_har_path": self.record_har_path,
        }

    def for_cookies(self) -> list[Any]:
        """Return the argument of Playwright's `add_cookies`."""
        return [dict(cookie) for cookie in self.cookies]
