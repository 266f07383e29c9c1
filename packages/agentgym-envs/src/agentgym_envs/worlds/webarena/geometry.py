"""Where things are on a page: the boxes of one `DOMSnapshot.captureSnapshot`, brought into the top page's viewport and
cut by whatever hides them. It knows DOM nodes by Chromium's backend ids, and nothing of roles and names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

STYLES = ("position", "overflow-x", "padding-left", "padding-top")
"""The computed styles that clipping needs; every further one costs time on every node."""

_ENOUGH_PX = 4
_TEXT, _DOCUMENT_TAGS = 3, ("HTML", "BODY")


class Box(NamedTuple):
    """A rectangle in CSS pixels; (0, 0) is the upper left corner of the top page's viewport."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def centre(self) -> tuple[float, float]:
        """The point in the middle."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def cut(self, clip: Box) -> Box:
        """The part inside `clip`; its right or bottom lies before its left or top when there is none."""
        return Box(
            max(self.left, clip.left),
            max(self.top, clip.top),
            min(self.right, clip.right),
            min(self.bottom, clip.bottom),
        )

    def around(self, other: Box) -> Box:
        """The smallest rectangle that holds both."""
        return Box(
            min(self.left, other.left),
            min(self.top, other.top),
            max(self.right, other.right),
            max(self.bottom, other.bottom),
        )

    def moved(self, right: float, down: float) -> Box:
        """The rectangle so many pixels further on."""
        return Box(self.left + right, self.top + down, self.right + right, self.bottom + down)

    def shows(self, part: Box) -> bool:
        """Whether `part`, what is left of this box after clipping, is enough to be called visible."""
        wide, high = part.right - part.left, part.bottom - part.top
        return (
            wide > 0
            and high > 0
            and wide >= min(_ENOUGH_PX, self.right - self.left)
            and high >= min(_ENOUGH_PX, self.bottom - self.top)
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where one DOM node is."""

    box: Box
    """All of it."""
    seen: Box | None
    """The part that neither the viewport nor a scroll container hides; None when that is too little."""


class Layout:
    """The DOM nodes of a page and its frames, with their places.

    Args:
        captured: The answer of `DOMSnapshot.captureSnapshot` with `STYLES` and DOM rectangles.
    """

    def __init__(self, captured: dict[str, Any]) -> None:
        self._documents: list[dict[str, Any]] = captured["documents"]
        self._strings: list[str] = captured["strings"]
        self.places: dict[int, Place] = {}
        self.clickable: set[int] = set()
        """Nodes that listen for clicks."""
        self.parents: dict[int, int] = {}
        """The parent of each node; that of a framed document is its iframe."""
        self._index: dict[int, tuple[int, int]] = {}
        self.frames: dict[int, str] = {}
        """Frame id of the document inside each iframe that has a place."""
        top = self._documents[0]
        _, _, width, height = top["layout"]["bounds"][0]
        self.viewport = Box(0, 0, width, height)
        self.scroll: tuple[float, float] = (top.get("scrollOffsetX", 0), top.get("scrollOffsetY", 0))
        """How far the top page is scrolled to the right and down, in pixels."""
        self.frame_id = self._text(top["frameId"])
        self._place(0, self.viewport, self.viewport)

    @property
    def size(self) -> int:
        """How many DOM nodes there are, in all frames."""
        return sum(len(document["nodes"]["nodeType"]) for document in self._documents)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The children of each node that has some, in document order."""
        children: dict[int, list[int]] = {}
        for node, parent in self.parents.items():
            children.setdefault(parent, []).append(node)
        return children

    @property
    def root(self) -> int:
        """The top document."""
        return self._documents[0]["nodes"]["backendNodeId"][0]

    def ancestors(self, node: int) -> Iterator[int]:
        """The node itself, its parent, and so on up to the top document."""
        at: int | None = node
        while at is not None:
            yield at
            at = self.parents.get(at)

    def tag(self, node: int) -> str:
        """The name of an element, in capitals, or of another DOM node (`#text`); empty for one that isn't known."""
        if node not in self._index:
            return ""
        document, i = self._index[node]
        return self._text(self._documents[document]["nodes"]["nodeName"][i])

    def attribute(self, node: int, name: str) -> str | None:
        """An attribute of an element, or None."""
        if node not in self._index:
            return None
        document, i = self._index[node]
        flat = [self._text(part) for part in self._documents[document]["nodes"]["attributes"][i]]
        return dict(zip(flat[::2], flat[1::2], strict=True)).get(name)

    def _text(self, index: int) -> str:
        return self._strings[index] if index >= 0 else ""

    def _place(self, index: int, area: Box, clip: Box) -> None:
        """Place the nodes of one document, whose viewport is `area`, of which only `clip` is in sight."""
        document = self._documents[index]
        ids: list[int] = document["nodes"]["backendNodeId"]
        self.clickable.update(ids[i] for i in document["nodes"]["isClickable"]["index"])
        for i, parent in enumerate(document["nodes"]["parentIndex"]):
            self._index[ids[i]] = index, i
            if parent >= 0:
                self.parents[ids[i]] = ids[parent]
        origin = area.left - document.get("scrollOffsetX", 0), area.top - document.get("scrollOffsetY", 0)
        inside = _Clips(document, self._strings, origin, clip)
        for i, box, part in inside.boxes():
            self.places[ids[i]] = Place(box, part if box.shows(part) else None)
        content = document["nodes"]["contentDocumentIndex"]
        for i, framed in zip(content["index"], content["value"], strict=True):
            inner = self._documents[framed]
            self.parents[inner["nodes"]["backendNodeId"][0]] = ids[i]
            hole = inside.hole(i)
            if hole is not None:
                self.frames[ids[i]] = self._text(inner["frameId"])
                self._place(framed, hole, hole.cut(clip if (seen := self.places[ids[i]].seen) is None else seen))


class _Clips:
    """The boxes of one document and what cuts them: the document's own window, and scroll containers on the way up."""

    def __init__(self, document: dict[str, Any], strings: list[str], origin: tuple[float, float], clip: Box) -> None:
        self._nodes = document["nodes"]
        self._layout = document["layout"]
        self._strings = strings
        self._origin = origin
        self._clip = clip
        self._rows: dict[int, int] = {}
        for row, i in enumerate(self._layout["nodeIndex"]):
            self._rows.setdefault(i, row)

    def boxes(self) -> Iterator[tuple[int, Box, Box]]:
        """For each node that is laid out its index, its box, and the part that isn't clipped."""
        count = len(self._nodes["parentIndex"])
        flow = [self._clip] * count  # what cuts the children of each node
        absolute = [self._clip] * count  # what cuts those of its descendants that are positioned absolutely
        for i, parent in enumerate(self._nodes["parentIndex"]):
            if parent >= 0:
                flow[i], absolute[i] = flow[parent], absolute[parent]
            row = self._rows.get(i)
            if row is None:
                continue
            box = self._box(row)
            position, scrolls = self._styles(i, row)
            clip = self._clip if position == "fixed" else absolute[i] if position == "absolute" else flow[i]
            yield i, box, box.cut(clip)
            flow[i] = clip.cut(box) if scrolls else clip
            if position != "static":
                absolute[i] = flow[i]

    def hole(self, i: int) -> Box | None:
        """The content box of an iframe, or None when it isn't laid out."""
        row = self._rows.get(i)
        if row is None:
            return None
        box, (left, top, _, _) = self._box(row), self._layout["clientRects"][row]
        styles = [self._strings[s] for s in self._layout["styles"][row]]
        left, top = left + _pixels(styles[2]), top + _pixels(styles[3])
        return Box(box.left + left, box.top + top, box.right - left, box.bottom - top)

    def _box(self, row: int) -> Box:
        x, y, width, height = self._layout["bounds"][row]
        return Box(x, y, x + width, y + height).moved(*self._origin)

    def _styles(self, i: int, row: int) -> tuple[str, bool]:
        """A node's position and whether it clips. Text carries its parent's styles, a document none."""
        styles = self._layout["styles"][row]
        if not styles or self._nodes["nodeType"][i] == _TEXT:
            return "static", False
        clips = (
            self._strings[styles[1]] != "visible" and self._strings[self._nodes["nodeName"][i]] not in _DOCUMENT_TAGS
        )
        return self._strings[styles[0]], clips


def _pixels(style: str) -> float:
    return float(style.removesuffix("px") or 0) if style.endswith("px") else 0.0
