"""Mouse and keyboard input on one page.

It finds a point at which a click reaches an element, and raises `ActionRefused` with a sentence for the agent if there
is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any

from playwright.async_api import Error

from agentgym_envs.worlds.webarena.actions.action_types import Point
from agentgym_envs.worlds.webarena.browser.playwright_errors import is_lost
from agentgym_envs.worlds.webarena.browser.tab import Tab
from agentgym_envs.worlds.webarena.page import scripts
from agentgym_envs.worlds.webarena.page.geometry import Box
from agentgym_envs.worlds.webarena.page.observation import literal
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_GONE = ("No node found", "No node with given id", "Could not find node", "not belong to the document", "detached")
_NOT_DISPLAYED = ("Could not compute content quads", "does not have a layout object")
_SHOWN = 80
_DRAG_STEPS = 10  # many libraries for dragging need several moves
_SHARES = (0.5, 0.1, 0.9)  # of an element's width and height
_HOVER_CHECKS, _HOVER_PAUSE = 10, 0.05  # pause in seconds
_REPLACED = frozenset(("checkbox", "radio", "switch"))
_LABELLED = frozenset(("INPUT", "SELECT", "TEXTAREA"))
_OWNERS = frozenset(("A", "BUTTON", "LABEL", "SUMMARY"))
_CLICKS: dict[str, dict[str, Any]] = {"single": {}, "double": {"click_count": 2}, "right": {"button": "right"}}


class ActionRefused(Exception):
    """The action can't be performed; the message is a sentence for the agent."""


class PageInput:
    """Mouse and keyboard for the page in `tab`, of which `snapshot` was taken."""

    def __init__(self, tab: Tab, snapshot: Snapshot) -> None:
        self.tab = tab
        self.snapshot = snapshot
        self.layout = snapshot.layout

    def element(self, id: int) -> Node:
        """Return the element with this id.

        Raises:
            ActionRefused: if there is none.
        """
        node = self.snapshot.node(id)
        if node is None:
            raise ActionRefused(
                f"There is no element [{id}]; the ids of this page go from 1 to {len(self.snapshot.nodes)}."
            )
        return node

    async def element_at(self, point: Point, *, exact: bool = False) -> Node:
        """Return the innermost element at a point of the window; with `exact`, its DOM node is the innermost one there,
        even if the observation doesn't have it.

        Raises:
            ActionRefused: if the point is outside of the window, or the observation has no element there.
        """
        place = await self._locate(point)
        hit = await self._hit(place, await self._scroll_offset())
        node = None if hit is None else self.snapshot.owner(hit)
        if node is None:
            raise ActionRefused(f"There is no element at the point {point.x},{point.y}.")
        return replace(node, backend_id=hit) if exact and hit is not None else node

    def tag(self, node: Node) -> str:
        """Return the name of an element's DOM node in upper case."""
        return self.layout.tag(node.backend_id)

    async def click(self, node: Node, kind: str = "single") -> None:
        """Click an element; `kind` is `single`, `double` or `right`.

        Raises:
            ActionRefused: if it is gone, not displayed, or covered by something else.
        """
        try:
            x, y = await self.aim(node)
        except ActionRefused:
            if kind != "single" or node.role not in _REPLACED or self.tag(node) != "INPUT":
                raise
            await self.call(node, scripts.CLICK)  # pages often hide the input behind a styled replacement
            return
        await self.tab.page.mouse.move(x, y)
        await self._await_hover_effects(node, (x, y))
        await self.tab.page.mouse.click(x, y, **_CLICKS[kind])

    async def click_at(self, point: Point, kind: str = "single") -> None:
        """Click a point of the window. Raises `ActionRefused` if it is outside of it."""
        await self.tab.page.mouse.click(*await self._locate(point), **_CLICKS[kind])

    async def hover(self, target: Node | Point) -> None:
        """Move the mouse over an element or a point. Raises the same exceptions as `click`."""
        await self.tab.page.mouse.move(*await self._locate(target))

    async def drag(self, source: Node | Point, destination: Node | Point) -> None:
        """Press the mouse button at one place, move to another, and release it there.

        Raises:
            ActionRefused: if one of them can't be reached, or the window can't show both.
        """
        start, end = await self._locate_both(source, destination)
        mouse = self.tab.page.mouse
        await mouse.move(*start)
        await mouse.down()
        try:
            await mouse.move(*end, steps=_DRAG_STEPS)
        finally:
            await mouse.up()

    async def _locate_both(
        self, source: Node | Point, destination: Node | Point
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return points at which the mouse reaches both without scrolling in between."""
        await self._locate(source)
        end = await self._locate(destination)
        try:
            return await self._locate(source, scroll=False), end
        except ActionRefused:
            start = await self._locate(source)
        try:
            return start, await self._locate(destination, scroll=False)
        except ActionRefused as refusal:
            raise ActionRefused("The two places are too far apart: the window can't show both at once.") from refusal

    async def _locate(self, target: Node | Point, *, scroll: bool = True) -> tuple[float, float]:
        if isinstance(target, Node):
            return await self.aim(target, scroll=scroll)
        _, _, width, height = self.layout.viewport
        if target.x >= width or target.y >= height:
            raise ActionRefused(
                f"The point {target.x},{target.y} is outside of the window, which is {width:g} pixels wide and "
                f"{height:g} high."
            )
        return target.x, target.y

    async def call(self, node: Node, script: str, *arguments: Any) -> Any:
        """Call a JavaScript function on an element and return its result.

        Raises:
            ActionRefused: if the element is gone, or the page's own scripts make the function fail.
        """
        async with self._refuse_missing(node):
            this = await self._object(node.backend_id)
            return await self._call(this, script, *({"value": argument} for argument in arguments))

    async def aim(self, node: Node, *, scroll: bool = True) -> tuple[float, float]:
        """Return a point in the viewport at which a click reaches an element; if needed, `scroll` it into view.

        Raises:
            ActionRefused: if it is gone, not displayed, or covered by something else.
        """
        async with self._refuse_missing(node):
            target = node.backend_id
            scrolled = await self._scroll_offset()
            if node.seen is not None and scrolled == self.layout.scroll:
                point = next(_points(node.seen))
                if self._hits(await self._hit(point, scrolled), node, target):
                    return point
            if scroll:
                await self.tab.cdp.send("DOM.scrollIntoViewIfNeeded", {"backendNodeId": target})
            scrolled, covering = await self._scroll_offset(), None
            for box in await self._boxes(target):
                for point in _points(box):
                    hit = await self._hit(point, scrolled)
                    if hit is not None and await self._hits_now(node, target, hit):
                        return point
                    covering = hit if covering is None else covering
        raise ActionRefused(self._covered(node, covering))

    async def reachable(self, nodes: Sequence[Node]) -> list[Node]:
        """Return those of the visible nodes that a click reaches without scrolling, in the same order: not those that
        something else covers. An input behind a styled replacement, on which a click works, counts as reachable.
        """
        scrolled = await self._scroll_offset()
        if scrolled != self.layout.scroll:
            return list(nodes)  # the page has scrolled since the snapshot, whose positions say nothing now
        reached = await asyncio.gather(*(self._reaches(node, node.seen, scrolled) for node in nodes))
        return [node for node, reaches in zip(nodes, reached, strict=True) if reaches]

    async def _reaches(self, node: Node, seen: Box | None, scrolled: tuple[float, float]) -> bool:
        if seen is None:
            return False
        middle, *others = _points(seen)
        try:
            async with self._refuse_missing(node):
                hit = await self._hit(middle, scrolled)
                if self._counts(hit, node) or self._replaces(hit, node):
                    return True
                hits = await asyncio.gather(*(self._hit(point, scrolled) for point in others))
                if any(self._counts(other, node) for other in hits):
                    return True
                if hit is None or self.tag(node) not in _LABELLED:
                    return False
                return await self._hits_now(node, node.backend_id, hit)
        except ActionRefused:
            return False

    def _counts(self, hit: int | None, node: Node) -> bool:
        """Whether the hit node is the node, inside it, or in the same link, button or label, all by the snapshot."""
        tags = ((self.layout.tag(around), around) for around in self.layout.ancestors(node.backend_id))
        owner = next((around for tag, around in tags if tag in _OWNERS), node.backend_id)
        return self._hits(hit, node, node.backend_id) or self._hits(hit, node, owner)

    def _replaces(self, hit: int | None, node: Node) -> bool:
        """Whether the hit node is beside an input that pages often hide behind a styled replacement."""
        if hit is None or node.role not in _REPLACED or self.tag(node) != "INPUT":
            return False
        around = self.layout.parents[node.backend_id]
        return self.layout.tag(around) not in ("BODY", "FORM") and around in self.layout.ancestors(hit)

    async def _await_hover_effects(self, node: Node, point: tuple[float, float]) -> None:
        """Wait for an element that moves away or shrinks for a moment when the mouse reaches it, as one does whose
        picture is replaced by another that has yet to load. A click is only one if press and release hit the same.
        """
        with suppress(ActionRefused):
            async with self._refuse_missing(node):
                for _ in range(_HOVER_CHECKS):
                    hit = await self._hit(point, await self._scroll_offset())
                    if hit is not None and await self._hits_now(node, node.backend_id, hit):
                        return
                    await asyncio.sleep(_HOVER_PAUSE)

    async def _boxes(self, target: int) -> list[Box]:
        """Return the boxes of a DOM node in the viewport: several for text that wraps."""
        quads = (await self.tab.cdp.send("DOM.getContentQuads", {"backendNodeId": target}))["quads"]
        boxes = [Box(min(q[::2]), min(q[1::2]), max(q[::2]), max(q[1::2])) for q in quads]
        parts = [(box, box.cut(self.layout.viewport)) for box in boxes]
        return [part for box, part in parts if box.shows(part)]

    async def _scroll_offset(self) -> tuple[float, float]:
        viewport = (await self.tab.cdp.send("Page.getLayoutMetrics"))["cssLayoutViewport"]
        return viewport["pageX"], viewport["pageY"]

    async def _hit(self, point: tuple[float, float], scrolled: tuple[float, float]) -> int | None:
        """Return the DOM node at a point of the viewport."""
        x, y = (int(position + offset) for position, offset in zip(point, scrolled, strict=True))
        try:
            return (await self.tab.cdp.send("DOM.getNodeForLocation", {"x": x, "y": y}))["backendNodeId"]
        except Error as error:
            if "No node found" in str(error):
                return None
            raise

    def _hits(self, hit: int | None, node: Node, target: int) -> bool:
        """Whether the hit node is the target or inside it, according to the snapshot."""
        if hit is None:
            return False
        parent = self.layout.parents.get(target) if node.role == "StaticText" else None
        return hit == parent or target in self.layout.ancestors(hit)

    async def _hits_now(self, node: Node, target: int, hit: int) -> bool:
        """Whether a click on the hit node counts as one on the target, according to the current page."""
        if self._hits(hit, node, target):
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
        around = {ancestor.id for ancestor in self._ancestors(node)}
        if above is None or above.id in around:
            return f"{described(node)} can't be reached: it is covered or out of sight."
        # If a button in a dialog covers the element, report the dialog.
        above = [ancestor for ancestor in self._ancestors(above) if ancestor.id not in around][-1]
        return f"{described(node)} can't be reached: {described(above)} is in front of it."

    def _ancestors(self, node: Node) -> Iterator[Node]:
        """Yield the node, its parent, and so on up to the root."""
        current: Node | None = node
        while current is not None:
            yield current
            current = self.snapshot.node(current.parent or 0)

    async def _object(self, target: int) -> str:
        return (await self.tab.cdp.send("DOM.resolveNode", {"backendNodeId": target}))["object"]["objectId"]

    async def _call(self, this: str, script: str, *arguments: dict[str, Any]) -> Any:
        call = {"objectId": this, "functionDeclaration": script, "arguments": list(arguments), "returnByValue": True}
        result = await self.tab.cdp.send("Runtime.callFunctionOn", call)
        if "exceptionDetails" in result:
            raise ActionRefused("The page's own script gets in the way of this.")
        return result["result"].get("value")

    @asynccontextmanager
    async def _refuse_missing(self, node: Node) -> AsyncGenerator[None]:
        """Translate Chromium's errors about a missing element to `ActionRefused`."""
        try:
            yield
        except Error as error:
            message = str(error)
            if any(words in message for words in _NOT_DISPLAYED):
                raise ActionRefused(f"{described(node)} is not displayed now.") from error
            if is_lost(error) or any(words in message for words in _GONE):
                raise ActionRefused(f"{described(node)} is no longer there: the page has changed.") from error
            if "Protocol error (DOM." in message:  # for example for content generated by a style sheet
                raise ActionRefused(f"{described(node)} can't be reached.") from error
            raise


def described(node: Node) -> str:
    """Describe an element as in the observation, such as `[3] button 'Buy'`."""
    name = node.name if len(node.name) <= _SHOWN else f"{node.name[:_SHOWN]}…"
    return f"[{node.id}] {node.role} {literal(name)}"


def _points(box: Box) -> Iterator[tuple[float, float]]:
    """Yield points for a click: the center, then others around it, in case something else lies over the center. They
    are in whole pixels, so that hit test and click use the same point.
    """
    for down, across in product(_SHARES, repeat=2):
        x, y = box.left + across * (box.right - box.left), box.top + down * (box.bottom - box.top)
        yield float(int(x)), float(int(y))
