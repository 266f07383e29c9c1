"""An agent's mouse and keyboard on one page: finding the point of an element that a click would reach, and telling the
agent, by `Refused`, when there is none. It knows elements, not actions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Error

from agentgym_envs.worlds.webarena.browser.playwright_errors import is_lost
from agentgym_envs.worlds.webarena.browser.tab import Tab
from agentgym_envs.worlds.webarena.page import scripts
from agentgym_envs.worlds.webarena.page.geometry import Box
from agentgym_envs.worlds.webarena.page.observation import literal
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_GONE = ("No node found", "No node with given id", "Could not find node", "not belong to the document", "detached")
_UNDRAWN = ("Could not compute content quads", "does not have a layout object")
_SHOWN = 80


class Refused(Exception):
    """What was asked can't be done, for a reason that the agent is told."""


class Hand:
    """Mouse and keyboard on the page in `tab`, which looked as in `snapshot`."""

    def __init__(self, tab: Tab, snapshot: Snapshot) -> None:
        self.tab = tab
        self.snapshot = snapshot
        self.layout = snapshot.layout

    def element(self, id: int) -> Node:
        """The element with this id.

        Raises:
            Refused: when there is none.
        """
        node = self.snapshot.node(id)
        if node is None:
            raise Refused(f"There is no element [{id}]; the ids of this page go from 1 to {len(self.snapshot.nodes)}.")
        return node

    def tag(self, node: Node) -> str:
        """The name of an element's DOM node, in capitals."""
        return self.layout.tag(node.backend_id)

    async def click(self, node: Node) -> None:
        """Click an element.

        Raises:
            Refused: when it is gone, not displayed, or something else covers it.
        """
        try:
            x, y = await self.aim(node)
        except Refused:
            if node.role not in ("checkbox", "radio", "switch") or self.tag(node) != "INPUT":
                raise
            await self.call(node, scripts.CLICK)  # hidden behind a picture of itself, as pages like to do
            return
        await self.tab.page.mouse.click(x, y)

    async def hover(self, node: Node) -> None:
        """Put the mouse over an element. Raises as `click` does."""
        await self.tab.page.mouse.move(*await self.aim(node))

    async def call(self, node: Node, script: str, *arguments: Any) -> Any:
        """What a function says of an element.

        Raises:
            Refused: when it is gone.
        """
        async with self._refusing(node):
            this = await self._object(node.backend_id)
            return await self._call(this, script, *({"value": argument} for argument in arguments))

    async def aim(self, node: Node) -> tuple[float, float]:
        """The point, in the viewport, at which a click reaches an element; scrolls it into sight where it must.

        Raises:
            Refused: when it is gone, not displayed, or something else covers it.
        """
        async with self._refusing(node):
            target = node.backend_id
            scrolled = await self._scrolled()
            if node.seen is not None and scrolled == self.layout.scroll:
                point = _whole(node.seen)
                if self._plainly(await self._hit(point, scrolled), node, target):
                    return point
            await self.tab.cdp.send("DOM.scrollIntoViewIfNeeded", {"backendNodeId": target})
            scrolled, hit = await self._scrolled(), None
            for box in await self._boxes(target):
                hit = await self._hit(_whole(box), scrolled)
                if hit is not None and await self._related(node, target, hit):
                    return _whole(box)
        raise Refused(self._covered(node, hit))

    async def _boxes(self, target: int) -> list[Box]:
        """The boxes of a DOM node that are in the viewport: several for text that wraps."""
        quads = (await self.tab.cdp.send("DOM.getContentQuads", {"backendNodeId": target}))["quads"]
        boxes = [Box(min(q[::2]), min(q[1::2]), max(q[::2]), max(q[1::2])) for q in quads]
        parts = [(box, box.cut(self.layout.viewport)) for box in boxes]
        return [part for box, part in parts if box.shows(part)]

    async def _scrolled(self) -> tuple[float, float]:
        now = (await self.tab.cdp.send("Page.getLayoutMetrics"))["cssLayoutViewport"]
        return now["pageX"], now["pageY"]

    async def _hit(self, point: tuple[float, float], scrolled: tuple[float, float]) -> int | None:
        """The DOM node at a point of the viewport."""
        x, y = (int(at + by) for at, by in zip(point, scrolled, strict=True))
        try:
            return (await self.tab.cdp.send("DOM.getNodeForLocation", {"x": x, "y": y}))["backendNodeId"]
        except Error as error:
            if "No node found" in str(error):
                return None
            raise

    def _plainly(self, hit: int | None, node: Node, target: int) -> bool:
        """Whether what is hit is, by the snapshot, the target or inside it."""
        if hit is None:
            return False
        around = self.layout.parents.get(target) if node.role == "StaticText" else None
        return hit == around or target in self.layout.ancestors(hit)

    async def _related(self, node: Node, target: int, hit: int) -> bool:
        """Whether a click on what is hit is one on the target, by what the page is now."""
        if self._plainly(hit, node, target):
            return True
        try:
            this, other = await self._object(target), await self._object(hit)
            return await self._call(this, scripts.RELATED, {"objectId": other})
        except Error as error:
            if "same JavaScript world" in str(error):  # one of them is in a frame
                return False
            raise

    def _covered(self, node: Node, hit: int | None) -> str:
        above = None if hit is None else self.snapshot.owner(hit)
        around = {at.id for at in self._up(node)}
        if above is None or above.id in around:
            return f"{described(node)} can't be reached: it is covered or out of sight."
        # Of a dialog and a button in it, the dialog is what is in the way.
        above = [at for at in self._up(above) if at.id not in around][-1]
        return f"{described(node)} can't be reached: {described(above)} is in front of it."

    def _up(self, node: Node) -> Iterator[Node]:
        """The node and what it stands in, outwards."""
        at: Node | None = node
        while at is not None:
            yield at
            at = self.snapshot.node(at.parent or 0)

    async def _object(self, target: int) -> str:
        return (await self.tab.cdp.send("DOM.resolveNode", {"backendNodeId": target}))["object"]["objectId"]

    async def _call(self, this: str, script: str, *arguments: dict[str, Any]) -> Any:
        asked = {"objectId": this, "functionDeclaration": script, "arguments": list(arguments), "returnByValue": True}
        answer = await self.tab.cdp.send("Runtime.callFunctionOn", asked)
        if "exceptionDetails" in answer:
            raise Refused("The page's own script gets in the way of this.")
        return answer["result"].get("value")

    @asynccontextmanager
    async def _refusing(self, node: Node) -> AsyncGenerator[None]:
        """Tells the agent what Chromium says of an element that is no more."""
        try:
            yield
        except Error as error:
            said = str(error)
            if any(words in said for words in _UNDRAWN):
                raise Refused(f"{described(node)} is not displayed now.") from error
            if is_lost(error) or any(words in said for words in _GONE):
                raise Refused(f"{described(node)} is no longer there: the page has changed.") from error
            if "Protocol error (DOM." in said:  # such as for content that a style sheet makes
                raise Refused(f"{described(node)} can't be reached.") from error
            raise


def described(node: Node) -> str:
    """An element as the agent knows it, such as `[3] button 'Buy'`."""
    name = node.name if len(node.name) <= _SHOWN else f"{node.name[:_SHOWN]}…"
    return f"[{node.id}] {node.role} {literal(name)}"


def _whole(box: Box) -> tuple[float, float]:
    """The middle, in whole pixels: what is looked for at a point is what is clicked."""
    x, y = box.centre
    return float(int(x)), float(int(y))
