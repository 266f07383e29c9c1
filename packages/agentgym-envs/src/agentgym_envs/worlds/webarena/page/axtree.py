"""Chromium's accessibility tree as the agent is to see it: which nodes are worth a line, under which role, name and
properties. It knows what DevTools calls `AXNode`, and nothing of places or text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

AXNode = Mapping[str, Any]
PropertyValue = str | bool | int | float

# Roles that say nothing by themselves: without a name or a property they get no line.
_QUIET = frozenset((
    "generic", "none", "image", "img", "list", "listitem", "strong", "emphasis", "paragraph", "banner",
    "navigation", "Section", "LabelText", "Legend", "caption", "DescriptionList", "DescriptionListTerm",
    "DescriptionListDetail", "term", "definition", "figure", "Figcaption", "group", "rowgroup", "sectionheader",
    "sectionfooter", "superscript", "subscript", "code", "time", "mark", "blockquote", "deletion", "insertion",
    "Abbr", "Ruby", "RubyAnnotation", "SvgRoot", "graphics-document", "graphics-object", "graphics-symbol",
    "LayoutTable", "LayoutTableRow", "LayoutTableCell", "Pre", "Canvas", "Details", "EmbeddedObject",
    "PluginObject", "separator", "Video", "Audio",
))  # fmt: skip
# Roles that never get a line, with what is below them.
_NOISE = frozenset(("InlineTextBox", "ListMarker", "LineBreak", "ScrollBar"))
# Never a line of their own, though what is below may get one.
_PASSED = frozenset(("MenuListPopup", "none"))
# What is below these is how Chromium draws them; their value says it all.
_CLOSED = frozenset(("Date", "DateTime", "InputTime", "ColorWell", "slider", "progressbar", "meter"))
# The text below these is part of their name already.
_NAMED_BY_TEXT = frozenset((
    "link", "button", "heading", "option", "menuitem", "menuitemcheckbox", "menuitemradio", "tab", "cell",
    "gridcell", "columnheader", "rowheader", "row", "checkbox", "radio", "switch", "treeitem", "DisclosureTriangle",
    "tooltip", "LabelText", "Legend",
))  # fmt: skip
_SAID = frozenset((
    "focused", "autocomplete", "hasPopup", "required", "multiselectable", "disabled", "readonly", "checked",
    "pressed", "selected", "expanded", "modal", "valuemin", "valuemax", "valuetext", "roledescription",
))  # fmt: skip
_ONLY_WHEN_TRUE = frozenset(("focused", "disabled", "readonly", "multiselectable", "modal"))


@dataclass(slots=True)
class Raw:
    """A node of the tree as Chromium gives it."""

    node: AXNode
    frame: str
    children: list[Raw] = field(default_factory=list["Raw"])

    @property
    def role(self) -> str:
        """The role in Chromium's spelling; `none` for what is ignored."""
        return "none" if self.node["ignored"] else _value(self.node, "role") or "none"

    @property
    def name(self) -> str:
        """The accessible name on one line, with single spaces."""
        return " ".join(str(_value(self.node, "name") or "").split())

    @property
    def backend_id(self) -> int | None:
        """Chromium's id of the DOM node, or None for generated content."""
        return self.node.get("backendDOMNodeId")


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that is worth a line."""

    raw: Raw
    backend_id: int
    """Chromium's id of the DOM node, or of the nearest one around content that a style sheet made."""
    parent: int | None
    """Index of the nearest kept node above it, or None for the first."""
    depth: int
    name: str
    properties: tuple[tuple[str, PropertyValue], ...]


def trees(nodes: list[AXNode], frame: str) -> list[Raw]:
    """The roots among nodes that name their children by id. Children that aren't there are left out."""
    raw = {node["nodeId"]: Raw(node, frame) for node in nodes}
    below: set[str] = set()
    for node in nodes:
        for child in node.get("childIds", ()):
            if child in raw and child not in below:
                below.add(child)
                raw[node["nodeId"]].children.append(raw[child])
    return [raw[name] for name in raw if name not in below]


def keep(root: Raw, clickable: set[int]) -> list[Kept]:
    """The nodes under `root` that are worth a line, in document order.

    Args:
        root: The tree of the top page, those of its frames hung into it.
        clickable: Backend ids of nodes that listen for clicks. Such a node gets a line even without a name, if nothing
            below it has one.
    """
    kept: list[Kept] = []
    doubtful: list[int] = []  # positions in `kept` that stay only if nothing below them does
    stack: list[tuple[Raw, int, int | None]] = [(root, 0, None)]
    while stack:
        raw, dom, parent = stack.pop()
        dom = raw.backend_id or dom
        if raw.role in _NOISE:
            continue
        here = parent
        if raw.role not in _PASSED:
            node = _kept(raw, dom, parent, kept)
            plain = node.raw.role in _QUIET and not node.name and not node.properties
            if plain and (raw.backend_id in clickable or _property(raw, "focusable")):
                doubtful.append(len(kept))
                node = replace(node, properties=(("clickable", True),))
            if not _repeats(node, kept) and (not plain or (doubtful and doubtful[-1] == len(kept))):
                here = len(kept)
                kept.append(node)
        if not _closed(raw):
            stack.extend((child, dom, here) for child in reversed(raw.children))
    return _without(kept, doubtful)


def _kept(raw: Raw, dom: int, parent: int | None, kept: list[Kept]) -> Kept:
    depth = 0 if parent is None else kept[parent].depth + 1
    return Kept(raw, dom, parent, depth, raw.name, tuple(_properties(raw)))


def _repeats(node: Kept, kept: list[Kept]) -> bool:
    """Whether this is text that is blank, or said already by what it stands in."""
    if node.raw.role != "StaticText":
        return False
    if not node.name or node.parent is None:
        return not node.name
    above = kept[node.parent]
    if above.raw.role in _NAMED_BY_TEXT:
        return node.name in above.name
    return node.name == above.name and above.raw.role not in ("RootWebArea", "Iframe")


def _closed(raw: Raw) -> bool:
    return raw.role in _CLOSED or _property(raw, "editable") == "plaintext"


def _without(kept: list[Kept], doubtful: list[int]) -> list[Kept]:
    """`kept` without the doubtful ones that something stands below."""
    parents = {node.parent for node in kept}
    gone = {i for i in doubtful if i in parents}
    if not gone:
        return kept
    new: list[Kept] = []
    moved: dict[int | None, int | None] = {None: None}
    for i, node in enumerate(kept):
        if i in gone:
            moved[i] = moved[node.parent]
            continue
        parent = moved[node.parent]
        moved[i] = len(new)
        depth = 0 if parent is None else new[parent].depth + 1
        new.append(replace(node, parent=parent, depth=depth))
    return new


def _properties(raw: Raw) -> Iterator[tuple[str, PropertyValue]]:
    value = _value(raw.node, "value")
    for prop in raw.node.get("properties", ()):
        name, said = prop["name"], prop["value"].get("value")
        if name not in _SAID or said is None or said == "":
            continue
        if name in _ONLY_WHEN_TRUE and not said:
            continue
        if name == "valuetext" and said == str(value):
            continue
        yield name, _tidy(said)
    if _property(raw, "editable") == "richtext" and _property(raw, "focusable"):
        yield "editable", True
    elif value not in (None, "") and not _lists_options(raw):
        yield "value", " ".join(value.split()) if isinstance(value, str) else value


def _tidy(value: PropertyValue) -> PropertyValue:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value, " ".join(value.split()))
    return value


def _lists_options(raw: Raw) -> bool:
    return any(child.role == "MenuListPopup" for child in raw.children)


def _property(raw: Raw, name: str) -> Any:
    for prop in raw.node.get("properties", ()):
        if prop["name"] == name:
            return prop["value"].get("value")
    return None


def _value(node: AXNode, name: str) -> Any:
    return node[name].get("value") if name in node else None
