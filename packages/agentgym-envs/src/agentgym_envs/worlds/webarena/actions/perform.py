"""Carrying out what an agent asks for, all but `stop`. What can't be done comes back as a sentence that says why;
waiting for what comes of it is left to the caller.
"""

from __future__ import annotations

import re

from playwright.async_api import Error, Page

from agentgym_envs.worlds.webarena.actions import grammar
from agentgym_envs.worlds.webarena.actions.grammar import Action
from agentgym_envs.worlds.webarena.actions.input import Hand, Refused, described
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed, is_closed
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page import scripts
from agentgym_envs.worlds.webarena.page.observation import literal
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_KEYED = 200
_COPY = frozenset(("control+c", "control+x", "control+insert", "shift+delete"))
_PASTE = frozenset(("control+v", "control+shift+v", "shift+control+v", "shift+insert"))
_OPTIONS_SHOWN = 30
_NO_TEXT = frozenset((
    "link", "button", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemcheckbox", "menuitemradio",
    "option", "image", "heading",
))  # fmt: skip
_FORMATS = {
    "date": "2024-03-17",
    "time": "14:30",
    "month": "2024-03",
    "week": "2024-W11",
    "datetime-local": "2024-03-17T14:30",
    "color": "#ff8800",
    "range": "42",
}


async def perform(session: Session, snapshot: Snapshot, action: Action) -> str | None:
    """Carry out an action on the page that looked as in `snapshot`, in the active tab.

    Returns:
        None, or a sentence on why it could not be done.

    Raises:
        EnvFault: when the browser fails.
        ValueError: for `Stop`, which asks nothing of a browser.
    """
    try:
        return await _performed(session, snapshot, action)
    except TabClosed:  # which is what the action did, or the page meanwhile
        return None


async def _performed(session: Session, snapshot: Snapshot, action: Action) -> str | None:
    match action:
        case grammar.NewTab():
            return await session.new_tab()
        case grammar.CloseTab():
            return await session.close_tab()
        case grammar.TabFocus(index):
            return await session.focus(index)
        case grammar.Goto(url):
            return await session.goto(url)
        case grammar.GoBack():
            return await session.go_back()
        case grammar.GoForward():
            return await session.go_forward()
        case _:
            return await _on_page(session, snapshot, action)


async def _on_page(session: Session, snapshot: Snapshot, action: Action) -> str | None:
    try:
        await session.guard(_do(session, Hand(session.tab, snapshot), action))
    except Refused as refused:
        return str(refused)
    return None


async def _do(session: Session, hand: Hand, action: Action) -> None:
    match action:
        case grammar.Click(id):
            await _click(hand, hand.element(id))
        case grammar.Type(id, text, enter):
            await _type(hand, hand.element(id), text, enter)
        case grammar.Hover(id):
            await hand.hover(hand.element(id))
        case grammar.Select(id, option):
            await _select(hand, hand.element(id), option)
        case grammar.Press(keys):
            await _press(session, hand, keys)
        case grammar.Scroll(direction):
            await _scroll(hand, direction)
        case _:
            raise ValueError(f"{action!r} asks nothing of a page.")


async def _click(hand: Hand, node: Node) -> None:
    _refuse(hand, node)
    match hand.tag(node):
        case "OPTION":
            await _select(hand, node, None)
        case "SELECT" if node.role == "combobox":  # its list would open in front of the page, where nobody can click
            await hand.call(node, scripts.FOCUS)
        case _:
            await hand.click(node)


def _refuse(hand: Hand, node: Node) -> None:
    if node.property("disabled"):
        raise Refused(f"{described(node)} is disabled.")
    if hand.tag(node) == "INPUT" and _kind(hand, node) == "file":
        raise Refused(f"{described(node)} asks for a file; there are no files to give it.")


def _kind(hand: Hand, node: Node) -> str:
    return (hand.layout.attribute(node.backend_id, "type") or "text").strip().lower()


async def _select(hand: Hand, node: Node, option: str | None) -> None:
    """Choose an option of a drop-down list by its label or value; None chooses the option that the node is."""
    _refuse(hand, node)
    tags = [hand.layout.tag(at) for at in hand.layout.ancestors(node.backend_id)]
    if "SELECT" not in tags:
        raise Refused(f"{described(node)} is no drop-down list; click it, then what it offers.")
    came = await hand.call(node, scripts.CHOOSE, option)
    if "problem" in came:
        raise Refused(f"{described(node)} {came['problem']}.")
    if "options" in came:
        offered: list[str] = came["options"]
        listed = ", ".join(map(literal, offered[:_OPTIONS_SHOWN])) + (", …" if len(offered) > _OPTIONS_SHOWN else "")
        raise Refused(f"{described(node)} has no option {literal(option or '')}; it has {listed or 'none'}.")


async def _type(hand: Hand, node: Node, text: str, enter: bool) -> None:
    """Replace what stands in a field."""
    _refuse(hand, node)
    if hand.tag(node) == "SELECT":
        await _select(hand, node, text)
        return
    if node.role in _NO_TEXT:
        raise Refused(f"{described(node)} takes no text; type into a field.")
    if hand.tag(node) == "INPUT" and _kind(hand, node) in _FORMATS:
        await _set(hand, node, text)
    else:
        await hand.click(node)
        await _replace(hand, node, text)
    if enter:
        await hand.tab.page.keyboard.press("Enter")


async def _replace(hand: Hand, node: Node, text: str) -> None:
    """Write `text` for what stands in the field that has the cursor."""
    field = await hand.call(node, scripts.PREPARE)
    if "problem" in field:
        raise Refused(f"{described(node)} {field['problem']}.")
    keyboard = hand.tab.page.keyboard
    if field["filled"]:
        await keyboard.press("Delete")
    if not field["lines"]:
        text = " ".join(text.splitlines())
    keyed = text if len(text) <= _KEYED and "\n" not in text else ""
    if keyed != text:  # all at once; keys would take long, and Enter may send what is half written
        await keyboard.insert_text(text)
    await keyboard.type(keyed)


async def _set(hand: Hand, node: Node, text: str) -> None:
    """Give a value to a field that has a form of its own for it, such as a date."""
    kind = _kind(hand, node)
    american = re.fullmatch(r"(\d{1,2})/(\d{1,2})/(\d{4})", text.strip())
    if kind == "date" and american:
        text = f"{american[3]}-{american[1]:0>2}-{american[2]:0>2}"
    if not await hand.call(node, scripts.SET, text.strip()):
        raise Refused(f"{described(node)} takes a {kind} written like {_FORMATS[kind]}, not {literal(text)}.")


async def _press(session: Session, hand: Hand, keys: str) -> None:
    """Press keys; what they copy, cut and paste stays in the session."""
    page = hand.tab.page
    if keys.lower() in _PASTE:
        if session.clipboard:
            await page.keyboard.insert_text(session.clipboard)
        return
    if keys.lower() in _COPY:
        session.clipboard = await _selected(page) or session.clipboard
    await page.keyboard.press(keys)


async def _selected(page: Page) -> str:
    try:
        return await page.evaluate(scripts.SELECTED)
    except Error as error:
        if is_closed(error):
            raise
        return ""  # the page is changing, or its own script gets in the way


async def _scroll(hand: Hand, direction: str) -> None:
    try:
        moved = await hand.tab.page.evaluate(scripts.SCROLL, 1 if direction == "down" else -1)
    except Error as error:
        if is_closed(error):
            raise
        raise Refused("The page can't be scrolled now: it is changing, or its own script gets in the way.") from error
    if not moved:
        raise Refused(f"The page can't be scrolled further {direction}.")
