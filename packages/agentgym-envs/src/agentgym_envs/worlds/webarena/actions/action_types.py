"""The actions of an agent as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_WAIT = 10.0
"""The longest `Wait`, in seconds."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the window, in pixels from its upper left corner."""

    x: int
    y: int


Target = int | Point
"""What is acted on: the id of an element, or a point, which stands for the element there."""


@dataclass(frozen=True, slots=True)
class Click:
    """Click an element or a point."""

    target: Target
    kind: Literal["single", "double", "right"] = "single"


@dataclass(frozen=True, slots=True)
class Drag:
    """Press the mouse button at one place, and release it at another."""

    source: Target
    destination: Target


@dataclass(frozen=True, slots=True)
class SelectText:
    """Select text of an element or field."""

    element: int
    text: str = ""
    """The text to select, without regard to white space; all of the element's text if empty."""


@dataclass(frozen=True, slots=True)
class Type:
    """Replace the content of a field by `text`."""

    target: Target
    text: str
    enter: bool = True
    """Whether to press Enter afterwards."""


@dataclass(frozen=True, slots=True)
class Hover:
    """Move the mouse over an element or a point."""

    target: Target


@dataclass(frozen=True, slots=True)
class Press:
    """Press a key or a key combination."""

    keys: str
    """In Playwright's names, such as `Control+v`."""


@dataclass(frozen=True, slots=True)
class Scroll:
    """Scroll by the height of the viewport, or of an element."""

    direction: Literal["up", "down"]
    target: Target | None = None
    """An element or a point: the innermost scrollable part that it is in or that it is scrolls; None for the page."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Let time pass."""

    seconds: float = 1.0
    """From 0 to `MAX_WAIT`."""


@dataclass(frozen=True, slots=True)
class NewTab:
    """Open an empty tab."""


@dataclass(frozen=True, slots=True)
class TabFocus:
    """Activate another tab."""

    index: int


@dataclass(frozen=True, slots=True)
class CloseTab:
    """Close the current tab."""


@dataclass(frozen=True, slots=True)
class Goto:
    """Open a URL."""

    url: str


@dataclass(frozen=True, slots=True)
class GoBack:
    """Go back in the tab's history."""


@dataclass(frozen=True, slots=True)
class GoForward:
    """Go forward in the tab's history."""


@dataclass(frozen=True, slots=True)
class Select:
    """Choose an option of a drop-down list."""

    target: Target
    option: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the episode, with an answer if the task asks for one."""

    answer: str = ""


Action = (
    Click
    | Drag
    | SelectText
    | Type
    | Hover
    | Press
    | Scroll
    | Wait
    | NewTab
    | TabFocus
    | CloseTab
    | Goto
    | GoBack
    | GoForward
    | Select
    | Stop
)
