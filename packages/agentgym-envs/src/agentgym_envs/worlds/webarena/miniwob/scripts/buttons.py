"""Scripts of pages on which buttons, links, boxes and options are clicked."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym_envs.worlds.webarena.miniwob.scripts.synonyms import SYNONYMS
from agentgym_envs.worlds.webarena.miniwob.view import NotFound, View, numbers, ordinal

NUMERALS = (
    "0110100110011001100110010110",
    "0010011000100010001000100010",
    "0110100110010010010010001111",
    "0110100100010110000110010110",
    "1000101010101111001000100010",
    "1111100010001110000110010110",
    "0110100110001110100110010110",
    "1111100100010010001001000100",
    "0110100110010110100110010110",
    "0110100110010111000110010110",
)
"""The digits of `number-checkboxes`, row by row in four columns."""


def click_button(view: View) -> Iterator[str]:
    """`click-button` and `unicode-test`."""
    yield view.click("button", view.quoted()[0])


def click_only_button(view: View) -> Iterator[str]:
    """`click-test`."""
    yield view.click("button")


def click_named_button(view: View) -> Iterator[str]:
    """`click-test-2` and `click-test-transfer`."""
    yield view.click("button", view.asked(r"button (\w+)"))


def click_button_sequence(view: View) -> Iterator[str]:
    """`click-button-sequence`."""
    yield view.click("button", "ONE")
    yield view.click("button", "TWO")


def button_delay(view: View) -> Iterator[str]:
    """`button-delay`."""
    yield view.click("button", "ONE")
    yield f"wait [{view.asked('wait (.*) seconds')}]"
    yield view.click("button", "TWO")


def click_dialog(view: View) -> Iterator[str]:
    """`click-dialog`."""
    yield view.click("button", "Close")


def click_dialog_2(view: View) -> Iterator[str]:
    """`click-dialog-2`."""
    label = view.quoted()[0]
    yield view.click("button", "Close" if label == "x" else label)


def click_link(view: View) -> Iterator[str]:
    """`click-link`."""
    yield view.click("StaticText", view.quoted()[0], -1)


def click_widget(view: View) -> Iterator[str]:
    """`click-widget`: a text area differs from an input by its element only."""
    kind = view.quoted()[0]
    match kind:
        case "text" | "textarea":
            tag = "input" if kind == "text" else "textarea"
            yield view.act_on(next(n for n in view.shown("textbox") if view.around(n).tag == tag))
        case _:
            yield view.click(kind)


def click_checkboxes(view: View) -> Iterator[str]:
    """`click-checkboxes`, also its large and its transfer variant."""
    for name in view.asked("Select (.*) and click").split(", "):
        if name != "nothing":
            yield view.act_on(view.page.find("checkbox", name)[0])
    yield view.act_on(view.page.find("button", "Submit")[0])


def click_checkboxes_soft(view: View) -> Iterator[str]:
    """`click-checkboxes-soft`: words that mean the same, by the page's own groups."""
    asked = view.asked("similar to (.*) and click").split(", ")
    for box in view.page.find("checkbox"):
        if any({box.name, word} <= group for word in asked for group in SYNONYMS):
            yield view.act_on(box)
    yield view.act_on(view.page.find("button", "Submit")[0])


def click_option(view: View) -> Iterator[str]:
    """`click-option`."""
    yield view.click("radio", view.asked("Select (.*) and click"))
    yield view.submit()


def number_checkboxes(view: View) -> Iterator[str]:
    """`number-checkboxes`."""
    for index, wanted in enumerate(NUMERALS[int(view.quoted()[0])]):
        box = view.one("checkbox", None, index)
        if bool(box.property("checked")) != (wanted == "1"):
            yield view.act_on(box)
    yield view.submit()


def odd_or_even(view: View) -> Iterator[str]:
    """`odd-or-even`."""
    values = [text for text in view.texts() if text.lstrip("-").isdigit()]
    for index, text in enumerate(values):
        yield view.click("button", "Odd" if int(text) % 2 else "Even", index)
    yield view.submit()


def generate_number(view: View) -> Iterator[str]:
    """`generate-number`."""
    while not (shown := [text for text in view.texts() if text.isdigit()]) or not _fits(int(shown[0]), view.objective):
        yield view.click("button", "Generate")
    yield view.submit()


def _fits(number: int, objective: str) -> bool:
    if "odd" in objective or "even" in objective:
        return bool(number % 2) == ("odd" in objective)
    limit = numbers(objective)[0]
    return number < limit if "less" in objective else number > limit


def find_greatest(view: View) -> Iterator[str]:
    """`find-greatest`: a card shows its number when it is picked."""
    values: list[float] = []
    for index in range(3):
        yield view.click_element(view.element("div", index, class_="card"))
        shown = [text for text in view.texts() if text.isdigit()]
        values.append(float(shown[0]) if shown else -1.0)
    best = values.index(max(values))
    if best != 2:
        yield view.click_element(view.element("div", best, class_="card"))
    yield view.submit()


def ascending_numbers(view: View) -> Iterator[str]:
    """`ascending-numbers`: after the first click, squares cover the numbers."""
    if view.elements("text"):
        yield view.click("StaticText", "1", -1)
    while True:
        covers = view.elements("rect", class_="rect")
        if not covers:
            raise NotFound("rect")
        yield view.click_element(min(covers, key=lambda cover: cover.number("data-index")))


def tic_tac_toe(view: View) -> Iterator[str]:
    """`tic-tac-toe`: win where it is possible, else block, else take the best square."""
    while True:
        squares = [view.element("span", id=f"ttt-{index}") for index in range(9)]
        yield view.click_element(squares[_best_square(["".join(square.classes) for square in squares])])


_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def _best_square(marks: list[str]) -> int:
    def score(index: int) -> tuple[int, int]:
        lines = [[marks[other] for other in line if other != index] for line in _LINES if index in line]
        wins = sum(line == ["mark-x"] * 2 for line in lines)
        blocks = sum(line == ["mark-o"] * 2 for line in lines)
        forks = sum(sorted(line) == ["", "mark-x"] for line in lines)
        return 100 * wins + 10 * blocks + forks, len(lines)

    return max((index for index, mark in enumerate(marks) if not mark), key=score)


def order_food(view: View) -> Iterator[str]:
    """`order-food`: dishes by name, or a number of dishes of a kind."""
    if "items that are" in view.objective:
        kind = view.asked("that are (.*)").strip(" .")
        dishes = [d for d in view.elements("div", class_="food-item") if _is_of_kind(view, d.id, kind)]
        chosen = [dishes[0].attribute("data-item")] * int(numbers(view.objective)[0])
    else:
        chosen = _dishes(view)
    for name in chosen:
        dish = next(
            d for d in view.elements("div", class_="food-item") if d.attribute("data-item").strip() == name.strip()
        )
        plus = [node for node in view.inside(dish, "StaticText") if node.name == "+"]
        yield view.act_on(plus[0])
    yield view.act_on(view.page.find("button", "Order!")[0])


def _is_of_kind(view: View, dish: int, kind: str) -> bool:
    layout = view.page.layout
    return any(image.attribute("alt") == kind and dish in layout.ancestors(image.id) for image in view.elements("img"))


def _dishes(view: View) -> list[str]:
    """Return the dishes that the objective names, each as often as it is wanted."""
    names = [dish.attribute("data-item") for dish in view.elements("div", class_="food-item")]
    return [name for name in names if name.strip().lower() in view.objective.lower()]


def guess_number(view: View) -> Iterator[str]:
    """`guess-number`: halve the interval."""
    low, high = 0, 9
    while low <= high:
        guess = (low + high) // 2
        yield view.type(str(guess), role="spinbutton")
        yield view.submit()
        text = " ".join(view.texts())
        low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)


def phone_book(view: View) -> Iterator[str]:
    """`phone-book`."""
    name, kind = view.asked(r"Find (\S+) in"), view.asked(r"on their (\w+)")
    while name not in [heading.name for heading in view.shown("heading")]:
        yield view.click("link", ">")
    label = view.one("StaticText", f"{kind.capitalize()}:")
    yield view.act_on(next(link for link in view.shown("link") if link.id > label.id))


def stock_market(view: View) -> Iterator[str]:
    """`stock-market`: the price changes ten times a second."""
    limit = numbers(view.objective)[-1]
    while not (shown := [text for text in view.texts() if text.startswith("$")]) or numbers(shown[0])[0] > limit:
        yield "wait [0]"
    yield view.click("button", "Buy")


def focus_text(view: View) -> Iterator[str]:
    """`focus-text`."""
    yield view.click("textbox")


def focus_text_2(view: View) -> Iterator[str]:
    """`focus-text-2`."""
    yield view.click("textbox", None, ordinal(view.asked(r"(\d\w\w)")))
