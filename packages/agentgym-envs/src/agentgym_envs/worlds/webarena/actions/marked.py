"""Screenshots with marks on the elements that a click reaches."""

from __future__ import annotations

import asyncio

from agentgym_envs.worlds.webarena.actions.input import PageInput
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page.marks import draw_marks, marked_nodes
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot


async def reachable_marks(session: Session, page: Snapshot) -> list[Node]:
    """Return the visible elements of the active tab that can be acted on and that nothing else covers.

    Raises:
        EnvFault: if the browser fails.
        TabClosed: if the tab closes.
    """
    return await session.guard(PageInput(session.tab, page).reachable(marked_nodes(page)))


async def marked_screenshot(session: Session, page: Snapshot) -> bytes:
    """Return a screenshot of the active tab, whose snapshot is `page`, with marks, as PNG.

    Raises:
        EnvFault: if the browser fails.
        TabClosed: if the tab closes.
    """
    png = await session.screenshot()
    return await asyncio.to_thread(draw_marks, png, await reachable_marks(session, page))
