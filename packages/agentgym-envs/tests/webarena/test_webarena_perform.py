"""Actions on pages: what a click reaches, what a field holds afterwards, and what the agent hears when it can't be."""

from __future__ import annotations

import string
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from agentgym_envs.worlds.webarena import actions
from agentgym_envs.worlds.webarena.browser import Browser
from agentgym_envs.worlds.webarena.keys import KNOWN
from agentgym_envs.worlds.webarena.perform import perform
from agentgym_envs.worlds.webarena.session import Session
from page_agent import PageAgent
from pages_server import PagesServer

LOG = "<script>var log = [], say = what => log.push(what)</script>"


@pytest.fixture
def agent(server: PagesServer, session: Session, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> PageAgent:
    return PageAgent(server, session, run)


def log(agent: PageAgent) -> list[str]:
    return agent.js("log")


# Click and hover.


def test_click_presses_a_button_and_follows_a_link(agent: PageAgent) -> None:
    agent.open(LOG + "<button onclick=say('pressed')>Press</button> <a href=/next>Next</a>")
    agent.server.pages["/next"] = "<title>Next page</title>"
    assert agent.do("click [#]", "button", "Press") is None
    assert log(agent) == ["pressed"]
    assert agent.do("click [#]", "link", "Next") is None
    assert agent.session.tab.title == "Next page"


def test_a_click_on_text_reaches_what_it_stands_in(agent: PageAgent) -> None:
    agent.open(LOG + "<div onclick=say('div')><span>words in a box</span></div>")
    assert agent.do("click [#]", "StaticText", "words in a box") is None
    assert log(agent) == ["div"]


def test_what_is_out_of_sight_is_scrolled_into_view(agent: PageAgent) -> None:
    agent.open(
        LOG
        + "<div style='height:3000px'></div><div style='height:80px;overflow:auto'><p style='height:900px'></p>"
        + "<button onclick=say('deep')>Deep</button></div>"
    )
    assert agent.one("button").place == "below"
    assert agent.do("click [#]", "button") is None
    assert log(agent) == ["deep"]
    assert agent.one("button").visible


def test_a_page_that_moved_since_it_was_read_is_clicked_where_the_element_is_now(agent: PageAgent) -> None:
    agent.open(LOG + "<p id=p></p><button onclick=say('it')>It</button><button onclick=say('other')>Other</button>")
    for move in ("document.getElementById('p').style.height = '200px'", "document.body.style.height = '5000px'"):
        agent.js(move)
        agent.js("scrollTo(0, 60)")
        assert agent.do("click [#]", "button", "It") is None
    assert log(agent) == ["it", "it"]


def test_a_link_that_wraps_is_clicked_on_one_of_its_lines(agent: PageAgent) -> None:
    agent.open(
        LOG
        + "<p style='width:200px;font:20px monospace'>aaaa bbbb cccc <a href='#' onclick=say('link')>dd eeee</a></p>"
    )
    assert agent.do("click [#]", "link") is None
    assert log(agent) == ["link"]


def test_frames_within_frames_are_clicked_where_they_are(agent: PageAgent) -> None:
    agent.server.pages["/inner"] = "<div style='height:400px'></div><button onclick=top.say('inner')>Inner</button>"
    agent.server.pages["/outer"] = "<p>outer</p><iframe src=/inner width=200 height=100></iframe>"
    agent.open(LOG + "<p style='height:50px'></p><iframe src=/outer style='border:9px solid;padding:11px'></iframe>")
    assert not agent.one("button", "Inner").visible
    assert agent.do("click [#]", "button", "Inner") is None
    assert agent.one("button", "Inner").visible
    assert agent.do("click [#]", "button", "Inner") is None
    assert log(agent) == ["inner", "inner"]


def test_what_is_covered_is_not_clicked_and_the_agent_hears_by_what(agent: PageAgent) -> None:
    agent.open(
        LOG + "<button onclick=say('below')>Below</button>"
        "<div role=dialog aria-label=Cookies style='position:fixed;inset:0;background:white'><button>Yes</button></div>"
    )
    said = agent.do("click [#]", "button", "Below")
    assert said == "[2] button 'Below' can't be reached: [3] dialog 'Cookies' is in front of it."
    assert log(agent) == []


@pytest.mark.parametrize(
    "html",
    [
        "<label><input type=checkbox style='opacity:0;position:absolute'><b>Drawn</b></label>",
        "<input type=checkbox id=c style='position:absolute;opacity:0'><label for=c>Drawn</label>",
        "<label><input type=checkbox style='position:absolute;clip-path:inset(50%)'>Drawn</label>",
        "<label>Drawn <input type=checkbox></label>",
    ],
)
def test_a_checkbox_behind_a_drawing_of_it_is_ticked(agent: PageAgent, html: str) -> None:
    agent.open(html)
    assert agent.do("click [#]", "checkbox") is None
    assert agent.one("checkbox").property("checked") is True


def test_hover_opens_what_opens_under_the_mouse(agent: PageAgent) -> None:
    agent.open(
        "<style>ul { display: none } div:hover ul { display: block }</style><div>Menu<ul><li>Item</li></ul></div>"
    )
    assert agent.page.find("StaticText", "Item") == []
    assert agent.do("hover [#]", "StaticText", "Menu") is None
    assert agent.one("StaticText", "Item").visible


def test_what_cannot_be_clicked_is_said(agent: PageAgent) -> None:
    agent.open("<title>T</title><button disabled>Off</button><input type=file aria-label=File><button>Gone</button>")
    count = len(agent.page.nodes)
    assert agent.do("click [99]") == f"There is no element [99]; the ids of this page go from 1 to {count}."
    assert agent.do("click [0]") == f"There is no element [0]; the ids of this page go from 1 to {count}."
    assert "is disabled" in str(agent.do("click [#]", "button", "Off"))
    assert "no files" in str(agent.do("click [#]", "button", "File"))
    agent.js("document.querySelectorAll('button')[1].style.display = 'none'")
    assert "is not displayed now" in str(agent.do("click [4]"))


def test_an_element_that_went_away_is_said(agent: PageAgent) -> None:
    agent.open("<button>Gone</button>")
    agent.js("document.querySelector('button').replaceWith('x')")
    assert "no longer there" in str(agent.do("click [2]"))
    agent.open("<button>Here</button>", "/one")
    page = agent.page
    agent.open("<button>Elsewhere</button>", "/two")
    said = agent.run(perform(agent.session, page, actions.Click(2)))
    assert "no longer there" in said or "not displayed" in said  # as Chromium keeps the page for going back, or not


def test_a_click_that_closes_the_tab_has_done_what_it_does(agent: PageAgent) -> None:
    agent.server.pages["/popup"] = "<button onmousedown=window.close()>Close me</button>"
    agent.open("<a href=/popup target=_blank>Open</a>")
    assert agent.do("click [#]", "link") is None
    assert len(agent.session.tabs) == 2
    assert agent.do("click [#]", "button") is None
    assert [tab.url for tab in agent.session.tabs] == ["http://shop.example/page"]


# Type.

FIELDS = {
    "text": "<input aria-label=It value=old>",
    "search": "<input type=search aria-label=It value=old>",
    "email": "<input type=email aria-label=It value=old@x.org>",
    "textarea": "<textarea aria-label=It>old\nand long</textarea>",
}


@pytest.mark.parametrize("field", FIELDS)
def test_type_replaces_what_stood_there(agent: PageAgent, field: str) -> None:
    agent.open(FIELDS[field])
    role = "searchbox" if field == "search" else "textbox"
    assert agent.do("type [#] [new [words]] [0]", role) is None
    assert agent.one(role).property("value") == "new [words]"
    assert agent.do("type [#] [] [0]", role) is None
    assert agent.one(role).property("value") is None


def test_type_fires_the_events_of_real_keys(agent: PageAgent) -> None:
    agent.open(LOG + "<input aria-label=It onkeydown=say(event.key) oninput=say(this.value) onchange=say('change')>")
    assert agent.do("type [#] [ab]", "textbox") is None
    assert log(agent) == ["a", "a", "b", "ab", "Enter", "change"]


def test_enter_sends_a_form_unless_it_is_not_wanted(agent: PageAgent) -> None:
    agent.server.pages["/find"] = "<title>Found</title>"
    agent.open("<form action=/find><input name=q aria-label=It></form>")
    assert agent.do("type [#] [a b] [0]", "textbox") is None
    assert agent.session.tab.title != "Found"
    assert agent.do("type [#] [a b]", "textbox") is None
    assert agent.session.tab.url == "http://shop.example/find?q=a+b"


def test_long_text_and_lines(agent: PageAgent) -> None:
    agent.open("<textarea aria-label=Area></textarea><input aria-label=Line>")
    long = "word " * 200
    assert agent.do(f"type [#] [one\ntwo\n{long}] [0]", "textbox", "Area") is None
    assert agent.js("document.querySelector('textarea').value") == f"one\ntwo\n{long}"
    assert agent.do("type [#] [one\ntwo] [0]", "textbox", "Line") is None
    assert agent.js("document.querySelector('input').value") == "one two"


def test_text_that_can_be_edited_in_place(agent: PageAgent) -> None:
    agent.open("<div contenteditable aria-label=Edit>old <b>bold</b> text</div>")
    assert agent.do("type [#] [new] [0]", None, "Edit") is None
    assert agent.js("document.querySelector('div').innerText").strip() == "new"


@pytest.mark.parametrize(
    ("kind", "role", "written", "value"),
    [
        ("number", "spinbutton", "12", "12"),
        ("date", "Date", "2024-03-17", "2024-03-17"),
        ("date", "Date", "3/17/2024", "2024-03-17"),
        ("time", "InputTime", "14:30", "14:30"),
        ("range", "slider", "70", "70"),
        ("color", "ColorWell", "#ff0000", "#ff0000"),
    ],
)
def test_fields_with_a_form_of_their_own(agent: PageAgent, kind: str, role: str, written: str, value: str) -> None:
    agent.open(f"{LOG}<input type={kind} aria-label=It oninput=say('input') onchange=say('change')>")
    assert agent.do(f"type [#] [{written}] [0]", role) is None
    agent.js("document.activeElement.blur()")
    assert agent.js("document.querySelector('input').value") == value
    assert {"input", "change"} <= set(log(agent))


def test_what_takes_no_text_says_so(agent: PageAgent) -> None:
    agent.open(
        "<a href=/x>Link</a><input readonly aria-label=Fixed value=v><input disabled aria-label=Off><p>Words</p>"
        "<input type=date aria-label=Day value=2024-01-01>"
    )
    assert "takes no text" in str(agent.do("type [#] [x]", "link"))
    assert "is read-only" in str(agent.do("type [#] [x]", "textbox", "Fixed"))
    assert "is disabled" in str(agent.do("type [#] [x]", "textbox", "Off"))
    assert "takes no text" in str(agent.do("type [#] [x]", "StaticText", "Words"))
    assert "a date written like 2024-03-17, not 'soon'" in str(agent.do("type [#] [soon]", "Date"))
    assert agent.one("Date").property("value") == "2024-01-01"


def test_a_field_behind_a_click_is_typed_into(agent: PageAgent) -> None:
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
    assert log(agent) == ["input", "l"]
    assert agent.one("option", "Large one").property("selected") is True


def test_an_option_is_chosen_by_a_click_or_by_typing(agent: PageAgent) -> None:
    agent.open(LIST)
    assert agent.one("option", "Medium").visible
    assert agent.do("click [#]", "combobox") is None
    assert agent.do("click [#]", "option", "Medium") is None
    assert agent.do("type [#] [Large one] [0]", "combobox") is None
    assert agent.do("select_option [#] [Small]", "option", "Medium") is None
    assert log(agent) == ["input", "m", "input", "l", "input", "s"]


def test_options_that_are_not_to_be_had(agent: PageAgent) -> None:
    agent.open(LIST + "<button>B</button>")
    said = agent.do("select_option [#] [Tiny]", "combobox")
    assert said == "[2] combobox 'Size' has no option 'Tiny'; it has 'Small', 'Medium', 'Large one', 'Huge'."
    assert "disabled" in str(agent.do("select_option [#] [Huge]", "combobox"))
    assert "disabled" in str(agent.do("click [#]", "option", "Huge"))
    assert "is no drop-down list" in str(agent.do("select_option [#] [x]", "button"))
    assert log(agent) == []


def test_a_list_that_takes_several(agent: PageAgent) -> None:
    agent.open("<select multiple aria-label=Many><option>a<option>b<option>c</select>")
    chosen = "[...document.querySelectorAll('option')].filter(o => o.selected).map(o => o.value)"
    agent.do("click [#]", "option", "a")
    agent.do("select_option [#] [c]", "listbox")
    assert agent.js(chosen) == ["a", "c"]
    agent.do("click [#]", "option", "a")
    assert agent.js(chosen) == ["c"]


# Keys, scrolling, tabs.


def test_press_sends_keys_to_where_the_cursor_is(agent: PageAgent) -> None:
    agent.open("<input aria-label=It value=abc>")
    agent.do("click [#]", "textbox")
    for keys in ("Ctrl+a", "Delete", "x", "Shift+y", "+", "Ctrl+a", "Ctrl+c", "End", "Ctrl+v"):
        assert agent.do(f"press [{keys}]") is None
    assert agent.one("textbox").property("value") == "xY+xY+"


@pytest.mark.parametrize("modifier", ["", "Ctrl+Alt+", "Shift+"])
def test_every_key_there_is_can_be_pressed(agent: PageAgent, modifier: str) -> None:
    agent.open("<input>")
    named = [name.strip() for name in KNOWN.split(", single")[0].split(",")]
    assert len(named) == 28
    for key in [*named, *string.printable.strip(), "Meta"]:
        action = actions.parse(f"press [{modifier}{key}]")
        assert isinstance(action, actions.Press)
        assert agent.run(perform(agent.session, agent.page, action)) is None


def test_a_page_whose_script_gets_in_the_way_is_the_pages_fault(agent: PageAgent) -> None:
    agent.open(LIST + "<script>HTMLElement.prototype.focus = () => { throw 1 }; Array.prototype.some = null</script>")
    assert "gets in the way" in str(agent.do("select_option [#] [Medium]", "combobox"))
    assert "gets in the way" in str(agent.do("scroll [down]"))


def test_text_from_a_style_sheet_is_clicked(agent: PageAgent) -> None:
    agent.open(LOG + "<style>p::before { content: 'made up' }</style><p onclick=say('p')> text</p>")
    assert agent.do("click [#]", "StaticText", "made up") is None
    assert log(agent) == ["p"]


def test_scroll_moves_by_a_screenful_and_says_where_it_ends(agent: PageAgent) -> None:
    agent.open("<style>html { scroll-behavior: smooth }</style><p style='height:1500px'>top</p><p>bottom</p>")
    assert agent.do("scroll [down]") is None
    assert agent.js("scrollY") == 720
    assert agent.one("StaticText", "top").place == "above"
    assert agent.do("scroll [down]") is None
    assert agent.do("scroll [down]") == "The page can't be scrolled further down."
    assert agent.one("StaticText", "bottom").visible
    assert agent.do("scroll [up]") is None


def test_scroll_moves_the_part_that_scrolls(agent: PageAgent) -> None:
    agent.open(
        "<div style='height:50px;overflow:auto'><p style='height:99px'>small</p></div>"
        "<div style='height:300px;overflow:auto' id=big><p style='height:900px'>large</p></div>"
    )
    assert agent.do("scroll [down]") is None
    assert agent.js("document.getElementById('big').scrollTop") == 300


def test_moves_between_pages_and_tabs(agent: PageAgent) -> None:
    agent.open("<title>One</title>", "/one")
    agent.server.pages["/two"] = "<title>Two</title>"
    assert agent.do("goto [http://shop.example/two]") is None
    assert agent.do("go_back") is None
    assert agent.session.tab.title == "One"
    assert agent.do("go_forward") is None
    assert agent.session.tab.title == "Two"
    assert agent.do("new_tab") is None
    assert agent.do("tab_focus [0]") is None
    assert agent.session.active == 0
    assert "no tab 7" in str(agent.do("tab_focus [7]"))
    assert agent.do("close_tab") is None
    assert len(agent.session.tabs) == 1
    assert agent.do("goto [http://elsewhere.example/]") is not None


def test_stop_is_not_for_the_browser(agent: PageAgent) -> None:
    agent.open("<p>x</p>")
    with pytest.raises(ValueError, match="asks nothing of a page"):
        agent.run(perform(agent.session, agent.page, actions.Stop("x")))


# The clipboard.


def test_what_is_copied_can_be_pasted(agent: PageAgent) -> None:
    agent.open("<label>From <input value='some words'></label> <label>To <textarea></textarea></label>")
    assert agent.do("click [#]", "textbox", "From") is None
    assert agent.do("press [Ctrl+a]") is None
    assert agent.do("press [Ctrl+c]") is None
    assert agent.do("click [#]", "textbox", "To") is None
    for keys in ("Ctrl+v", "Ctrl+Shift+V", "Shift+Insert"):
        assert agent.do(f"press [{keys}]") is None
    assert agent.one("textbox", "To").property("value") == 3 * "some words"


def test_what_is_cut_moves(agent: PageAgent) -> None:
    agent.open("<label>From <input value='some words'></label> <label>To <input></label>")
    agent.do("click [#]", "textbox", "From")
    agent.do("press [Ctrl+a]")
    agent.do("press [Ctrl+x]")
    agent.do("click [#]", "textbox", "To")
    agent.do("press [Ctrl+v]")
    assert agent.one("textbox", "From").property("value") is None
    assert agent.one("textbox", "To").property("value") == "some words"


def test_no_password_is_copied(agent: PageAgent) -> None:
    agent.open("<label>From <input type=password value=secret></label> <label>To <input></label>")
    agent.do("click [#]", "textbox", "From")
    agent.do("press [Ctrl+a]")
    agent.do("press [Ctrl+c]")
    assert agent.session.clipboard == ""


def test_sessions_have_a_clipboard_each(
    agent: PageAgent, browser: Browser, run: Callable[[Coroutine[Any, Any, Any]], Any]
) -> None:
    fields = "<label>From <input value='some words'></label>"
    agent.open(fields)
    agent.do("click [#]", "textbox", "From")
    agent.do("press [Ctrl+a]")
    agent.do("press [Ctrl+c]")
    other = PageAgent(agent.server, run(browser.session()), run)
    other.open(fields)
    other.do("click [#]", "textbox", "From")
    other.do("press [Ctrl+a]")
    other.do("press [Ctrl+v]")
    assert other.one("textbox", "From").property("value") == "some words"
    assert other.session.clipboard == ""
    run(other.session.close())
