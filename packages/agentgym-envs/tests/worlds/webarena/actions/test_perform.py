"""Tests of actions on pages: clicks, keys, scrolling, tabs and the clipboard, and their error messages."""

from __future__ import annotations

import string
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.actions import grammar
from agentgym_envs.worlds.webarena.actions.action_types import Click, Press, Stop
from agentgym_envs.worlds.webarena.actions.keys import KNOWN
from agentgym_envs.worlds.webarena.actions.perform import perform
from agentgym_envs.worlds.webarena.browser.browser import Browser
from page_agent import LOG, PageAgent

# Click and hover.


def test_click_presses_a_button_and_follows_a_link(agent: PageAgent) -> None:
    agent.open(LOG + "<button onclick=say('pressed')>Press</button> <a href=/next>Next</a>")
    agent.server.pages["/next"] = "<title>Next page</title>"
    assert agent.do("click [#]", "button", "Press") is None
    assert agent.log == ["pressed"]
    assert agent.do("click [#]", "link", "Next") is None
    assert agent.session.tab.title == "Next page"


def test_click_on_text_reaches_its_container(agent: PageAgent) -> None:
    agent.open(LOG + "<div onclick=say('div')><span>words in a box</span></div>")
    assert agent.do("click [#]", "StaticText", "words in a box") is None
    assert agent.log == ["div"]


def test_click_scrolls_the_element_into_view(agent: PageAgent) -> None:
    agent.open(
        LOG
        + "<div style='height:3000px'></div><div style='height:80px;overflow:auto'><p style='height:900px'></p>"
        + "<button onclick=say('deep')>Deep</button></div>"
    )
    assert agent.find_one("button").place == "below"
    assert agent.do("click [#]", "button") is None
    assert agent.log == ["deep"]
    assert agent.find_one("button").visible


def test_click_uses_the_elements_current_position(agent: PageAgent) -> None:
    agent.open(LOG + "<p id=p></p><button onclick=say('it')>It</button><button onclick=say('other')>Other</button>")
    for move in ("document.getElementById('p').style.height = '200px'", "document.body.style.height = '5000px'"):
        agent.js(move)
        agent.js("scrollTo(0, 60)")
        assert agent.do("click [#]", "button", "It") is None
    assert agent.log == ["it", "it"]


def test_click_on_a_wrapped_link_hits_one_of_its_lines(agent: PageAgent) -> None:
    agent.open(
        LOG
        + "<p style='width:200px;font:20px monospace'>aaaa bbbb cccc <a href='#' onclick=say('link')>dd eeee</a></p>"
    )
    assert agent.do("click [#]", "link") is None
    assert agent.log == ["link"]


def test_click_works_in_nested_frames(agent: PageAgent) -> None:
    agent.server.pages["/inner"] = "<div style='height:400px'></div><button onclick=top.say('inner')>Inner</button>"
    agent.server.pages["/outer"] = "<p>outer</p><iframe src=/inner width=200 height=100></iframe>"
    agent.open(LOG + "<p style='height:50px'></p><iframe src=/outer style='border:9px solid;padding:11px'></iframe>")
    assert not agent.find_one("button", "Inner").visible
    assert agent.do("click [#]", "button", "Inner") is None
    assert agent.find_one("button", "Inner").visible
    assert agent.do("click [#]", "button", "Inner") is None
    assert agent.log == ["inner", "inner"]


def test_click_on_a_covered_element_names_the_cover(agent: PageAgent) -> None:
    agent.open(
        LOG + "<button onclick=say('below')>Below</button>"
        "<div role=dialog aria-label=Cookies style='position:fixed;inset:0;background:white'><button>Yes</button></div>"
    )
    message = agent.do("click [#]", "button", "Below")
    assert message == "[2] button 'Below' can't be reached: [3] dialog 'Cookies' is in front of it."
    assert agent.log == []


@pytest.mark.parametrize("corner", ["left:0;top:0", "right:0;top:0", "left:0;bottom:0", "right:0;bottom:0"])
def test_click_reaches_the_part_of_an_element_that_shows(agent: PageAgent, corner: str) -> None:
    agent.open(
        LOG + "<div style='position:relative;width:100px;height:60px'>"
        "<button onclick=say('below') style='width:100%;height:100%'>Below</button>"
        f"<button onclick=say('above') style='position:absolute;{corner};width:80px;height:48px'>Above</button></div>"
    )
    assert agent.do("click [#]", "button", "Below") is None
    assert agent.do("click [#]", "button", "Above") is None
    assert agent.log == ["below", "above"]


@pytest.mark.parametrize(
    "html",
    [
        "<label><input type=checkbox style='opacity:0;position:absolute'><b>Drawn</b></label>",
        "<input type=checkbox id=c style='position:absolute;opacity:0'><label for=c>Drawn</label>",
        "<label><input type=checkbox style='position:absolute;clip-path:inset(50%)'>Drawn</label>",
        "<label>Drawn <input type=checkbox></label>",
    ],
)
def test_click_checks_a_checkbox_with_a_custom_drawing(agent: PageAgent, html: str) -> None:
    agent.open(html)
    assert agent.do("click [#]", "checkbox") is None
    assert agent.find_one("checkbox").property("checked") is True


def test_hover_opens_a_menu(agent: PageAgent) -> None:
    agent.open(
        "<style>ul { display: none } div:hover ul { display: block }</style><div>Menu<ul><li>Item</li></ul></div>"
    )
    assert agent.page.find("StaticText", "Item") == []
    assert agent.do("hover [#]", "StaticText", "Menu") is None
    assert agent.find_one("StaticText", "Item").visible


def test_click_on_unclickable_elements_is_refused(agent: PageAgent) -> None:
    agent.open("<title>T</title><button disabled>Off</button><input type=file aria-label=File><button>Gone</button>")
    count = len(agent.page.nodes)
    assert agent.do("click [99]") == f"There is no element [99]; the ids of this page go from 1 to {count}."
    assert agent.do("click [0]") == f"There is no element [0]; the ids of this page go from 1 to {count}."
    assert "is disabled" in str(agent.do("click [#]", "button", "Off"))
    assert "no files" in str(agent.do("click [#]", "button", "File"))
    agent.js("document.querySelectorAll('button')[1].style.display = 'none'")
    assert "is not displayed now" in str(agent.do("click [4]"))


def test_click_on_a_removed_element_is_refused(agent: PageAgent) -> None:
    agent.open("<button>Gone</button>")
    agent.js("document.querySelector('button').replaceWith('x')")
    assert "no longer there" in str(agent.do("click [2]"))
    agent.open("<button>Here</button>", "/one")
    page = agent.page
    agent.open("<button>Elsewhere</button>", "/two")
    message = agent.run(perform(agent.session, page, Click(2)))
    # Which of them depends on whether Chromium keeps the page for going back.
    assert "no longer there" in message or "not displayed" in message


def test_click_may_close_the_tab(agent: PageAgent) -> None:
    agent.server.pages["/popup"] = "<button onmousedown=window.close()>Close me</button>"
    agent.open("<a href=/popup target=_blank>Open</a>")
    assert agent.do("click [#]", "link") is None
    assert len(agent.session.tabs) == 2
    assert agent.do("click [#]", "button") is None
    assert [tab.url for tab in agent.session.tabs] == ["http://shop.example/page"]


# Keys, scrolling, tabs.


def test_press_sends_keys_to_the_focused_element(agent: PageAgent) -> None:
    agent.open("<input aria-label=It value=abc>")
    agent.do("click [#]", "textbox")
    for keys in ("Ctrl+a", "Delete", "x", "Shift+y", "+", "Ctrl+a", "Ctrl+c", "End", "Ctrl+v"):
        assert agent.do(f"press [{keys}]") is None
    assert agent.find_one("textbox").property("value") == "xY+xY+"


@pytest.mark.long
@pytest.mark.parametrize("modifier", ["", "Ctrl+Alt+", "Shift+"])
def test_every_known_key_can_be_pressed(agent: PageAgent, modifier: str) -> None:
    agent.open("<input>")
    named = [name.strip() for name in KNOWN.split(", single")[0].split(",")]
    assert len(named) == 28
    for key in [*named, *string.printable.strip(), "Meta"]:
        action = grammar.parse(f"press [{modifier}{key}]")
        assert isinstance(action, Press)
        assert agent.run(perform(agent.session, agent.page, action)) is None


def test_click_reaches_text_from_a_style_sheet(agent: PageAgent) -> None:
    agent.open(LOG + "<style>p::before { content: 'made up' }</style><p onclick=say('p')> text</p>")
    assert agent.do("click [#]", "StaticText", "made up") is None
    assert agent.log == ["p"]


def test_scroll_moves_by_a_screenful_and_reports_the_end(agent: PageAgent) -> None:
    agent.open("<style>html { scroll-behavior: smooth }</style><p style='height:1500px'>top</p><p>bottom</p>")
    assert agent.do("scroll [down]") is None
    assert agent.js("scrollY") == 720
    assert agent.find_one("StaticText", "top").place == "above"
    assert agent.do("scroll [down]") is None
    assert agent.do("scroll [down]") == "The page can't be scrolled further down."
    assert agent.find_one("StaticText", "bottom").visible
    assert agent.do("scroll [up]") is None


def test_scroll_moves_the_largest_scrollable_element(agent: PageAgent) -> None:
    agent.open(
        "<div style='height:50px;overflow:auto'><p style='height:99px'>small</p></div>"
        "<div style='height:300px;overflow:auto' id=big><p style='height:900px'>large</p></div>"
    )
    assert agent.do("scroll [down]") is None
    assert agent.js("document.getElementById('big').scrollTop") == 300


def test_navigation_between_pages_and_tabs(agent: PageAgent) -> None:
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


def test_stop_is_rejected_by_perform(agent: PageAgent) -> None:
    agent.open("<p>x</p>")
    with pytest.raises(ValueError, match="is not an action on a page"):
        agent.run(perform(agent.session, agent.page, Stop("x")))


# The clipboard.


def test_copied_text_can_be_pasted(agent: PageAgent) -> None:
    agent.open("<label>From <input value='some words'></label> <label>To <textarea></textarea></label>")
    assert agent.do("click [#]", "textbox", "From") is None
    assert agent.do("press [Ctrl+a]") is None
    assert agent.do("press [Ctrl+c]") is None
    assert agent.do("click [#]", "textbox", "To") is None
    for keys in ("Ctrl+v", "Ctrl+Shift+V", "Shift+Insert"):
        assert agent.do(f"press [{keys}]") is None
    assert agent.find_one("textbox", "To").property("value") == 3 * "some words"


def test_text_of_too_many_lines_is_neither_typed_nor_pasted(agent: PageAgent) -> None:
    """Fields with thousands of lines take the browser longer than a step may take."""
    agent.open("<label>To <textarea></textarea></label>")
    lines = "\n".join(["x"] * 500)
    assert agent.do(f"type [#] [{lines}] [0]", "textbox", "To") is None
    assert agent.find_one("textbox", "To").property("value") == lines.replace("\n", " ")
    refused = agent.do(f"type [#] [{lines}\n] [0]", "textbox", "To")
    assert refused and "at most 500 lines at a time, not 501" in refused
    agent.session.clipboard = f"{lines}\n"
    refused = agent.do("press [Ctrl+v]")
    assert refused and "Copy and paste at most 500 lines" in refused
    assert agent.find_one("textbox", "To").property("value") == lines.replace("\n", " ")


def test_cut_text_is_moved_by_pasting(agent: PageAgent) -> None:
    agent.open("<label>From <input value='some words'></label> <label>To <input></label>")
    agent.do("click [#]", "textbox", "From")
    agent.do("press [Ctrl+a]")
    agent.do("press [Ctrl+x]")
    agent.do("click [#]", "textbox", "To")
    agent.do("press [Ctrl+v]")
    assert agent.find_one("textbox", "From").property("value") is None
    assert agent.find_one("textbox", "To").property("value") == "some words"


def test_passwords_are_not_copied(agent: PageAgent) -> None:
    agent.open("<label>From <input type=password value=secret></label> <label>To <input></label>")
    agent.do("click [#]", "textbox", "From")
    agent.do("press [Ctrl+a]")
    agent.do("press [Ctrl+c]")
    assert agent.session.clipboard == ""


def test_each_session_has_its_own_clipboard(
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
    assert other.find_one("textbox", "From").property("value") == "some words"
    assert other.session.clipboard == ""
    run(other.session.close())
