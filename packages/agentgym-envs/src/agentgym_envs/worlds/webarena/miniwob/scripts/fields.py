"""Scripts of pages with fields: text, dates, times, sliders, colors, and texts that are read, copied or selected."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgym_envs.worlds.webarena.miniwob.view import Element, NotFound, View, numbers, ordinal, point

_LABELS = ("StaticText", "rowheader", "LabelText")
_FEW_STEPS = 3
"""The largest number of arrow keys for which a slider isn't dragged."""
_COLORS = {
    "aqua": "00ffff", "black": "000000", "blue": "0000ff", "gold": "ffd700", "gray": "808080", "green": "008000",
    "lime": "00ff00", "magenta": "ff00ff", "maroon": "800000", "navy": "000080", "olive": "808000", "orange": "ffa500",
    "pink": "ffc0cb", "purple": "800080", "red": "ff0000", "silver": "c0c0c0", "teal": "008080", "white": "ffffff",
    "yellow": "ffff00",
}  # fmt: skip


def enter_text(view: View) -> Iterator[str]:
    """`enter-text` and `enter-text-dynamic`."""
    yield view.type(view.quoted()[0])
    yield view.submit()


def enter_text_2(view: View) -> Iterator[str]:
    """`enter-text-2`."""
    text = view.quoted()[0]
    yield view.type(text.upper() if "upper case" in view.objective else text.lower())
    yield view.submit()


def enter_password(view: View) -> Iterator[str]:
    """`enter-password`."""
    for index in (0, 1):
        yield view.type(view.quoted()[0], index)
    yield view.submit()


def login_user(view: View) -> Iterator[str]:
    """`login-user`."""
    for index, text in enumerate(view.quoted()[:2]):
        yield view.type(text, index)
    yield view.submit("Login")


def login_user_popup(view: View) -> Iterator[str]:
    """`login-user-popup`: a message asks to cancel the login, and covers the form until it is closed."""
    for index, text in enumerate(view.quoted()[:2]):
        yield view.type(text, index)
        if popup := view.elements(id="popup-cancel"):
            yield view.click_element(popup[0])
            yield view.type(text, index)
    names = [button.name for button in view.shown("button")]
    yield view.submit("Login" if "Login" in names else names[-1])


def enter_date(view: View) -> Iterator[str]:
    """`enter-date`."""
    yield view.type(view.asked(r"(\d+/\d+/\d+)"), role="Date")
    yield view.submit()


def enter_time(view: View) -> Iterator[str]:
    """`enter-time`."""
    hour, minute, half = re.findall(r"(\d+):(\d+) (AM|PM)", view.objective)[0]
    yield view.type(f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}", role="InputTime")
    yield view.submit()


def choose_list(view: View) -> Iterator[str]:
    """`choose-list`."""
    yield f"select_option [{view.one('combobox').id}] [{view.asked('Select (.*) from the list')}]"
    yield view.submit()


def click_scroll_list(view: View) -> Iterator[str]:
    """`click-scroll-list`."""
    for name in view.asked("Select (.*) from the scroll list").split(", "):
        yield f"select_option [{view.one('listbox').id}] [{name}]"
    yield view.submit()


def use_autocomplete(view: View) -> Iterator[str]:
    """`use-autocomplete` and `use-autocomplete-nodelay`."""
    start, *end = view.quoted()
    yield view.type(start)
    below = view.page.nodes[view.one("textbox").id :]
    fitting = [n for n in below if n.visible and n.name.startswith(start) and n.name.endswith("".join(end))]
    if not fitting:
        raise NotFound(start)
    yield view.act_on(fitting[0])
    yield view.submit()


def simple_arithmetic(view: View) -> Iterator[str]:
    """`simple-arithmetic`."""
    left, operation, right = re.findall(r"(-?\d+) ([-+x*×]) (-?\d+)", " ".join(view.texts()))[0]
    yield view.type(str(_calculated(int(left), operation, int(right))))
    yield view.submit()


def simple_algebra(view: View) -> Iterator[str]:
    """`simple-algebra`."""
    text = " ".join(view.texts())
    left, operation, right, result = re.findall(r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)", text)[0]
    if left == "x":
        value = int(result) - int(right) if operation == "+" else int(result) + int(right)
    else:
        value = int(result) - int(left) if operation == "+" else int(left) - int(result)
    yield view.type(str(value))
    yield view.submit()


def _calculated(left: int, operation: str, right: int) -> int:
    return {"+": left + right, "-": left - right}.get(operation, left * right)


def visual_addition(view: View) -> Iterator[str]:
    """`visual-addition`."""
    yield view.type(str(len(view.elements("span", class_="addition-block"))))
    yield view.submit()


def find_word(view: View) -> Iterator[str]:
    """`find-word`."""
    words = re.findall(r"[\w']+", " ".join(view.texts()))
    yield view.type(words[ordinal(view.objective)])
    yield view.submit()


def read_table(view: View) -> Iterator[str]:
    """`read-table`."""
    yield view.type(_table(view)[view.asked("value of (.*) into")])
    yield view.submit()


def read_table_2(view: View) -> Iterator[str]:
    """`read-table-2`."""
    labels = [text.removesuffix(":").strip() for text in view.texts() if text.endswith(":")]
    for index, label in enumerate(labels):
        yield view.type(_table(view)[label], index)
    yield view.submit()


def _table(view: View) -> dict[str, str]:
    cells = [cell.name for cell in view.shown("cell")]
    return dict(zip(cells[::2], cells[1::2], strict=True))


def scroll_text(view: View) -> Iterator[str]:
    """`scroll-text`: its whole text is the field's value."""
    words = re.findall(r"[\w']+", str(view.one("textbox").property("value")))
    yield view.type(words[-1], 1)
    yield view.submit()


def scroll_text_2(view: View) -> Iterator[str]:
    """`scroll-text-2`."""
    field = view.one("textbox").id
    yield f"click [{field}]"
    yield f"press [Ctrl+{'End' if 'bottom' in view.objective else 'Home'}]"
    yield view.submit()


def sign_agreement(view: View) -> Iterator[str]:
    """`sign-agreement`: its fields are enabled once the text has been scrolled to its end."""
    name = view.quoted()
    field = view.one("textbox").id
    while view.page.find("button", "Agree")[0].property("disabled"):
        yield f"scroll [down] [{field}]"
    if len(name) == 2:
        yield view.type(name[0], -1)
    yield view.click("button", "Agree" if name[-1:] == ["Agree"] else "Cancel")


def copy_paste(view: View) -> Iterator[str]:
    """`copy-paste` and `copy-paste-2`."""
    fields = view.shown("textbox")
    targets = [field for field in fields if view.around(field).tag == "input"]
    sources = [field for field in fields if view.around(field).tag == "textarea"]
    found = re.search(r"(\d)\w\w text area", view.objective)
    source = sources[int(found[1]) - 1 if found else 0]
    yield f"select_text [{source.id}]"
    yield "press [Ctrl+c]"
    yield f"click [{targets[0].id}]"
    yield "press [Ctrl+v]"
    yield view.submit()


def text_transform(view: View) -> Iterator[str]:
    """`text-transform`: the text is written letter by letter."""
    yield view.type("".join(view.texts()))
    yield view.submit()


def highlight_text(view: View) -> Iterator[str]:
    """`highlight-text` and `highlight-text-2`."""
    found = re.search(r"(\d)\w\w paragraph", view.objective)
    paragraphs = [node for node in view.shown("StaticText") if view.in_area(node)]
    yield f"select_text [{paragraphs[int(found[1]) - 1 if found else 0].id}]"
    yield view.submit()


def text_editor(view: View) -> Iterator[str]:
    """`text-editor`."""
    editor = view.element("div", class_="ql-editor")
    text = next(node for node in view.inside(editor, "StaticText"))
    found = re.search(r"give the text (\S+) the", view.objective)
    yield f"select_text [{text.id}] [{found[1]}]" if found else f"select_text [{text.id}]"
    style = re.search(r"the style (\w+)", view.objective)
    if style:
        button = {"bold": "ql-bold", "italics": "ql-italic", "underlined": "ql-underline"}[style[1]]
        yield view.click_element(view.element("button", class_=button))
    else:
        yield view.click_element(view.element("span", class_="ql-picker-label"))
        wanted = view.asked(r"the color (\w+)")
        swatches = [s for s in view.elements("span", class_="ql-picker-item") if s.attribute("data-value")]
        yield view.click_element(next(s for s in swatches if s.attribute("data-value") == _EDITOR_COLORS[wanted]))
    yield view.submit()


_EDITOR_COLORS = {
    "red": "#e60000", "orange": "#ff9900", "yellow": "#ffff00", "green": "#008a00", "blue": "#0066cc",
    "purple": "#9933ff",
}  # fmt: skip


def terminal(view: View) -> Iterator[str]:
    """`terminal`: list the files, and delete one with the extension, or without any."""
    yield f"type [{view.page.find('textbox')[0].id}] [ls] [1]"
    extension = re.search(r"extension (\.\S+)", view.objective)
    listed = [word for text in view.texts() for word in text.split()]
    if extension:
        name = next(word for word in listed if word.endswith(extension[1]) and word != extension[1])
    else:
        name = next(name for name in _output(view) if "." not in name)
    yield f"type [{view.page.find('textbox')[0].id}] [rm {name}] [1]"


def _output(view: View) -> list[str]:
    return view.text_of(view.element("div", -1, class_="terminal-output")).split()


# Values that are set with the mouse.


def use_spinner(view: View) -> Iterator[str]:
    """`use-spinner`."""
    wanted = numbers(view.objective)[0]
    yield view.click("spinbutton")
    while missing := wanted - float(view.one("spinbutton").property("value") or 0):
        yield f"press [{'ArrowUp' if missing > 0 else 'ArrowDown'}]"
    yield view.submit()


def use_slider(view: View) -> Iterator[str]:
    """`use-slider`."""
    yield from slide(view, 0, numbers(view.objective)[0])
    yield view.submit()


def use_slider_2(view: View) -> Iterator[str]:
    """`use-slider-2`."""
    for index, wanted in enumerate(numbers(view.objective)[:3]):
        yield from slide(view, index, wanted)
    yield view.submit()


def slide(view: View, index: int, wanted: float) -> Iterator[str]:
    """Read a slider's range with Home and End, drag its handle near a value, and press arrow keys for the rest."""
    if _slider_value(view, index) == wanted:
        return
    limits: list[float] = []
    yield view.click_element(_handle(view, index))
    for key in ("Home", "End"):
        yield f"press [{key}]"
        limits.append(_slider_value(view, index))
    low, high = limits
    if high - wanted > _FEW_STEPS:
        track, (x, y) = view.element("div", index, class_="ui-slider"), _handle(view, index).centre
        left, right = track.box.left, track.box.right
        yield f"drag [{point(x, y)}] [{point(left + (wanted - low) / (high - low) * (right - left) + 0.5, y)}]"
    while missing := wanted - _slider_value(view, index):
        yield f"press [{'ArrowRight' if missing > 0 else 'ArrowLeft'}]"


def _handle(view: View, index: int) -> Element:
    return view.element("span", index, class_="ui-slider-handle")


def _slider_value(view: View, index: int) -> float:
    return float([text for text in view.texts() if re.fullmatch(r"-?\d+", text)][index])


def use_colorwheel(view: View) -> Iterator[str]:
    """`use-colorwheel`: the name of a color."""
    yield from _type_color(view, _COLORS[view.asked(r"Select (\w+) with")])


def use_colorwheel_2(view: View) -> Iterator[str]:
    """`use-colorwheel-2`: a color that is shown."""
    shown = view.element("div", class_="cc").style("background-color")
    channels = [f"{int(value):02x}" for value in numbers(shown)] if shown.startswith("rgb") else [shown.strip("#")]
    yield from _type_color(view, "".join(channels))


def _type_color(view: View, color: str) -> Iterator[str]:
    yield view.type(color)
    box = view.element("div", id="wrap").box
    yield f"click [{point(box.right + 60, box.bottom + 40)}]"  # closes the picker, which covers the button
    yield view.submit()


def form_sequence(view: View) -> Iterator[str]:
    """`form-sequence`."""
    yield from slide(view, 0, numbers(view.objective)[0])
    yield view.click("checkbox", None, ordinal(view.asked(r"the (\d\w\w) checkbox")))
    yield view.submit()


def form_sequence_2(view: View) -> Iterator[str]:
    """`form-sequence-2`."""
    yield view.click("radio", None, ordinal(view.asked(r"the (\d\w\w) radio")))
    yield view.type(view.quoted()[0], ordinal(view.asked(r"the (\d\w\w) textbox")))
    yield view.submit()


def form_sequence_3(view: View) -> Iterator[str]:
    """`form-sequence-3`."""
    yield view.click_element(view.element("div", class_="selectric"))
    option = view.asked("Choose (.*) from the dropdown")
    yield view.act_on(next(node for node in view.page.find("StaticText", option) if view.in_area(node)))
    yield view.submit(view.quoted()[0])


def multi_layouts(view: View) -> Iterator[str]:
    """`multi-layouts` and `multi-orderings`: each field has its label before or after it, in changing words."""
    genre, director, year = re.findall(r"for (.+) movies directed by (.+) from year (\d+)", view.objective)[0]
    words = {"genre": genre, "director": director, "year": year, "date": year}
    labels = [n for n in view.shown() if n.role in _LABELS and any(word in n.name.lower() for word in words)]
    for field, label in zip(view.shown("textbox"), filter(view.in_area, labels), strict=True):
        yield f"type [{field.id}] [{next(value for word, value in words.items() if word in label.name.lower())}] [0]"
    buttons = view.shown("button") or [node for node in view.shown("StaticText") if view.in_area(node)]
    yield view.act_on(buttons[-1])
