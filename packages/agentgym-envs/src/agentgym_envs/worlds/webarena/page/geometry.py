"""The geometry of a page: the boxes of one `DOMSnapshot.captureSnapshot`, in coordinates of the top page's viewport and
clipped by the viewport and scroll containers. DOM nodes are identified by Chromium's backend ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

STYLES = ("position", "overflow-x")
"""The computed styles that clipping needs; each further style takes time for every node."""

_MIN_VISIBLE_PX = 4
_TEXT, _DOCUMENT_TAGS = 3, ("HTML", "BODY")


class Box(NamedTuple):
    """A rectangle in CSS pixels relative to the upper left corner of the top page's viewport."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def centre(self) -> tuple[float, float]:
        """The center."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def cut(self, clip: Box) -> Box:
        """Return the intersection with `clip`; right < left or bottom < top if there is none."""
        left, top, right, bottom = self
        return Box(
            left if left > clip[0] else clip[0],
            top if top > clip[1] else clip[1],
            right if right < clip[2] else clip[2],
            bottom if bottom < clip[3] else clip[3],
        )

    def around(self, other: Box) -> Box:
        """Return the smallest rectangle that contains both."""
        return Box(
            min(self.left, other.left),
            min(self.top, other.top),
            max(self.right, other.right),
            max(self.bottom, other.bottom),
        )

    def touches(self, other: Box) -> bool:
        """Whether the two have a point in common, also if one of them is a line or a point."""
        part = self.cut(other)
        return part.left <= part.right and part.top <= part.bottom

    def shows(self, part: Box) -> bool:
        """Whether `part`, this box after clipping, is large enough to count as visible."""
        width, height = part.right - part.left, part.bottom - part.top
        return (
            width > 0
            and height > 0
            and width >= min(_MIN_VISIBLE_PX, self.right - self.left)
            and height >= min(_MIN_VISIBLE_PX, self.bottom - self.top)
        )


class Place(NamedTuple):
    """The position of a DOM node."""

    box: Box
    """The whole node."""
    seen: Box | None
    """The part that neither the viewport nor a scroll container hides; None if it is too small."""


_EMPTY = Box(0, 0, 0, 0)


class Layout:
    """The DOM nodes of a page and its frames, with their positions.

    Args:
        captured: The result of `DOMSnapshot.captureSnapshot` with `STYLES`.
        windows: The content box of each displayed iframe, by the id of the iframe.
    """

    def __init__(self, captured: Mapping[str, Any], windows: Mapping[int, Box]) -> None:
        self._documents: list[dict[str, Any]] = captured["documents"]
        self._strings: list[str] = captured["strings"]
        self._windows = windows
        self.places: dict[int, Place] = {}
        self.clickable: set[int] = set()
        """Nodes that listen for clicks."""
        self.parents: dict[int, int] = {}
        """The parent of each node; that of a framed document is its iframe."""
        self._index: dict[int, tuple[int, int]] = {}
        self.frames: dict[int, str] = {}
        """Frame id of the document inside each iframe that has a position."""
        top = self._documents[0]
        _, _, width, height = top["layout"]["bounds"][0]
        self.viewport = Box(0, 0, width, height)
        self.scroll: tuple[float, float] = (top.get("scrollOffsetX", 0), top.get("scrollOffsetY", 0))
        """Scroll offset of the top page to the right and down, in pixels."""
        self.frame_id = self._text(top["frameId"])
        self._place(0, self.viewport, self.viewport)

    @classmethod
    def empty(cls, width: float, height: float) -> Layout:
        """Return the layout of a page of which nothing but the size of its viewport in pixels is known."""
        nodes = {name: [] for name in ("backendNodeId", "parentIndex", "nodeType", "nodeName", "attributes")}
        values = {name: {"index": [], "value": []} for name in ("isClickable", "contentDocumentIndex")}
        layout = {"nodeIndex": [], "bounds": [[0, 0, width, height]], "styles": []}
        return cls({"documents": [{"nodes": nodes | values, "layout": layout, "frameId": -1}], "strings": []}, {})

    @property
    def size(self) -> int:
        """Number of DOM nodes in all frames."""
        return sum(len(document["nodes"]["nodeType"]) for document in self._documents)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The children of each node that has children, in document order."""
        children: dict[int, list[int]] = {}
        for node, parent in self.parents.items():
            children.setdefault(parent, []).append(node)
        return children

    @property
    def root(self) -> int:
        """The id of the top document."""
        return self._documents[0]["nodes"]["backendNodeId"][0]

    def ancestors(self, node: int) -> Iterator[int]:
        """Yield the node itself, its parent, and so on up to the top document."""
        current: int | None = node
        while current is not None:
            yield current
            current = self.parents.get(current)

    def tag(self, node: int) -> str:
        """Return an element's tag name in upper case, or another node's name (`#text`); empty for unknown nodes."""
        if node not in self._index:
            return ""
        document, i = self._index[node]
        return self._text(self._documents[document]["nodes"]["nodeName"][i])

    def attribute(self, node: int, name: str) -> str | None:
        """Return an attribute of an element, or None."""
        if node not in self._index:
            return None
        document, i = self._index[node]
        flat = [self._text(part) for part in self._documents[document]["nodes"]["attributes"][i]]
        return dict(zip(flat[::2], flat[1::2], strict=True)).get(name)

    def _text(self, index: int) -> str:
        return self._strings[index] if index >= 0 else ""

    def _place(self, index: int, area: Box, clip: Box) -> None:
        """Compute the positions of a document's nodes; its viewport is `area`, of which only `clip` is visible."""
        document = self._documents[index]
        ids: list[int] = document["nodes"]["backendNodeId"]
        self.clickable.update(ids[i] for i in document["nodes"]["isClickable"]["index"])
        for i, parent in enumerate(document["nodes"]["parentIndex"]):
            self._index[ids[i]] = index, i
            if parent >= 0:
                self.parents[ids[i]] = ids[parent]
        origin = area.left - document.get("scrollOffsetX", 0), area.top - document.get("scrollOffsetY", 0)
        for i, box, part in _Clips(document, self._strings, origin, clip).boxes():
            self.places[ids[i]] = Place(box, part if box.shows(part) else None)
        for iframe, framed in _framed(document):
            inner = self._documents[framed]
            self.parents[inner["nodes"]["backendNodeId"][0]] = iframe
            window = self._windows.get(iframe)
            if window is not None and iframe in self.places:
                self.frames[iframe] = self._text(inner["frameId"])
                self._place(framed, window, window.cut(self.places[iframe].seen or _EMPTY))


def iframes(captured: Mapping[str, Any]) -> list[int]:
    """Return the ids of all iframes in a result of `DOMSnapshot.captureSnapshot`."""
    return [iframe for document in captured["documents"] for iframe, _ in _framed(document)]


def _framed(document: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the ids of a document's iframes, each with the index of the document inside it."""
    content = document["nodes"]["contentDocumentIndex"]
    ids = document["nodes"]["backendNodeId"]
    return [(ids[i], framed) for i, framed in zip(content["index"], content["value"], strict=True)]


class _Clips:
    """The boxes of a document, clipped by the document's viewport and the scroll containers around each node."""

    def __init__(self, document: dict[str, Any], strings: list[str], origin: tuple[float, float], clip: Box) -> None:
        self._nodes = document["nodes"]
        self._layout = document["layout"]
        self._strings = strings
        self._origin = origin
        self._clip = clip

    def boxes(self) -> Iterator[tuple[int, Box, Box]]:
        """Yield the index, the box, and the unclipped part of each node that is laid out."""
        rows: dict[int, int] = {}
        for row, i in enumerate(self._layout["nodeIndex"]):
            rows.setdefault(i, row)
        count = len(self._nodes["parentIndex"])
        flow = [self._clip] * count  # the clip of each node's children
        absolute = [self._clip] * count  # the clip of its absolutely positioned descendants
        for i, parent in enumerate(self._nodes["parentIndex"]):
            if parent >= 0:
                flow[i], absolute[i] = flow[parent], absolute[parent]
            row = rows.get(i)
            if row is None:
                continue
            box = self._box(row)
            position, scrolls = self._styles(i, row)
            clip = self._clip if position == "fixed" else absolute[i] if position == "absolute" else flow[i]
            yield i, box, box.cut(clip)
            flow[i] = clip.cut(box) if scrolls else clip
            if position != "static":
                absolute[i] = flow[i]

    def _box(self, row: int) -> Box:
        (x, y, width, height), (left, top) = self._layout["bounds"][row], self._origin
        return Box(left + x, top + y, left + x + width, top + y + height)

    def _styles(self, i: int, row: int) -> tuple[str, bool]:
        """Return a node's `position` and whether it clips. Text nodes have their parent's styles, documents none."""
        styles = self._layout["styles"][row]
        if not styles or self._nodes["nodeType"][i] == _TEXT:
            return "static", False
        clips = (
            self._strings[styles[1]] != "visible" and self._strings[self._nodes["nodeName"][i]] not in _DOCUMENT_TAGS
        )
        return self._strings[styles[0]], clips
