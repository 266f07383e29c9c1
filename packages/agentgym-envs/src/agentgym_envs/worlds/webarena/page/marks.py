"""Set-of-marks (Yang et al. 2023, arXiv 2310.11441): screenshots on which the elements that an agent can act on have a
box and their id.

Elements that can be acted on are those of an interactive role, those that listen for clicks or are in a DOM node that
does, and images without an element of either kind around them. Colors depend on the id alone, so that they stay while
a page doesn't change.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from PIL import Image, ImageDraw, ImageFont

from agentgym_envs.worlds.webarena.page.geometry import Box
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

ON_SCREENSHOTS = (
    "A screenshot that comes with the page shows the window as it is now; points are counted in its pixels. "
    "Screenshots of earlier pages may be left out."
)
ON_MARKS = (
    "In it, each element that you can act on has a box, and at a corner of the box, in the same color, its id: the id "
    "of its line in the tree. Boxes and ids are not part of the page."
)
"""What agents that get screenshots are told about them, and about the marks on them."""
CLICKABLE = frozenset((
    "button", "checkbox", "combobox", "gridcell", "link", "menuitem", "menuitemcheckbox", "menuitemradio", "radio",
    "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem",
))  # fmt: skip
"""Roles of elements that one clicks."""
_ROLES = CLICKABLE | {"listbox", "option"}
_PALETTE = (
    (214, 39, 40), (31, 119, 180), (44, 160, 44), (148, 103, 189), (230, 85, 13), (0, 128, 128), (140, 86, 75),
    (199, 21, 133), (85, 107, 47), (25, 25, 112),
)  # fmt: skip
"""Dark enough for white digits."""
_FONT_SIZE, _PADDING, _LINE = 12, 2, 2  # pixels


def colour(id: int) -> tuple[int, int, int]:
    """Return the colour (red, green, blue) of an element's mark."""
    return _PALETTE[id % len(_PALETTE)]


def marked_nodes(page: Snapshot) -> list[Node]:
    """Return the visible elements that can be acted on, in document order, each box once: where several elements have
    the same box, the outermost one, such as a link around a button. `PageInput.reachable` leaves out those that others
    cover.
    """
    marked: dict[Box, Node] = {}
    for node in page.nodes:
        if node.seen is not None and node.parent is not None and _can_be_acted_on(node, page):
            marked.setdefault(node.seen, node)
    return list(marked.values())


def _can_be_acted_on(node: Node, page: Snapshot) -> bool:
    if node.role in _ROLES:
        # The options of a closed list have the position of the list.
        return not (node.role == "option" and page.layout.tag(node.backend_id) == "OPTION")
    if _listens(node, page):
        return True
    return node.role in ("image", "img") and not any(_can_be_acted_on(above, page) for above in _ancestors(node, page))


def _listens(node: Node, page: Snapshot) -> bool:
    """Whether the node listens for clicks, or a DOM node around it that is no node of its own."""
    parent = page.node(node.parent or 0)
    for element in page.layout.ancestors(node.backend_id):
        if parent is not None and element == parent.backend_id:
            return False
        if element in page.layout.clickable:
            return page.layout.tag(element) not in ("HTML", "BODY", "#document")
    return False


def _ancestors(node: Node, page: Snapshot) -> Iterator[Node]:
    above = page.node(node.parent or 0)
    while above is not None:
        yield above
        above = page.node(above.parent or 0)


def draw_marks(png: bytes, nodes: Sequence[Node]) -> bytes:
    """Draw boxes and ids of elements on a screenshot of the window.

    Args:
        png: The screenshot, whose pixels are the unit of the elements' positions.
        nodes: Visible elements.
    """
    with Image.open(io.BytesIO(png)) as opened:
        image = opened.convert("RGB")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(_FONT_SIZE)
    boxes = [(node, _within(node.seen, image.size)) for node in nodes if node.seen is not None]
    for node, box in boxes:
        draw.rectangle(box, outline=colour(node.id), width=_LINE)
    taken: list[Box] = []
    for node, box in boxes:  # after all boxes, so that no box crosses an id
        left, top, right, bottom = font.getbbox(str(node.id))
        width, height = int(right - left) + 2 * _PADDING, int(bottom - top) + 2 * _PADDING
        label = _label(box, (width, height), image.size, taken)
        taken.append(label)
        draw.rectangle((label.left, label.top, label.right - 1, label.bottom - 1), fill=colour(node.id))
        draw.text((label.left + _PADDING - left, label.top + _PADDING - top), str(node.id), font=font, fill="white")
    written = io.BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


def _within(box: Box, size: tuple[int, int]) -> Box:
    """Return a box in whole pixels of the image whose outline lies around the element."""
    box = Box(box.left - _LINE, box.top - _LINE, box.right + _LINE, box.bottom + _LINE)
    left, top = (min(max(int(side), 0), most - 1) for side, most in zip(box[:2], size, strict=True))
    right, bottom = (
        min(max(int(side) - 1, least), most - 1) for side, least, most in zip(box[2:], (left, top), size, strict=True)
    )
    return Box(left, top, right, bottom)


def _label(box: Box, label: tuple[int, int], size: tuple[int, int], taken: Sequence[Box]) -> Box:
    """Return where an id goes: at the first corner of its box where it covers no other id, else where it covers least.
    Above and below the box come before the corners inside of it, so that it covers little of the element.
    """
    (width, height), (most_x, most_y) = label, size
    places = [
        (box.left, box.top - height),
        (box.right + 1 - width, box.top - height),
        (box.left, box.bottom + 1),
        (box.right + 1 - width, box.bottom + 1),
        (box.left - width, box.top),
        (box.right + 1, box.top),
        (box.right + 1 - width, box.top),
        (box.left, box.top),
    ]
    fitting = [
        Box(x, y, x + width, y + height)
        for x, y in places
        if x >= 0 and y >= 0 and x + width <= most_x and y + height <= most_y
    ] or [Box(0, 0, width, height)]
    return min(fitting, key=lambda place: sum(_overlap(place, other) for other in taken))


def _overlap(one: Box, other: Box) -> float:
    part = one.cut(other)
    return max(0.0, part.right - part.left) * max(0.0, part.bottom - part.top)
