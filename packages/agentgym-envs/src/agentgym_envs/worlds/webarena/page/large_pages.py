"""Pages too large to be read whole: the accessibility trees of what is near the viewport, one question for each part.

Chromium takes seconds to tell the tree of tens of thousands of nodes, and some milliseconds for a small part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentgym_envs.worlds.webarena.page.axtree import Raw, trees
from agentgym_envs.worlds.webarena.page.geometry import Layout

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

_PART = 200
_MAX_PARTS = 200
_MARGIN = 0.5


async def parts(cdp: CDPSession, layout: Layout) -> Raw:
    """The page's root with the parts of the page in and near the viewport as its children."""
    from playwright.async_api import Error

    top: dict[str, Any] = {"backendNodeId": layout.root, "fetchRelatives": False}
    root = (await cdp.send("Accessibility.getPartialAXTree", top))["nodes"][0]
    asked = [
        cdp.send("Accessibility.queryAXTree", {"backendNodeId": node})
        for node in _choose(layout, _sizes(layout))[:_MAX_PARTS]
    ]
    whole = Raw(root, layout.frame_id)
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, Error):  # the page took that part away meanwhile
            continue
        if isinstance(answer, BaseException):
            raise answer
        whole.children.extend(trees(answer["nodes"], layout.frame_id))
    return whole


def _sizes(layout: Layout) -> dict[int, int]:
    """How many nodes each node holds, itself included. Frames are counted where they stand."""
    sizes = dict.fromkeys(layout.parents, 1)
    order = list(_preorder(layout))
    for node in reversed(order):
        parent = layout.parents.get(node)
        if parent is not None:
            sizes[parent] = sizes.get(parent, 1) + sizes[node]
    return sizes


def _preorder(layout: Layout) -> Iterator[int]:
    stack = [layout.root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(layout.children.get(node, ())))


def _choose(layout: Layout, sizes: dict[int, int]) -> list[int]:
    """The largest parts of at most `_PART` nodes in or near the viewport, in document order."""
    view = layout.viewport
    near = view._replace(top=view.top - _MARGIN * view.bottom, bottom=view.bottom * (1 + _MARGIN))
    chosen: list[int] = []
    stack = [layout.root]
    while stack:
        node = stack.pop()
        place = layout.places.get(node)
        if place is not None and not place.box.touches(near):
            if not layout.children.get(node) or sizes[node] <= _PART:
                continue
        elif place is not None and (sizes[node] <= _PART or node in layout.frames):
            chosen.append(node)
            continue
        stack.extend(reversed(layout.children.get(node, ())))
    return chosen
