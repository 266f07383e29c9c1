"""Scripts of pages with menus, tabs, folded sections, calendars and lists of results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from agentgym_envs.worlds.webarena.miniwob.view import NotFound, View, numbers, ordinal
from agentgym_envs.worlds.webarena.page.snapshot import Node

_MOST_TRIES = 25
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def click_menu(view: View) -> Iterator[str]:
    """`click-menu`."""
    *menus, item = view.objective.removeprefix("Select ").split(">")
    for menu in menus:
        yield view.act_on(view.one("menuitem", menu), "hover")
    yield view.click("menuitem", item)


def click_menu_2(view: View) -> Iterator[str]:
    """`click-menu-2`: the item is named, or shown by its icon."""
    icons = view.elements("span", class_="ui-icon")
    yield view.click("button", "Menu")
    if "labeled" in view.objective:
        name = view.quoted()[1]
    else:
        wanted = icons[0].classes[-1]
        name = _MENU_ICONS[wanted]
    if name in ("Prev", "Stop", "Play", "Next"):
        yield view.act_on(_menu_item(view, "Playback"), "hover")
    yield view.act_on(_menu_item(view, name))


_MENU_ICONS = {
    "ui-icon-disk": "Save", "ui-icon-seek-start": "Prev", "ui-icon-stop": "Stop", "ui-icon-play": "Play",
    "ui-icon-seek-end": "Next", "ui-icon-zoomin": "Zoom In", "ui-icon-zoomout": "Zoom Out",
}  # fmt: skip


def _menu_item(view: View, name: str) -> Node:
    fitting = [node for node in view.shown("menuitem") if node.name.strip().startswith(name)]
    if not fitting:
        raise NotFound(name)
    return fitting[0]


def click_tab(view: View) -> Iterator[str]:
    """`click-tab`."""
    yield view.click("tab", view.asked(r"(Tab #\d)"))


def click_tab_2(view: View) -> Iterator[str]:
    """`click-tab-2` and its easy, medium and hard variants: look into one tab after the other."""
    yield from _look_into(view, "tab")


def click_collapsible(view: View) -> Iterator[str]:
    """`click-collapsible`, with and without delay."""
    if not view.one("tab").property("expanded"):
        yield view.click("tab")
    yield view.submit()


def click_collapsible_2(view: View) -> Iterator[str]:
    """`click-collapsible-2`, with and without delay: unfold one section after the other."""
    yield from _look_into(view, "tab")


def _look_into(view: View, role: str) -> Iterator[str]:
    name = view.quoted()[0]
    for index in range(len(view.page.find(role))):
        if found := [node for node in view.shown("StaticText", name) if view.in_area(node)]:
            yield view.act_on(found[-1])
            return
        yield view.act_on(view.page.find(role)[index])
    if found := [node for node in view.shown("StaticText", name) if view.in_area(node)]:
        yield view.act_on(found[-1])
    else:
        raise NotFound(name)


def click_pie(view: View) -> Iterator[str]:
    """`click-pie` and `click-pie-nodelay`: the plus sign in the middle opens the menu."""
    name = view.quoted()[0]
    if view.shown("StaticText", "+"):  # an open menu has a minus sign there
        yield view.click("StaticText", "+", -1)
    for _ in range(_MOST_TRIES):  # the parts of the menu don't take a click while they move
        yield view.act_on(next(node for node in view.shown("StaticText", name) if view.in_area(node)))


def navigate_tree(view: View) -> Iterator[str]:
    """`navigate-tree`: open folders, the last closed one first, until the name is shown."""
    name = view.quoted()[0]
    for _ in range(_MOST_TRIES):
        if found := [node for node in view.shown("StaticText", name) if view.in_area(node)]:
            yield view.act_on(found[-1])
            return
        folders = [hit for hit in view.elements("div", class_="expandable-hitarea") if hit.box.bottom > hit.box.top]
        if not folders:
            raise NotFound(name)
        yield view.click_element(folders[-1])


def search_engine(view: View) -> Iterator[str]:
    """`search-engine`: three results a page."""
    rank = ordinal(view.asked(r"(\d+(?:st|nd|rd|th))"))
    yield view.type(view.quoted()[0])
    yield view.click("button", "Search")
    if rank >= 3:
        yield view.click("link", str(rank // 3 + 1))
    results = [node for node in view.shown("link") if node.name not in ("<", ">", "1", "2", "3")]
    yield view.act_on(results[rank % 3])


def choose_date(view: View) -> Iterator[str]:
    """`choose-date` and its variants."""
    month, day, year = (int(number) for number in view.asked(r"(\d+/\d+/\d+)").split("/"))
    yield view.click("textbox")
    yield from _pick(view, date(year, month, day))
    yield view.submit()


def _pick(view: View, wanted: date) -> Iterator[str]:
    """Turn the pages of jQuery UI's calendar to a month, and click the day."""
    for _ in range(_MOST_TRIES):
        month = view.text_of(view.element("span", class_="ui-datepicker-month"))
        year = view.text_of(view.element("span", class_="ui-datepicker-year"))
        shown = date(int(year), _MONTHS.index(month) + 1, 1)
        if shown == wanted.replace(day=1):
            break
        yield view.click_element(view.element("a", class_=f"ui-datepicker-{'prev' if shown > wanted else 'next'}"))
    days = [
        node for node in view.shown("link", str(wanted.day)) if "ui-state-default" in view.around(node, "a").classes
    ]
    if not days:
        raise NotFound(str(wanted))
    yield view.act_on(days[0])


def book_flight(view: View) -> Iterator[str]:
    """`book-flight` and `book-flight-nodelay`."""
    places = (view.asked("from: (.*) to:"), view.asked("to: (.*) on"))
    month, day, year = (int(number) for number in view.asked(r"(\d+/\d+/\d+)").split("/"))
    for index, place in enumerate(places):
        yield view.type(place, index)
        listed = [item for item in view.elements("li", class_="ui-menu-item") if item.box.bottom > item.box.top]
        fitting = [item for item in listed if place in view.text_of(item)]
        if not fitting:
            raise NotFound(place)
        yield view.click_element(fitting[0])
    yield view.click("textbox", None, 2)
    yield from _pick(view, date(year, month, day))
    yield view.click("button", "Search")
    flights = view.elements("div", class_="flight")
    attribute, name = (
        ("time-duration", "data-duration") if "shortest" in view.objective else ("flight-price", "data-price")
    )
    values = [element.number(name) for element in view.elements(class_=attribute)][: len(flights)]
    buttons = [node for node in view.page.find("button") if node.name.startswith("Book flight")]
    yield view.act_on(buttons[values.index(min(values))])


def buy_ticket(view: View) -> Iterator[str]:
    """`buy-ticket`."""
    wanted = view.asked("with the (.*)")
    class_, name = ("time-duration", "data-duration") if "duration" in wanted else ("buy-ticket", "data-price")
    values = [element.number(name) for element in view.elements(class_=class_)]
    best = max(values) if "longest" in wanted or "expensive" in wanted else min(values)
    buttons = [node for node in view.page.find("button") if node.name.startswith("Book for")]
    yield view.act_on(buttons[values.index(best)])


def daily_calendar(view: View) -> Iterator[str]:
    """`daily-calendar`: drag over free half hours, and name the event."""
    amount = numbers(view.objective)[0]
    length = round(amount / 30 if "mins" in view.objective else amount * 2)
    first = {"8AM": 16, "12PM": 24, "4PM": 32}[view.asked(r"between (\w+) and")]
    events = [event for event in view.elements("div") if "event" in event.classes]
    slots = [view.element("div", id=f"hh-{index}") for index in range(first, first + 8)]
    free = [all(slot.box.bottom <= e.box.top + 2 or slot.box.top >= e.box.bottom - 2 for e in events) for slot in slots]
    start = next((i for i in range(9 - length) if all(free[i : i + length])), None)
    if start is None:
        raise NotFound("half hours")
    span = slots[start : start + length]
    yield f"drag [{_id(view, span[0].id)}] [{_id(view, span[-1].id)}]"
    if not view.shown("button", "Create"):
        yield view.click("StaticText", "New event", -1)
    yield view.type(view.quoted()[0])
    yield view.click("button", "Create")


def _id(view: View, backend_id: int) -> int:
    return next(node.id for node in view.page.nodes if node.backend_id == backend_id)
