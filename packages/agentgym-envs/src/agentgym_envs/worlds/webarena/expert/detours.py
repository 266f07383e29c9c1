"""What the expert does between the steps of its plan, above all in the rough skin: it clears the way to an element,
looks for one that isn't on the page, and operates widgets that take several actions.

All of it depends only on what an agent sees: roles, names, properties and positions of the page's elements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_MOST_PARTS = 12
"""How many further parts of tables and lists the expert asks for on one page."""
_PART = "part"
_MORE_ENTRIES = "scroll down for more"
_POPUP_NAMES = re.compile("^Suggestions$|^Calendar of | menu$")


@dataclass(frozen=True, slots=True)
class Detour:
    """An action that brings the expert closer to a step without completing it."""

    action: str
    reason: str
    """A sentence for the expert's thoughts."""
    key: str = ""
    """What has been tried by it, so that it isn't tried again for the same step; empty if it may be repeated."""
    node: Node | None = None
    """The element that it acts on, which has to be scrolled into view first; None if that isn't so."""


def answer_question(page: Snapshot) -> Detour | None:
    """Confirm what the page asks about, if it does."""
    if not page.find("dialog", "Confirmation"):
        return None
    return _click(page, "button", "Confirm", "The page asks whether that is meant, and it is.")


def accept_cookies(page: Snapshot) -> Detour | None:
    """Close the cookie bar, if there is one."""
    if not page.find("region", "Cookie notice"):
        return None
    return _click(page, "button", "Accept all", "A cookie bar is in the way, so I close it.")


def clear_way(page: Snapshot, target: Node) -> Detour | None:
    """Close a menu, suggestions, options or a calendar that lies over an element."""
    covering = next((popup for popup in _popups(page) if _covers(page, popup, target)), None)
    if covering is None:
        return None
    return Detour("press [Escape]", f"'{covering.name}' covers what I need, so I close it.")


def scroll_dialog(page: Snapshot, target: Node) -> Detour | None:
    """Scroll the dialog that an element is in, if it is above or below the visible part."""
    dialog = next((node for node in _ancestors(page, target) if node.role == "dialog"), None)
    if dialog is None or dialog.seen is None or target.box is None or target.visible:
        return None
    direction = "down" if target.box.top >= dialog.seen.bottom - 1 else "up"
    return Detour(f"scroll [{direction}] [{dialog.id}]", "What I look for isn't in sight, so I scroll in the dialog.")


def look_further(
    page: Snapshot, role: str, name: str, tried: Collection[str], menus: Mapping[str, frozenset[str]]
) -> Detour | None:
    """Look for an element that isn't on the page: in menus, dialogs, and further parts of tables and lists.

    Args:
        page: The page.
        role: The role of the element.
        name: The name of the element.
        tried: Keys of the detours that were made for this step, one for each time.
        menus: The names in menus that were open before, by the name of the menu.
    """
    if any(node.property("modal") for node in page.find("dialog")):
        return _click(page, "button", "Close", "What I look for isn't in this dialog, so I close it.")
    inside = _more_parts(page) if list(tried).count(_PART) < _MOST_PARTS else ()
    ways = (_menus(page), inside, _forms(page)) if role == "link" else (_forms(page), inside, _menus(page))
    untried = [detour for way in ways for detour in way if detour.key == _PART or detour.key not in tried]
    # Menus that were seen without it come last: they may have other contents on this page.
    untried.sort(key=lambda detour: detour.key in menus and name not in menus[detour.key])
    return untried[0] if untried else None


def open_menus(page: Snapshot) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the name of each open menu with the names in it."""
    for button in _openers(page, "menu", expanded=True):
        for panel in page.find("group", f"{button.name} menu"):
            yield button.name, frozenset(node.name for node in page.nodes if panel in _ancestors(page, node))


def choose_option(page: Snapshot, box: Node, option: str, tried: Collection[str]) -> Detour | Node | None:
    """Return the element of an option in a combobox with a popup, or what leads to it; None if it has none."""
    if box.property("expanded") is not True:
        return Detour(f"click [{box.id}]", f"The options of '{box.name}' are in a popup, so I open it.")
    lists = page.find("listbox", f"{box.name} options")
    found = [node for node in page.find("option", option) if any(one in _ancestors(page, node) for one in lists)]
    if found:
        return found[0]
    fields = page.find("searchbox", f"Filter {box.name}")
    if not fields or f"filter {option}" in tried:
        return None
    action = f"type [{fields[0].id}] [{option}] [0]"
    return Detour(action, "The list is long, so I type what I look for.", f"filter {option}")


def _click(page: Snapshot, role: str, name: str, reason: str) -> Detour | None:
    found = page.find(role, name)
    return Detour(f"click [{found[0].id}]", reason, node=found[0]) if found else None


def _menus(page: Snapshot) -> Iterator[Detour]:
    for button in _openers(page, "menu"):
        reason = f"What I look for may be in the menu '{button.name}', so I open it."
        yield Detour(f"hover [{button.id}]", reason, button.name, button)


def _forms(page: Snapshot) -> Iterator[Detour]:
    for button in _openers(page, "dialog"):
        reason = f"What I look for may be in the form behind '{button.name}', so I open it."
        yield Detour(f"click [{button.id}]", reason, button.name, button)


def _more_parts(page: Snapshot) -> Iterator[Detour]:
    for button in page.find("button", "Next rows"):
        if not button.property("disabled"):
            yield Detour(f"click [{button.id}]", "The table goes on, so I turn its page.", _PART, button)
    if any(_MORE_ENTRIES in node.name for node in page.nodes):
        yield Detour("scroll [down]", "The list goes on, so I scroll.", _PART)


def _openers(page: Snapshot, kind: str, *, expanded: bool = False) -> list[Node]:
    """Return the buttons that open menus or dialogs."""
    buttons = (node for node in page.find("button") if node.property("hasPopup") == kind)
    return [node for node in buttons if node.property("expanded") is expanded]


def _popups(page: Snapshot) -> Iterator[Node]:
    for node in page.nodes:
        if node.role == "listbox" or (node.role == "group" and _POPUP_NAMES.search(node.name)):
            yield node


def _covers(page: Snapshot, popup: Node, target: Node) -> bool:
    if popup.seen is None or target.seen is None or popup in _ancestors(page, target):
        return False
    x, y = target.seen.centre
    return popup.seen.left <= x <= popup.seen.right and popup.seen.top <= y <= popup.seen.bottom


def _ancestors(page: Snapshot, node: Node) -> Iterator[Node]:
    current: Node | None = node
    while current is not None:
        yield current
        current = page.node(current.parent or 0)
