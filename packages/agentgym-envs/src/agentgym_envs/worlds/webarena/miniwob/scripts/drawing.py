"""Scripts of pages with shapes, colors, points and things to drag: most of them read what only a picture shows."""

from __future__ import annotations

import math
from collections.abc import Iterator

from agentgym_envs.worlds.webarena.miniwob.view import Element, View, numbers, ordinal, point

_TAGS = {"rectangle": "rect", "circle": "circle", "triangle": "polygon"}
_GRID = {
    "top left": 0, "top center": 1, "top right": 2, "center left": 3, "center": 4, "center right": 5,
    "bottom left": 6, "bottom center": 7, "bottom right": 8,
}  # fmt: skip


def click_color(view: View) -> Iterator[str]:
    """`click-color`: the color is named, or shown."""
    shown = view.elements("div", class_="color")
    boxes = [box for box in shown if box.attribute("id") != "query-color"]
    samples = [box for box in shown if box.attribute("id") == "query-color"]
    wanted = samples[0].style("background-color") if samples else view.asked(r"on the (\w+) colored")
    yield view.click_element(next(box for box in boxes if box.style("background-color") == wanted))


def click_shades(view: View) -> Iterator[str]:
    """`click-shades`."""
    wanted = view.asked("shades of (\\w+) and")
    for square in view.elements("span"):
        if square.attribute("data-color") == wanted:
            yield view.click_element(square)
    yield view.submit()


def click_shape(view: View) -> Iterator[str]:
    """`click-shape`."""
    wanted = view.asked("Click on an? (.*)")
    yield _click_shape(view, _fitting(view, wanted)[0])


def _click_shape(view: View, shape: Element) -> str:
    return f"click [{point(*shape.centre)}]"


def count_shape(view: View) -> Iterator[str]:
    """`count-shape`."""
    wanted = view.asked("How many (.*)s are there")
    yield view.click("button", str(len(_fitting(view, wanted))))


def _shapes(view: View) -> list[Element]:
    svg = view.element("svg", id="area_svg")
    return [e for e in view.inside_elements(svg) if e.tag in ("text", "rect", "circle", "polygon")]


def _fitting(view: View, description: str) -> list[Element]:
    """Return the shapes of a grid that fit a description such as `small red digit`."""
    words = description.split()
    size = words.pop(0) if words[0] in ("small", "large") else ""
    color = words.pop(0) if len(words) > 1 else ""
    kind = words[0]
    return [
        shape
        for shape in _shapes(view)
        if size in ("", _size(shape)) and color in ("", shape.attribute("fill")) and _is_a(view, shape, kind)
    ]


def _size(shape: Element) -> str:
    if shape.tag == "text":
        extent = shape.number("font-size")
    elif shape.tag == "circle":
        extent = 2 * shape.number("r")
    elif shape.tag == "rect":
        extent = shape.number("width")
    else:
        left, _, _, _, right, *_ = numbers(shape.attribute("points").replace(",", " "))
        extent = right - left
    return "large" if extent > 15 else "small"


def _is_a(view: View, shape: Element, kind: str) -> bool:
    if kind == "item":
        return True
    if shape.tag == "text":
        text = view.text_of(shape)
        return kind == text or kind == ("digit" if text.isdigit() else "letter")
    return kind == "shape" or shape.tag == _TAGS.get(kind)


def identify_shape(view: View) -> Iterator[str]:
    """`identify-shape`."""
    shape = _shapes(view)[0]
    names = {tag: name for name, tag in _TAGS.items()}
    name = names[shape.tag] if shape.tag != "text" else "number" if view.text_of(shape).isdigit() else "letter"
    yield view.click("button", name.capitalize())


def grid_coordinate(view: View) -> Iterator[str]:
    """`grid-coordinate`."""
    yield view.click_element(view.element("circle", id=view.asked(r"(\(.*\))")))


# Points.


def circle_center(view: View) -> Iterator[str]:
    """`circle-center`."""
    yield f"click [{point(*view.element('circle').centre)}]"
    yield view.submit()


def find_midpoint(view: View) -> Iterator[str]:
    """`find-midpoint`."""
    (x, y), (u, v) = (circle.centre for circle in view.elements("circle", class_="black-circle"))
    yield f"click [{point((x + u) / 2, (y + v) / 2)}]"
    yield view.submit()


def bisect_angle(view: View) -> Iterator[str]:
    """`bisect-angle`."""
    vertex = view.element("circle", class_="init-blue").centre
    ends = [circle.centre for circle in view.elements("circle", class_="init-black")]
    units = [_unit(vertex, end) for end in ends]
    yield f"click [{_on_canvas(view, vertex, units[0][0] + units[1][0], units[0][1] + units[1][1])}]"
    yield view.submit()


def right_angle(view: View) -> Iterator[str]:
    """`right-angle`."""
    vertex = view.element("circle", id="init-blue").centre
    x, y = _unit(vertex, view.element("circle", id="init-black").centre)
    yield f"click [{_on_canvas(view, vertex, -y, x)}]"
    yield view.submit()


def _unit(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    length = math.dist(start, end)
    return (end[0] - start[0]) / length, (end[1] - start[1]) / length


def _on_canvas(view: View, start: tuple[float, float], x: float, y: float) -> str:
    """Return the farthest point within the drawing from `start` in a direction or its opposite."""
    box = view.element("svg").box
    inside = [
        (abs(step), (start[0] + step * x, start[1] + step * y))
        for step in range(-140, 141, 5)
        if box.left + 3 < start[0] + step * x < box.right - 3 and box.top + 3 < start[1] + step * y < box.bottom - 3
    ]
    return point(*max(inside)[1])


def draw_line(view: View) -> Iterator[str]:
    """`draw-line`."""
    x, y = view.element("circle", id="circ").centre
    across, down = (20, 0) if "horizontal" in view.objective else (0, 20)
    yield f"drag [{point(x - across, y - down)}] [{point(x + across, y + down)}]"
    yield view.submit()


def draw_circle(view: View) -> Iterator[str]:
    """`draw-circle`: an arc, since a drag is a straight line; the page scores how far its points are from the dot."""
    x, y = view.element("circle", id="circ").centre
    box = view.element("svg").box
    side = 1 if x < (box.left + box.right) / 2 else -1
    height = 1 if y < (box.top + box.bottom) / 2 else -1
    u, v = x + 32 * side, y + 32 * height
    yield f"drag [{point(u - 12 * side, v + 12 * height)}] [{point(u + 12 * side, v - 12 * height)}]"
    yield view.submit()


def hot_cold(view: View) -> Iterator[str]:
    """`hot-cold`: search the area with the mouse until it is hot."""
    area = view.element("div", id="touch-area").box
    best, step = area.centre, 24.0
    tried: dict[tuple[float, float], int] = {}
    ranks = {"HOT": 3, "WARM": 2, "COLD": 1, "ICE COLD": 0}

    yield f"hover [{point(*best)}]"
    tried[best] = _heat(view, ranks)
    while tried[best] < 1 or (tried[best] < 3 and len(tried) < 18):
        candidates = [
            (best[0] + step * x, best[1] + step * y)
            for x, y in ((1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
        ]
        fresh = [
            spot
            for spot in candidates
            if spot not in tried and area.left < spot[0] < area.right and area.top < spot[1] < area.bottom
        ]
        if not fresh:
            step = step / 2 if step > 6 else 40.0
            continue
        yield f"hover [{point(*fresh[0])}]"
        tried[fresh[0]] = _heat(view, ranks)
        if tried[fresh[0]] > tried[best]:
            best = fresh[0]
    yield f"click [{point(*best)}]"


def _heat(view: View, ranks: dict[str, int]) -> int:
    return max((ranks.get(text.strip(), 0) for text in view.texts()), default=0)


# Dragging.


def drag_box(view: View) -> Iterator[str]:
    """`drag-box`."""
    small = view.one("StaticText", "s").id
    large = view.element("div", id="draggableLarge").box
    yield f"drag [{small}] [{point(large.left + 20, large.top + 20)}]"
    yield view.submit()


def drag_direction(view: View) -> Iterator[str]:
    """`drag-circle` and `drag-single-shape`."""
    shape = next(e for e in view.inside_elements(view.element("svg")) if e.tag in ("rect", "circle", "polygon"))
    x, y = shape.centre
    across, down = {"left": (-30, 0), "right": (30, 0), "up": (0, -30), "down": (0, 30)}[
        view.asked(r"(left|right|up|down) then")
    ]
    yield f"drag [{point(x, y)}] [{point(x + across, y + down)}]"
    yield view.submit()


def drag_items(view: View) -> Iterator[str]:
    """`drag-items`: a list of five."""
    names = view.texts()
    index = names.index(view.asked(r"Drag (\S+) "))
    target = _list_target(view.objective, index, len(names))
    yield from _drag_past(view, names, index, target)


def _list_target(objective: str, index: int, count: int) -> int:
    if "top" in objective or "bottom" in objective:
        return 0 if "top" in objective else count - 1
    if "by one" in objective:
        return index + (1 if "down" in objective else -1)
    return ordinal(objective)


def _drag_past(view: View, names: list[str], index: int, target: int) -> Iterator[str]:
    """Drag an entry of a list to the place of another."""
    source, other = (view.around(view.one("StaticText", names[i], -1), "li") for i in (index, target))
    x, y = source.centre
    beyond = 4 if target > index else -4
    yield f"drag [{point(x, y)}] [{point(x, other.centre[1] + beyond)}]"


def drag_sort_numbers(view: View) -> Iterator[str]:
    """`drag-sort-numbers`: bring each number to its place, from the top on."""
    for target in range(10):
        entries = view.elements("li", class_="ui-sortable-handle") or view.elements("li")
        values = [float(view.text_of(entry)) for entry in entries]
        if target == len(values) - 1:
            break
        index = values.index(sorted(values)[target])
        if index != target:
            source, other = entries[index], entries[target]
            yield f"drag [{point(*source.centre)}] [{point(source.centre[0], other.centre[1] - 4)}]"
    yield view.submit()


def drag_items_grid(view: View) -> Iterator[str]:
    """`drag-items-grid`: three by three."""
    entries = view.elements("li")
    names = [view.text_of(entry) for entry in entries]
    index = names.index(view.asked(r"Drag (\S+) "))
    steps = {"up by one": -3, "down by one": 3, "left by one": -1, "right by one": 1}
    relative = next((step for words, step in steps.items() if words in view.objective), None)
    target = _GRID[view.asked(r"to the (.*)\.")] if relative is None else index + relative
    (x, y), beyond = entries[target].centre, 4 if target > index else -4
    yield f"drag [{point(*entries[index].centre)}] [{point(x + beyond, y + beyond)}]"


def drag_shapes(view: View) -> Iterator[str]:
    """`drag-shapes`: all of a kind into the box."""
    tag = _TAGS[view.asked("Drag all (.*)s into")]
    box = view.element("rect", id="shape-container").box
    for index in range(len(_movable(view, tag))):
        shape = _movable(view, tag)[index]
        if not _within(shape, box):
            yield _drag_into(shape, box)
    yield view.submit()


def drag_shapes_2(view: View) -> Iterator[str]:
    """`drag-shapes-2`: all of a kind or color into the left box, all others into the right one."""
    wanted = view.asked("Drag all (.*?)s into the left")
    boxes = sorted((e.box for e in view.elements("rect", id="shape-container")), key=lambda box: box.left)
    for index in range(len(_movable(view))):
        shape = _movable(view)[index]
        left = shape.tag == _TAGS[wanted] if wanted in _TAGS else shape.attribute("fill") == wanted.split()[0]
        box = boxes[0 if left else 1]
        if not _within(shape, box):
            yield _drag_into(shape, box)
    yield view.submit()


def _movable(view: View, tag: str = "") -> list[Element]:
    return [e for e in _shapes(view) if e.attribute("id") != "shape-container" and tag in ("", e.tag)]


def _within(shape: Element, box: tuple[float, float, float, float]) -> bool:
    x, y = shape.centre
    return box[0] + 8 < x < box[2] - 8 and box[1] + 8 < y < box[3] - 8


def _drag_into(shape: Element, box: tuple[float, float, float, float]) -> str:
    return f"drag [{point(*shape.centre)}] [{point((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)}]"


def resize_textarea(view: View) -> Iterator[str]:
    """`resize-textarea`: drag its lower right corner."""
    area = view.around(view.one("textbox")).box
    x, y = area.right - 4, area.bottom - 4
    by = 15 if "larger" in view.objective else -15
    target = (x + by, y) if "width" in view.objective else (x, y + by)
    yield f"drag [{point(x, y)}] [{point(*target)}]"
    yield view.submit()


def chase_circle(view: View) -> Iterator[str]:
    """`chase-circle`: follow the circle."""
    while True:
        yield f"hover [{point(*view.element('circle', id='circ').centre)}]"


def click_moving(view: View) -> Iterator[str]:
    """`moving-items`: click where a circle is."""
    while True:
        box = view.element("svg").box
        inside = [c for c in view.elements("circle") if box.left + 5 < c.centre[0] < box.right - 5]
        yield f"click [{point(*inside[0].centre)}]" if inside else "wait [0.3]"
