"""Tests of the expert's detours on constructed snapshots."""

from __future__ import annotations

from typing import Any

from agentgym_envs.worlds.webarena.expert.detours import Detour
from agentgym_envs.worlds.webarena.expert.expert import Expert
from agentgym_envs.worlds.webarena.page.geometry import Box
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot
from agentgym_envs.worlds.webarena.sites.tasks import Step, choose, click, fill, go, stop
from constructed_snapshots import LAYOUT

START = "http://shop.example"
WINDOW = Box(0, 0, 1280, 720)
MENU = {"hasPopup": "menu", "expanded": False}
DIALOG = {"hasPopup": "dialog", "expanded": False}


def page(*nodes: tuple[str, str, dict[str, Any]], parents: dict[int, int] | None = None) -> Snapshot:
    """Return a page of nodes (role, name, properties), with ids from 1, in rows below each other.

    A property `at` is the box of the node; `parents` maps ids to the ids of their parents.
    """
    made: list[Node] = []
    for number, (role, name, properties) in enumerate(nodes, 1):
        box = properties.get("at", Box(0, 20 * number, 100, 20 * number + 10))
        place = "below" if box.top >= WINDOW.bottom else "above" if box.bottom <= 0 else "visible"
        kept = tuple((key, value) for key, value in properties.items() if key != "at")
        seen = box if place == "visible" else None
        parent = (parents or {}).get(number)
        made.append(Node(number, role, name, kept, 0, parent, box, seen, number, "frame", place))
    return Snapshot(tuple(made), LAYOUT, False)


def play(steps: tuple[Step, ...], *pages: Snapshot) -> list[str]:
    """Return the expert's actions on pages, each of which results from the previous action."""
    expert = Expert((*steps, stop()), START)
    actions: list[str] = []
    for seen in pages:
        actions.append(expert.next(seen))
        expert.record(actions[-1], seen, valid=True)
    return actions


def opened(name: str, *links: str) -> Snapshot:
    """Return a page with an open menu, its links, and the closed menu `Help`."""
    nodes = [("button", name, MENU | {"expanded": True}), ("group", f"{name} menu", {}), ("button", "Help", MENU)]
    parents = {4 + i: 2 for i in range(len(links))}
    return page(*nodes, *(("link", link, {}) for link in links), parents=parents)


def test_menus_are_tried_one_after_the_other() -> None:
    closed = page(("button", "Account", MENU), ("button", "Help", MENU))
    orders = click("link", "Orders")
    assert play((orders,), closed, opened("Account", "Profile"), closed) == [
        "hover [1]",
        "hover [3]",
        f"goto [{START}]",
    ]
    assert play((orders,), closed, opened("Account", "Orders")) == ["hover [1]", "click [4]"]


def test_menu_that_was_seen_comes_last() -> None:
    closed = page(("button", "Account", MENU), ("button", "Help", MENU))
    steps = (click("link", "Profile"), click("link", "Terms"))
    assert play(steps, closed, opened("Account", "Profile"), closed) == ["hover [1]", "click [4]", "hover [2]"]


def test_menu_out_of_sight_is_scrolled_to() -> None:
    above = page(("button", "Account", MENU | {"at": Box(0, -900, 100, -880)}))
    assert play((click("link", "Orders"),), above, page(("button", "Account", MENU))) == ["scroll [up]", "hover [1]"]


def test_forms_are_opened_for_fields_first() -> None:
    shown = page(("button", "Account", MENU), ("button", "Save address…", DIALOG))
    assert play((fill("textbox", "Town", "Selby"),), shown) == ["click [2]"]
    assert play((click("link", "Town"),), shown) == ["hover [1]"]


def test_wrong_dialog_is_left() -> None:
    wrong = page(("dialog", "Save address", {"modal": True}), ("button", "Close", {}))
    assert play((fill("textbox", "Coupon", "JUNE15"),), wrong) == ["click [2]"]


def test_table_is_paged_until_its_end() -> None:
    table, end = page(("button", "Next rows", {})), page(("button", "Next rows", {"disabled": True}))
    assert play((click("link", "Row 23"),), table, table, end) == ["click [1]", "click [1]", f"goto [{START}]"]


def test_list_that_never_ends_is_given_up() -> None:
    grows = page(("StaticText", "10 of 99; scroll down for more", {}))
    actions = play((click("link", "Entry 98"),), *[grows] * 13)
    assert actions == ["scroll [down]"] * 12 + [f"goto [{START}]"]


def test_option_in_a_popup() -> None:
    box = {"hasPopup": "listbox", "expanded": False}
    closed = page(("combobox", "Size", box))
    listed = page(
        ("combobox", "Size", box | {"expanded": True}),
        ("option", "Large", {}),
        ("listbox", "Size options", {}),
        ("option", "Large", {}),
        parents={4: 3},
    )
    assert play((choose("Size", "Large"),), closed, listed, closed) == ["click [1]", "click [4]", "stop []"]


def test_long_list_is_filtered_once() -> None:
    listed = page(
        ("combobox", "Size", {"expanded": True}), ("searchbox", "Filter Size", {}), ("listbox", "Size options", {})
    )
    assert play((choose("Size", "Huge"),), listed, listed) == ["type [2] [Huge] [0]", f"goto [{START}]"]


def test_what_covers_an_element_is_closed() -> None:
    calendar = ("group", "Calendar of Day", {"at": Box(0, 30, 300, 300)})
    covered = page(("button", "Save", {}), calendar, ("button", "Send", {}))
    assert play((click("button", "Send"),), covered) == ["press [Escape]"]
    assert play((click("button", "Save"),), covered) == ["click [1]"]
    within = page(("button", "Save", {}), calendar, ("button", "Send", {}), parents={3: 2})
    assert play((click("button", "Send"),), within) == ["click [3]"]


def test_cookie_bar_is_accepted() -> None:
    bar = page(("button", "Save", {}), ("region", "Cookie notice", {}), ("button", "Accept all", {}))
    assert play((click("button", "Save"),), bar) == ["click [3]"]
    assert play((click("link", "Orders"),), bar) == ["click [3]"]
    assert play((go("http://map.example"),), bar) == ["goto [http://map.example]"]


def test_question_is_confirmed_before_anything_else() -> None:
    asked = page(("dialog", "Confirmation", {"modal": True}), ("button", "Confirm", {}))
    assert play((), asked) == ["click [2]"]
    assert play((go("http://map.example"),), asked) == ["click [2]"]


def test_dialog_is_scrolled() -> None:
    dialog = ("dialog", "Save", {"modal": True, "at": Box(100, 50, 800, 650)})
    seen = page(dialog, ("textbox", "Town", {"at": Box(100, 900, 300, 930)}), parents={2: 1})
    assert play((fill("textbox", "Town", "Selby"),), seen) == ["scroll [down] [1]"]


def test_a_detour_has_a_reason() -> None:
    expert = Expert((click("link", "Orders"), stop()), START)
    shown = page(("button", "Account", MENU))
    assert expert.detour(shown) == "What I look for may be in the menu 'Account', so I open it."
    assert expert.detour(page(("link", "Orders", {}))) == ""
    assert Detour("wait [1]", "Why.").key == ""
