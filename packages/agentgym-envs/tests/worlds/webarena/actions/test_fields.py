"""Tests of the actions `type` and `select_option`, and of their error messages."""

from __future__ import annotations

import pytest
from page_agent import LOG, PageAgent

# The action `type`.

FIELDS = {
    "text": "<input aria-label=It value=old>",
    "search": "<input type=search aria-label=It value=old>",
    "email": "<input type=email aria-label=It value=old@x.org>",
    "textarea": "<textarea aria-label=It>old\nand long</textarea>",
}


@pytest.mark.parametrize("field", FIELDS)
def test_type_replaces_the_previous_value(agent: PageAgent, field: str) -> None:
    agent.open(FIELDS[field])
    role = "searchbox" if field == "search" else "textbox"
    assert agent.do("type [#] [new [words]] [0]", role) is None
    assert agent.find_one(role).property("value") == "new [words]"
    assert agent.do("type [#] [] [0]", role) is None
    assert agent.find_one(role).property("value") is None


def test_type_fires_keyboard_and_input_events(agent: PageAgent) -> None:
    agent.open(LOG + "<input aria-label=It onkeydown=say(event.key) oninput=say(this.value) onchange=say('change')>")
    assert agent.do("type [#] [ab]", "textbox") is None
    assert agent.log == ["a", "a", "b", "ab", "Enter", "change"]


def test_type_submits_the_form_unless_enter_is_disabled(agent: PageAgent) -> None:
    agent.server.pages["/find"] = "<title>Found</title>"
    agent.open("<form action=/find><input name=q aria-label=It></form>")
    assert agent.do("type [#] [a b] [0]", "textbox") is None
    assert agent.session.tab.title != "Found"
    assert agent.do("type [#] [a b]", "textbox") is None
    assert agent.session.tab.url == "http://shop.example/find?q=a+b"


def test_type_enters_long_and_multiline_text(agent: PageAgent) -> None:
    agent.open("<textarea aria-label=Area></textarea><input aria-label=Line>")
    long = "word " * 200
    assert agent.do(f"type [#] [one\ntwo\n{long}] [0]", "textbox", "Area") is None
    assert agent.js("document.querySelector('textarea').value") == f"one\ntwo\n{long}"
    assert agent.do("type [#] [one\ntwo] [0]", "textbox", "Line") is None
    assert agent.js("document.querySelector('input').value") == "one two"


def test_type_replaces_contenteditable_text(agent: PageAgent) -> None:
    agent.open("<div contenteditable aria-label=Edit>old <b>bold</b> text</div>")
    assert agent.do("type [#] [new] [0]", None, "Edit") is None
    assert agent.js("document.querySelector('div').innerText").strip() == "new"


@pytest.mark.parametrize(
    ("kind", "role", "text", "value"),
    [
        ("number", "spinbutton", "12", "12"),
        ("date", "Date", "2024-03-17", "2024-03-17"),
        ("date", "Date", "3/17/2024", "2024-03-17"),
        ("time", "InputTime", "14:30", "14:30"),
        ("range", "slider", "70", "70"),
        ("color", "ColorWell", "#ff0000", "#ff0000"),
    ],
)
def test_type_into_number_date_time_range_and_color_fields(
    agent: PageAgent, kind: str, role: str, text: str, value: str
) -> None:
    agent.open(f"{LOG}<input type={kind} aria-label=It oninput=say('input') onchange=say('change')>")
    assert agent.do(f"type [#] [{text}] [0]", role) is None
    agent.js("document.activeElement.blur()")
    assert agent.js("document.querySelector('input').value") == value
    assert {"input", "change"} <= set(agent.log)


def test_type_into_unsuitable_elements_is_refused(agent: PageAgent) -> None:
    agent.open(
        "<a href=/x>Link</a><input readonly aria-label=Fixed value=v><input disabled aria-label=Off><p>Words</p>"
        "<input type=date aria-label=Day value=2024-01-01>"
    )
    assert "takes no text" in str(agent.do("type [#] [x]", "link"))
    assert "is read-only" in str(agent.do("type [#] [x]", "textbox", "Fixed"))
    assert "is disabled" in str(agent.do("type [#] [x]", "textbox", "Off"))
    assert "takes no text" in str(agent.do("type [#] [x]", "StaticText", "Words"))
    assert "a date written like 2024-03-17, not 'soon'" in str(agent.do("type [#] [soon]", "Date"))
    assert agent.find_one("Date").property("value") == "2024-01-01"


def test_type_into_a_field_that_a_click_focuses(agent: PageAgent) -> None:
    agent.open("<div role=combobox tabindex=0 onclick=\"document.querySelector('input').focus()\">Pick</div><input>")
    assert agent.do("type [#] [abc] [0]", "combobox") is None
    assert agent.js("document.querySelector('input').value") == "abc"


# Drop-down lists.

LIST = (
    LOG + "<select aria-label=Size oninput=say('input') onchange=say(this.value)>"
    "<option value=s>Small<option value=m>Medium"
    "<optgroup label=More><option value=l>  Large   one <option disabled>Huge</optgroup></select>"
)


@pytest.mark.parametrize("option", ["Large one", "l", "large ONE"])
def test_select_option_by_label_or_value(agent: PageAgent, option: str) -> None:
    agent.open(LIST)
    assert agent.do(f"select_option [#] [{option}]", "combobox") is None
    assert agent.log == ["input", "l"]
    assert agent.find_one("option", "Large one").property("selected") is True


def test_options_can_be_chosen_by_click_or_type(agent: PageAgent) -> None:
    agent.open(LIST)
    assert agent.find_one("option", "Medium").visible
    assert agent.do("click [#]", "combobox") is None
    assert agent.do("click [#]", "option", "Medium") is None
    assert agent.do("type [#] [Large one] [0]", "combobox") is None
    assert agent.do("select_option [#] [Small]", "option", "Medium") is None
    assert agent.log == ["input", "m", "input", "l", "input", "s"]


def test_missing_and_disabled_options_are_refused(agent: PageAgent) -> None:
    agent.open(LIST + "<button>B</button>")
    message = agent.do("select_option [#] [Tiny]", "combobox")
    assert message == "[2] combobox 'Size' has no option 'Tiny'; it has 'Small', 'Medium', 'Large one', 'Huge'."
    assert "disabled" in str(agent.do("select_option [#] [Huge]", "combobox"))
    assert "disabled" in str(agent.do("click [#]", "option", "Huge"))
    assert "is no drop-down list" in str(agent.do("select_option [#] [x]", "button"))
    assert agent.log == []


def test_multiple_select_toggles_options(agent: PageAgent) -> None:
    agent.open("<select multiple aria-label=Many><option>a<option>b<option>c</select>")
    selected = "[...document.querySelectorAll('option')].filter(o => o.selected).map(o => o.value)"
    agent.do("click [#]", "option", "a")
    agent.do("select_option [#] [c]", "listbox")
    assert agent.js(selected) == ["a", "c"]
    agent.do("click [#]", "option", "a")
    assert agent.js(selected) == ["c"]


def test_page_that_breaks_scripting_is_reported(agent: PageAgent) -> None:
    agent.open(LIST + "<script>HTMLElement.prototype.focus = () => { throw 1 }; Array.prototype.some = null</script>")
    assert "gets in the way" in str(agent.do("select_option [#] [Medium]", "combobox"))
    assert "gets in the way" in str(agent.do("scroll [down]"))
