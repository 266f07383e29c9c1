"""What a session is opened with. Knows what Playwright calls it, and does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym_envs.worlds.webarena.browser.page_idle import Patience

MAX_TABS = 8


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a browser context is opened with."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """HTTP headers of every request."""
    cookies: Sequence[Mapping[str, Any]] = ()
    """As Playwright's `add_cookies` takes them."""
    storage_state: Mapping[str, Any] | str | Path | None = None
    """Cookies and local storage as Playwright stores them, or the file that they are in."""
    viewport: tuple[int, int] = (1280, 720)
    """Width and height in pixels."""
    geolocation: Mapping[str, float] | None = None
    """`latitude` and `longitude`; without them a page isn't told where it is."""
    record_har_path: str | Path | None = None
    """Where the requests are written to, as HAR, when the session closes."""
    init_scripts: Sequence[str] = ()
    """JavaScript that runs in every document before its own."""
    max_tabs: int = MAX_TABS
    patience: Patience = field(default_factory=Patience)

    def for_context(self) -> dict[str, Any]:
        """The arguments of Playwright's `new_context`."""
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
        """The argument of Playwright's `add_cookies`."""
        return [dict(cookie) for cookie in self.cookies]
