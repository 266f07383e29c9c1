"""A page at one moment: the nodes of its accessibility tree with ids, places and Chromium's handles on them, taken by
two questions to the browser. It changes nothing on the page and knows nothing of agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.playwright_errors import is_closed, playwright_errors
from agentgym_envs.worlds.webarena.page.axtree import AXNode, Kept, PropertyValue, Raw, keep, trees
from agentgym_envs.worlds.webarena.page.geometry import STYLES, Box, Layout, Place, iframes
from agentgym_envs.worlds.webarena.page.large_pages import parts

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

    from agentgym_envs.worlds.webarena.browser.tab import Tab

LARGE = 5_000
"""DOM nodes above which only what is near the viewport is read."""

MOST = 50_000
"""Elements of a page above which it isn't read at all: a snapshot of more would keep all sessions waiting."""

_MAX_FRAMES = 20
_TRIES, _PAUSE = 2, 0.05  # seconds between them


@dataclass(frozen=True, slots=True)
class Node:
    """One element, or one run of text."""

    id: int
    """From 1, in document order; the same on the same page in every browser."""
    role: str
    name: str
    """On one line; may be empty."""
    properties: tuple[tuple[str, PropertyValue], ...]
    """Such as `("required", False)`; what stands in a field is `("value", ...)`, and last."""
    depth: int
    parent: int | None
    """Id of the node it stands in."""
    box: Box | None
    """Where it is relative to the viewport, frames and scrolling considered; None when it isn't laid out."""
    seen: Box | None
    """The part of `box` in sight; None when nothing worth mention is."""
    backend_id: int
    """Chromium's id of the DOM node, or of the nearest one around content that a style sheet made."""
    frame: str
    """Chromium's id of the frame."""
    place: Literal["visible", "above", "below", "hidden"]
    """In the viewport, above or below it; hidden when it is beside it, clipped, or not laid out."""

    @property
    def visible(self) -> bool:
        """Whether it is in sight."""
        return self.seen is not None

    def property(self, name: str) -> PropertyValue | None:
        """One of its properties, or None."""
        return dict(self.properties).get(name)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The nodes of a page in document order; node `i` has id `i + 1`."""

    nodes: tuple[Node, ...]
    layout: Layout
    """The DOM behind it, for who wants to click."""
    bounded: bool
    """Whether the page was too large to be read whole, so that only what is near the viewport is here."""

    def node(self, id: int) -> Node | None:
        """The node with this id, or None when there is none."""
        return self.nodes[id - 1] if 1 <= id <= len(self.nodes) else None

    def find(self, role: str | None = None, name: str | None = None) -> list[Node]:
        """The nodes of this role and exact name, in and out of sight; None stands for any."""
        return [n for n in self.nodes if role in (None, n.role) and name in (None, n.name)]

    def owner(self, backend_id: int) -> Node | None:
        """The node of a DOM node, or else of the nearest one around it that has a line."""
        lines = {node.backend_id: node for node in self.nodes}
        return next((lines[at] for at in self.layout.ancestors(backend_id) if at in lines), None)


async def take(tab: Tab) -> Snapshot:
    """The page in `tab` as it is now.

    Raises:
        TabClosed: when the tab closes meanwhile.
        EnvFault: when the browser doesn't tell, or the page is too large to be read.
    """
    from playwright.async_api import Error

    if tab.elements > MOST:
        raise EnvFault(f"The page has {tab.elements:,} elements; one of more than {MOST:,} is not read.")
    with playwright_errors():
        for _ in range(_TRIES):
            try:
                return await _take(tab.cdp)
            except Error as error:  # a page that navigates meanwhile loses its frames
                if is_closed(error):
                    raise
                await asyncio.sleep(_PAUSE)
        return await _take(tab.cdp)


async def _take(cdp: CDPSession) -> Snapshot:
    captured = await cdp.send("DOMSnapshot.captureSnapshot", {"computedStyles": list(STYLES)})
    layout = Layout(captured, {iframe: box for iframe in iframes(captured) if (box := await _window(cdp, iframe))})
    bounded = layout.size > LARGE
    root = await (parts(cdp, layout) if bounded else _whole(cdp, layout.frame_id))
    await _hang_frames_in(cdp, root, layout.frames)
    kept = keep(root, layout.clickable)
    return Snapshot(tuple(_nodes(kept, _placed(kept, layout), layout.viewport)), layout, bounded)


async def _window(cdp: CDPSession, iframe: int) -> Box | None:
    """Where the document in an iframe is shown; None when the iframe isn't displayed."""
    from playwright.async_api import Error

    try:
        corners = (await cdp.send("DOM.getBoxModel", {"backendNodeId": iframe}))["model"]["content"]
    except Error as error:
        if is_closed(error):
            raise
        return None
    return Box(min(corners[::2]), min(corners[1::2]), max(corners[::2]), max(corners[1::2]))


async def _whole(cdp: CDPSession, frame: str) -> Raw:
    nodes: list[AXNode] = (await cdp.send("Accessibility.getFullAXTree", {"frameId": frame}))["nodes"]
    return trees(nodes, frame)[0]


async def _hang_frames_in(cdp: CDPSession, root: Raw, frames: Mapping[int, str]) -> None:
    """Put the trees of framed documents under the nodes of their iframes."""
    waiting, left = [root], _MAX_FRAMES
    while waiting:
        raw = waiting.pop()
        frame = frames.get(raw.backend_id or 0)
        if frame is not None and left:
            left -= 1
            raw.children = [await _whole(cdp, frame)]
        waiting.extend(raw.children)


def _placed(kept: list[Kept], layout: Layout) -> list[Place | None]:
    """Each node's place: its own, else (`display: contents`) that around what it holds, else (options of a list,
    generated text) that of what it stands in.
    """
    places = [layout.places.get(node.backend_id) for node in kept]
    for i in range(len(kept) - 1, 0, -1):
        parent, place = kept[i].parent, places[i]
        own = parent is not None and kept[parent].backend_id in layout.places
        if parent is not None and place is not None and not own:
            places[parent] = _around(places[parent], place)
    for i, node in enumerate(kept):
        if places[i] is None and node.parent is not None:
            places[i] = places[node.parent]
    return places


def _around(one: Place | None, other: Place) -> Place:
    if one is None:
        return other
    seen = one.seen.around(other.seen) if one.seen and other.seen else one.seen or other.seen
    return Place(one.box.around(other.box), seen)


def _nodes(kept: list[Kept], places: list[Place | None], viewport: Box) -> list[Node]:
    return [
        Node(
            id=i + 1,
            role=node.raw.role,
            name=node.name,
            properties=node.properties,
            depth=node.depth,
            parent=None if node.parent is None else node.parent + 1,
            box=place.box if place else None,
            seen=place.seen if place else None,
            backend_id=node.backend_id,
            frame=node.raw.frame,
            place=_where(place, viewport),
        )
        for i, (node, place) in enumerate(zip(kept, places, strict=True))
    ]


def _where(place: Place | None, viewport: Box) -> Literal["visible", "above", "below", "hidden"]:
    if place is None:
        return "hidden"
    if place.seen is not None:
        return "visible"
    if place.box.bottom <= viewport.top:
        return "above"
    return "below" if place.box.top >= viewport.bottom else "hidden"
