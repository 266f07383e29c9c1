"""What a script sees of a page of MiniWoB++, and the actions that it takes on what it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agentgym_envs.worlds.webarena.actions.grammar import on_one_line
from agentgym_envs.worlds.webarena.page.geometry import Box, Layout
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot


class NotFound(LookupError):
    """The page doesn't have what the script looks for."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element of the document, also if the accessibility tree leaves it out."""

    id: int
    tag: str
    """In lower case."""
    box: Box
    layout: Layout

    def attribute(self, name: str) -> str:
        """Return an attribute, or an empty string."""
        return self.layout.attribute(self.id, name) or ""

    def number(self, name: str) -> float:
        """Return the first number in an attribute."""
        return float(numbers(self.attribute(name))[0])

    def style(self, name: str) -> str:
        """Return a property of the attribute `style`, or an empty string."""
        found = re.search(rf"(?:^|;)\s*{name}\s*:\s*([^;]+)", self.attribute("style"))
        return found[1].strip() if found else ""

    @property
    def classes(self) -> list[str]:
        """The classes."""
        return self.attribute("class").split()

    @property
    def centre(self) -> tuple[float, float]:
        """The center in pixels."""
        return self.box.centre


class View:
    """The page as a script sees it. `page` is replaced after each action."""

    def __init__(self, page: Snapshot, objective: str, fields: Mapping[str, str]) -> None:
        self.page = page
        self.objective = objective
        """What the page asks for."""
        self.fields = fields
        """The meaning of an objective in free words; see `PageTask.fields`."""

    # What there is.

    def quoted(self) -> list[str]:
        """Return the texts in double quotes in the objective."""
        return [text.strip() for text in re.findall(r'"([^"]*)"', self.objective)]

    def asked(self, pattern: str) -> str:
        """Return the first group of a pattern in the objective.

        Raises:
            NotFound: if it doesn't match.
        """
        found = re.search(pattern, self.objective)
        if found is None:
            raise NotFound(pattern)
        return found[1]

    def shown(self, role: str | None = None, name: str | None = None) -> list[Node]:
        """Return the visible nodes with this role and name, in document order."""
        return [node for node in self.page.find(role, name) if node.visible]

    def one(self, role: str | None = None, name: str | None = None, nth: int = 0) -> Node:
        """Return one of the visible nodes.

        Raises:
            NotFound: if there are fewer.
        """
        found = self.shown(role, name)
        if not -len(found) <= nth < len(found):
            raise NotFound(f"{role} {name} {nth}")
        return found[nth]

    def texts(self) -> list[str]:
        """Return the visible texts below the objective, in document order."""
        return [node.name for node in self.shown("StaticText") if self.in_area(node)]

    def in_area(self, node: Node) -> bool:
        """Whether a node isn't in the bar with the objective."""
        layout = self.page.layout
        return all(layout.attribute(above, "id") != "query" for above in layout.ancestors(node.backend_id))

    def elements(self, tag: str = "", **attributes: str) -> list[Element]:
        """Return the elements that have a position, in document order: with this tag, and a class `class_` or `id`."""
        layout = self.page.layout
        found: list[Element] = []
        for id, place in layout.places.items():
            name = layout.tag(id).lower()
            element = Element(id, name, place.box, layout)
            if (not tag or name == tag) and all(_has(element, key, value) for key, value in attributes.items()):
                found.append(element)
        return found

    def element(self, tag: str = "", nth: int = 0, **attributes: str) -> Element:
        """Return one of the `elements`.

        Raises:
            NotFound: if there are fewer.
        """
        found = self.elements(tag, **attributes)
        if not -len(found) <= nth < len(found):
            raise NotFound(f"{tag} {attributes} {nth}")
        return found[nth]

    def around(self, node: Node, tag: str = "", **attributes: str) -> Element:
        """Return the nearest of the `elements` that a node is or is in.

        Raises:
            NotFound: if there is none.
        """
        candidates = {element.id: element for element in self.elements(tag, **attributes)}
        for id in self.page.layout.ancestors(node.backend_id):
            if id in candidates:
                return candidates[id]
        raise NotFound(f"{tag} {attributes}")

    def inside(self, element: Element, role: str | None = None) -> list[Node]:
        """Return the nodes within an element, in document order."""
        layout = self.page.layout
        return [node for node in self.page.find(role) if element.id in layout.ancestors(node.backend_id)]

    def inside_elements(self, around: Element, tag: str = "", **attributes: str) -> list[Element]:
        """Return those of the `elements` that are within another one."""
        layout = self.page.layout
        return [
            e for e in self.elements(tag, **attributes) if e.id != around.id and around.id in layout.ancestors(e.id)
        ]

    def text_of(self, element: Element) -> str:
        """Return the text within an element."""
        return " ".join(node.name for node in self.inside(element, "StaticText"))

    # Actions.

    def click(self, role: str | None = None, name: str | None = None, nth: int = 0) -> str:
        """Return the click on one of the visible nodes."""
        return f"click [{self.one(role, name, nth).id}]"

    def click_element(self, element: Element) -> str:
        """Return the click on an element: by its id if it has one, else on its center."""
        for node in self.page.nodes:
            if node.backend_id == element.id:
                return f"click [{node.id}]"
        return f"click [{point(*element.centre)}]"

    def act_on(self, node: Node, verb: str = "click") -> str:
        """Return an action that takes nothing but an element."""
        return f"{verb} [{node.id}]"

    def type(self, text: str, nth: int = 0, role: str = "textbox") -> str:
        """Return the action that fills one of the visible fields."""
        return f"type [{self.one(role, None, nth).id}] [{on_one_line(text)}] [0]"

    def submit(self, name: str = "Submit") -> str:
        """Return the click on the button that ends the task."""
        return self.click("button", name, -1)


Script = Callable[[View], Iterator[str]]
"""The actions of an episode: a generator that looks at the view again after each action that it yields."""


def point(x: float, y: float) -> str:
    """Write a point for an action."""
    return f"{int(x)},{int(y)}"


def numbers(text: str) -> list[float]:
    """Return the numbers in a text."""
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def ordinal(text: str) -> int:
    """Return the position, counted from 0, that a text such as `3rd` names."""
    return int(numbers(text)[0]) - 1


def _has(element: Element, key: str, value: str) -> bool:
    return value in element.classes if key == "class_" else element.attribute(key) == value
