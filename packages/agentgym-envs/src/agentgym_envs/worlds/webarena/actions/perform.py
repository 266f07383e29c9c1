"""Perform an agent's actions, except `stop`.

If an action can't be performed, the result is a sentence on why. The caller waits for the action's effects.
"""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import Error, Page

from agentgym_envs.worlds.webarena.actions import action_types as actions
from agentgym_envs.worlds.webarena.actions.action_types import Action
from agentgym_envs.worlds.webarena.actions.input import ActionRefused, PageInput, described
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed, is_closed
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page import scripts
from agentgym_envs.worlds.webarena.page.observation import literal
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_MAX_TYPED_CHARS = 200
_MOST_LINES = 500
"""Lines of a text that is typed or pasted. The browser's time for a field grows with the square of its lines: without a
limit, an action could outlast the step."""
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
    """Perform an action in the active tab, whose page `snapshot` shows.

    Returns:
        None, or a sentence on why it could not be performed.

    Raises:
        EnvFault: if the browser fails.
        ValueError: for `Stop`, which is not an action on a page.
    """
    session.begin_action()
    try:
        return await _perform(session, snapshot, action)
    except TabClosed:  # the action or the page closed it
        return None


async def _perform(session: Session, snapshot: Snapshot, action: Action) -> str | None:
    match action:
        case actions.Wait(seconds):
            return await session.guard(asyncio.sleep(seconds))
        case actions.NewTab():
            return await session.new_tab()
        case actions.CloseTab():
            return await session.close_tab()
        case actions.TabFocus(index):
            return await session.focus(index)
        case actions.Goto(url):
            return await session.goto(url)
        case actions.GoBack():
            return await session.go_back()
        case actions.GoForward():
            return await session.go_forward()
        case _:
            return await _on_page(session, snapshot, action)


async def _on_page(session: Session, snapshot: Snapshot, action: Action) -> str | None:
    try:
        await session.guard(_perform_on_page(session, PageInput(session.tab, snapshot), action))
    except ActionRefused as refusal:
        return str(refusal)
    return None


async def _perform_on_page(session: Session, page_input: PageInput, action: Action) -> None:
    match action:
        case actions.Click(actions.Point() as point, kind):
            await page_input.click_at(point, kind)
        case actions.Click(int(id), kind):
            await _click(page_input, page_input.element(id), kind)
        case actions.Drag(source, destination):
            await _drag(page_input, source, destination)
        case actions.SelectText(id, text):
            await _select_text(page_input, page_input.element(id), text)
        case actions.Type(target, text, enter):
            await _type(page_input, await _node(page_input, target), text, enter)
        case actions.Hover(target):
            await page_input.hover(_node_or_point(page_input, target))
        case actions.Select(target, option):
            await _select(page_input, await _node(page_input, target), option)
        case actions.Press(keys):
            await _press(session, page_input, keys)
        case actions.Scroll(direction, None):
            await _scroll(page_input, direction)
        case actions.Scroll(direction, actions.Point() as point):
            await _scroll_part(page_input, await page_input.element_at(point, exact=True), direction)
        case actions.Scroll(direction, int(id)):
            await _scroll_part(page_input, page_input.element(id), direction)
        case _:
            raise ValueError(f"{action!r} is not an action on a page.")


def _node_or_point(page_input: PageInput, target: actions.Target) -> Node | actions.Point:
    return target if isinstance(target, actions.Point) else page_input.element(target)


async def _node(page_input: PageInput, target: actions.Target) -> Node:
    """Return the element, or the one at a point."""
    return await page_input.element_at(target) if isinstance(target, actions.Point) else page_input.element(target)


async def _click(page_input: PageInput, node: Node, kind: str) -> None:
    _check_usable(page_input, node)
    if kind != "single":
        await page_input.click(node, kind)
        return
    match page_input.tag(node):
        case "OPTION":
            await _select(page_input, node, None)
        case "SELECT" if node.role == "combobox":  # its popup would open outside the page, where clicks don't reach it
            await page_input.call(node, scripts.FOCUS)
        case _:
            await page_input.click(node)


async def _drag(page_input: PageInput, source: actions.Target, destination: actions.Target) -> None:
    held, target = _node_or_point(page_input, source), _node_or_point(page_input, destination)
    if isinstance(held, Node):
        _check_usable(page_input, held)
    await page_input.drag(held, target)


async def _select_text(page_input: PageInput, node: Node, text: str) -> None:
    result = await page_input.call(node, scripts.SELECT_TEXT, text)
    if result == "none":
        raise ActionRefused(f"{described(node)} has no text that can be selected.")
    if result == "missing":
        raise ActionRefused(
            f"{described(node)} does not contain {literal(text)}; write the text as the page has it, or leave it out "
            "to select all of the element's."
        )


def _check_usable(page_input: PageInput, node: Node) -> None:
    if node.property("disabled"):
        raise ActionRefused(f"{described(node)} is disabled.")
    if page_input.tag(node) == "INPUT" and _input_type(page_input, node) == "file":
        raise ActionRefused(f"{described(node)} asks for a file; there are no files to give it.")


def _input_type(page_input: PageInput, node: Node) -> str:
    return (page_input.layout.attribute(node.backend_id, "type") or "text").strip().lower()


async def _select(page_input: PageInput, node: Node, option: str | None) -> None:
    """Choose an option of a drop-down list by label or value; None chooses the option that `node` itself is."""
    _check_usable(page_input, node)
    tags = [page_input.layout.tag(ancestor) for ancestor in page_input.layout.ancestors(node.backend_id)]
    if "SELECT" not in tags:
        raise ActionRefused(f"{described(node)} is no drop-down list; click it, then what it offers.")
    result = await page_input.call(node, scripts.CHOOSE, option)
    if "problem" in result:
        raise ActionRefused(f"{described(node)} {result['problem']}.")
    if "options" in result:
        offered: list[str] = result["options"]
        listed = ", ".join(map(literal, offered[:_OPTIONS_SHOWN])) + (", …" if len(offered) > _OPTIONS_SHOWN else "")
        raise ActionRefused(f"{described(node)} has no option {literal(option or '')}; it has {listed or 'none'}.")


async def _type(page_input: PageInput, node: Node, text: str, enter: bool) -> None:
    """Replace the content of a field."""
    _check_usable(page_input, node)
    if page_input.tag(node) == "SELECT":
        await _select(page_input, node, text)
        return
    if node.role in _NO_TEXT:
        raise ActionRefused(f"{described(node)} takes no text; type into a field.")
    if page_input.tag(node) == "INPUT" and _input_type(page_input, node) in _FORMATS:
        await _set(page_input, node, text)
    else:
        await page_input.click(node)
        await _replace(page_input, node, text)
    if enter:
        await page_input.tab.page.keyboard.press("Enter")


async def _replace(page_input: PageInput, node: Node, text: str) -> None:
    """Replace the content of the focused field by `text`."""
    _check_lines(text, "Type")
    field = await page_input.call(node, scripts.PREPARE)
    if "problem" in field:
        raise ActionRefused(f"{described(node)} {field['problem']}.")
    keyboard = page_input.tab.page.keyboard
    if field["filled"]:
        await keyboard.press("Delete")
    if not field["lines"]:
        text = " ".join(text.splitlines())
    typed = text if len(text) <= _MAX_TYPED_CHARS and "\n" not in text else ""
    if typed != text:  # insert it in one operation: single keys are slow, and Enter may submit incomplete text
        await keyboard.insert_text(text)
    await keyboard.type(typed)


def _check_lines(text: str, what: str) -> None:
    if (lines := text.count("\n") + 1) > _MOST_LINES:
        raise ActionRefused(f"{what} at most {_MOST_LINES} lines at a time, not {lines:,}.")


async def _set(page_input: PageInput, node: Node, text: str) -> None:
    """Set the value of a field with a value format of its own, such as a date."""
    kind = _input_type(page_input, node)
    american = re.fullmatch(r"(\d{1,2})/(\d{1,2})/(\d{4})", text.strip())
    if kind == "date" and american:
        text = f"{american[3]}-{american[1]:0>2}-{american[2]:0>2}"
    if not await page_input.call(node, scripts.SET, text.strip()):
        raise ActionRefused(f"{described(node)} takes a {kind} written like {_FORMATS[kind]}, not {literal(text)}.")


async def _press(session: Session, page_input: PageInput, keys: str) -> None:
    """Press keys; copy, cut and paste use the session's clipboard."""
    page = page_input.tab.page
    if keys.lower() in _PASTE:
        if session.clipboard:
            _check_lines(session.clipboard, "Copy and paste")
            await page.keyboard.insert_text(session.clipboard)
        return
    if keys.lower() in _COPY:
        session.clipboard = await _selected_text(page) or session.clipboard
    await page.keyboard.press(keys)


async def _selected_text(page: Page) -> str:
    try:
        return await page.evaluate(scripts.SELECTED)
    except Error as error:
        if is_closed(error):
            raise
        return ""  # the page is navigating, or its own script interferes


async def _scroll(page_input: PageInput, direction: str) -> None:
    try:
        moved = await page_input.tab.page.evaluate(scripts.SCROLL, 1 if direction == "down" else -1)
    except Error as error:
        if is_closed(error):
            raise
        raise ActionRefused(
            "The page can't be scrolled now: it is changing, or its own script gets in the way."
        ) from error
    if not moved:
        raise ActionRefused(f"The page can't be scrolled further {direction}.")


async def _scroll_part(page_input: PageInput, node: Node, direction: str) -> None:
    moved = await page_input.call(node, scripts.SCROLL_PART, 1 if direction == "down" else -1)
    if moved is None:
        raise ActionRefused(f"Nothing around {described(node)} can be scrolled; scroll [{direction}] scrolls the page.")
    if not moved:
        raise ActionRefused(f"The part of the page around {described(node)} can't be scrolled further {direction}.")
