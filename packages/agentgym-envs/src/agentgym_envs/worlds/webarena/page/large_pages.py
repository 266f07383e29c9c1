"""Partial accessibility trees of large pages: only the parts near the viewport, one DevTools query for each.

Chromium takes seconds for the tree of tens of thousands of nodes, but only milliseconds for a small part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentgym_envs.worlds.webarena.page.axtree import RawNode, build_trees
from agentgym_envs.worlds.webarena.page.geometry import Layout

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

_PART_NODES = 200  # DOM nodes in a part at most
_MAX_PARTS = 200
_MARGIN = 0.5  # above and below the viewport, in viewport heights


async def partial_tree(cdp: CDPSession, layout: Layout) -> RawNode:
    """Return the page's root with the parts in and near the viewport as its children."""
    from playwright.async_api import Error

    top: dict[str, Any] = {"backendNodeId": layout.root, "fetchRelatives": False}
    root = (await cdp.send("Accessibility.getPartialAXTree", top))["nodes"][0]
    queries = [
        cdp.send("Accessibility.queryAXTree", {"backendNodeId": node})
        for node in _select_parts(layout, _subtree_sizes(layout))[:_MAX_PARTS]
    ]
    tree = RawNode(root, layout.frame_id)
    for answer in await asyncio.gather(*queries, return_exceptions=True):
        if isinstance(answer, Error):  # the page has removed that part
            continue
        if isinstance(answer, BaseException):
            raise answer
        tree.children.extend(build_trees(answer["nodes"], layout.frame_id))
    return tree


def _subtree_sizes(layout: Layout) -> dict[int, int]:
    """Return the number of nodes in each node's subtree, including itself and the contents of frames."""
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


def _select_parts(layout: Layout, sizes: dict[int, int]) -> list[int]:
    """Return the roots of the largest parts of at most `_PART_NODES` nodes near the viewport, in document order."""
    view = layout.viewport
    near = view._replace(top=view.top - _MARGIN * view.bottom, bottom=view.bottom * (1 + _MARGIN))
    chosen: list[int] = []
    stack = [layout.root]
    while stack:
        node = stack.pop()
        place = layout.places.get(node)
        if place is not None and not place.box.touches(near):
            if not layout.children.get(node) or sizes[node] <= _PART_NODES:
                continue
        elif place is not None and (sizes[node] <= _PART_NODES or node in layout.frames):
            chosen.append(node)
            continue
        stack.extend(reversed(layout.children.get(node, ())))
    return chosen
