"""What is observed of a browser session: its tabs, and the page of the active one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.images import pixels
from agentgym_envs.util.screenshots import Box, ElementBoxes, ScreenshotStore
from agentgym_envs.worlds.webarena.actions.marked import marked_screenshot
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page.element_names import ElementNames
from agentgym_envs.worlds.webarena.page.snapshot import Snapshot, take_snapshot


@dataclass(frozen=True)
class Observed:
    """The tabs and the active one's page, after an action."""

    titles: tuple[str, ...]
    """Of the tabs."""
    addresses: tuple[str, ...]
    """Of the tabs."""
    active: int
    """Index of the active tab."""
    page: Snapshot
    """Of the active tab."""
    screenshot: bytes | None
    """The active tab's, as PNG; None if none was taken."""
    notices: tuple[str, ...]
    """Events since the last action, a sentence each."""

    @property
    def title(self) -> str:
        """The active tab's title."""
        return self.titles[self.active]

    @property
    def address(self) -> str:
        """The active tab's URL."""
        return self.addresses[self.active]

    @cached_property
    def names(self) -> ElementNames:
        """The names of the page's elements."""
        return ElementNames(self.page.nodes)

    def pixels(self) -> NDArray[np.uint8]:
        """Return the screenshot as an array of shape (height, width, 3). Raises `EnvFault` if there is none."""
        if self.screenshot is None:
            raise EnvFault("There is no screenshot of this page.")
        return pixels(self.screenshot)

    def write_screenshot(
        self, store: ScreenshotStore, task_id: str, observation: str, viewport: tuple[int, int], *, by_name: bool
    ) -> None:
        """Write the screenshot, if there is one, with the boxes of the elements by id or name.

        Raises:
            EnvFault: if it can't be written.
        """
        if self.screenshot is None:
            return
        try:
            store.put(task_id, observation, self.screenshot, ElementBoxes(*viewport, self.boxes(by_name=by_name)))
        except OSError as error:
            raise EnvFault(f"Cannot write a screenshot to {store.folder}: {error}") from error

    def boxes(self, *, by_name: bool) -> dict[str, Box]:
        """Return the visible part of each visible element, by id or name."""
        seen = ((node, node.seen) for node in self.page.nodes)
        return {self.names.of(node) if by_name else str(node.id): box for node, box in seen if box is not None}


async def observe(session: Session, *notices: str, icons: bool, screenshot: bool, marks: bool) -> Observed:
    """Wait until the page is idle, then observe it.

    Args:
        session: The session.
        *notices: Sentences that come before the session's own notices.
        icons: Whether icons without a name have the property `icon`.
        screenshot: Whether to take a screenshot.
        marks: Whether to draw marks on it.

    Raises:
        EnvFault: if the browser fails.
    """
    while True:
        await session.settle()
        try:
            page = await session.guard(take_snapshot(session.tab, icons=icons))
            picture = None
            if screenshot:
                picture = await (marked_screenshot(session, page) if marks else session.screenshot())
            break
        except TabClosed:
            continue
    return Observed(
        titles=tuple(tab.title for tab in session.tabs),
        addresses=tuple(tab.url for tab in session.tabs),
        active=session.active,
        page=page,
        screenshot=picture,
        notices=(*notices, *session.take_notices()),
    )
