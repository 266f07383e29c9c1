"""Tests of the rough skin's widgets, each on a page of its own, with an agent's actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import agentgym_envs.worlds.webarena.sites
import pytest
from agentgym_envs.worlds.webarena.actions.candidates import candidate_actions
from page_agent import PageAgent
from pages_server import Page, PagesServer

SCRIPTS = Path(agentgym_envs.worlds.webarena.sites.__file__).parent / "static" / "rough"
BODY = '<body class="rough" data-today="2025-06-16" data-method="GET">'
LOAD = '<link rel=stylesheet href=/rough/rough.css><script type=module src="/rough/main.js"></script>'
FORM = "<main><form method=post action=/sent>{}<button>Go on</button></form></main>"

Show = Callable[[str], None]


@pytest.fixture
def show(agent: PageAgent, server: PagesServer) -> Show:
    """A function that opens a page in the rough skin."""

    def show(html: str) -> None:
        for path in SCRIPTS.iterdir():
            kind = {"Content-Type": "text/javascript" if path.suffix == ".js" else "text/css"}
            server.pages[f"/rough/{path.name}"] = Page(path.read_text(encoding="utf-8"), headers=kind)
        server.pages["/sent"] = "<h1>Sent</h1>"
        agent.open(f"{BODY}{html}{LOAD}")

    return show


def sent(server: PagesServer) -> list[dict[str, list[str]]]:
    """Return the fields of each form that was sent."""
    return [parse_qs(request.body, keep_blank_values=True) for request in server.requests if request.path == "/sent"]


def names(agent: PageAgent, role: str) -> list[str]:
    return [node.name for node in agent.page.find(role)]


def options(*texts: str) -> str:
    return "".join(f"<option value={i}>{text}</option>" for i, text in enumerate(texts))


def test_combobox(show: Show, agent: PageAgent, server: PagesServer) -> None:
    show(FORM.format(f"<label>Size <select name=size>{options('Small', 'Medium', 'Large')}</select></label>"))
    box = agent.find_one("combobox", "Size")
    assert (box.property("expanded"), box.property("hasPopup")) == (False, "listbox")
    assert names(agent, "option") == []
    refusal = agent.do("select_option [#] [Large]", "combobox", "Size")
    assert refusal is not None and "is no drop-down list" in refusal
    agent.do("click [#]", "combobox", "Size")
    assert names(agent, "option") == ["Small", "Medium", "Large"]
    assert f"click [{agent.find_one('option', 'Large').id}]" in candidate_actions(agent.page, 1)
    agent.do("click [#]", "option", "Large")
    assert names(agent, "option") == []
    assert agent.page.find("StaticText", "Large")
    agent.do("click [#]", "button", "Go on")
    assert sent(server) == [{"size": ["2"]}]


def test_long_combobox_loads_what_is_typed(show: Show, agent: PageAgent, server: PagesServer) -> None:
    months = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
    show(FORM.format(f"<label>Month <select name=month>{options(*months)}</select></label>"))
    agent.do("click [#]", "combobox", "Month")
    assert names(agent, "option") == list(months[:8])
    assert agent.page.find("StaticText", "8 of 10; type to narrow down.")
    agent.do("type [#] [ober] [0]", "searchbox", "Filter Month")
    assert names(agent, "option") == ["October"]
    agent.do("click [#]", "option", "October")
    agent.do("click [#]", "button", "Go on")
    assert sent(server) == [{"month": ["9"]}]


def test_popup_closes_with_escape_and_clicks_elsewhere(show: Show, agent: PageAgent) -> None:
    show(f"<main><h1>Shop</h1><label>Size <select>{options('S', 'M')}</select></label></main>")
    for action, role, name in (("press [Escape]", None, None), ("click [#]", "heading", "Shop")):
        agent.do("click [#]", "combobox", "Size")
        assert names(agent, "option") == ["S", "M"]
        agent.do(action, role, name)
        assert names(agent, "option") == []
        assert agent.find_one("combobox").property("expanded") is False


def test_calendar(show: Show, agent: PageAgent, server: PagesServer) -> None:
    show(FORM.format("<label>First day (YYYY-MM-DD) <input name=day></label>"))
    field = "First day (YYYY-MM-DD)"
    agent.do("click [#]", "textbox", field)
    assert agent.page.find("group", f"Calendar of {field}")
    assert len(names(agent, "button")) == 4 + 30 + 1
    agent.do("click [#]", "button", "Next month")
    agent.do("click [#]", "button", "July 4, 2025")
    assert agent.find_one("textbox", field).property("value") == "2025-07-04"
    assert not agent.page.find("group", f"Calendar of {field}")
    agent.do("type [#] [2024-02-29] [0]", "textbox", field)
    assert agent.find_one("button", "February 29, 2024").property("pressed") is True
    agent.do("press [Escape]")
    assert not agent.page.find("group", f"Calendar of {field}")
    agent.do("click [#]", "button", "Go on")
    assert sent(server) == [{"day": ["2024-02-29"]}]


@pytest.mark.long
@pytest.mark.parametrize("text", ["One line", "Two\nlines", "A\n\ngap", "x" * 300, "<b>&amp; "])
def test_editor_sends_what_the_plain_field_sends(show: Show, agent: PageAgent, server: PagesServer, text: str) -> None:
    html = FORM.format("<label>Story <textarea name=text>Old</textarea></label>")
    server.pages["/sent"] = ""
    agent.open(html)
    agent.do(f"type [#] [{text}] [0]", "textbox", "Story")
    agent.do("click [#]", "button", "Go on")
    show(html)
    assert agent.find_one("textbox", "Story").property("value") == "Old"
    agent.do(f"type [#] [{text}] [0]", "textbox", "Story")
    agent.do("click [#]", "button", "Go on")
    plain, rough = sent(server)
    assert plain == rough != {"text": ["Old"]}


def test_editor_has_a_toolbar(show: Show, agent: PageAgent) -> None:
    show(FORM.format("<label>Story <textarea name=text></textarea></label>"))
    agent.do("type [#] [loud] [0]", "textbox", "Story")
    agent.do("press [Control+a]")
    agent.do("click [#]", "button", "Bold")
    assert agent.js("document.querySelector('textarea').value") == "**loud**"


def test_form_opens_as_a_dialog_and_asks_in_a_second_one(show: Show, agent: PageAgent, server: PagesServer) -> None:
    show(FORM.format("<label>A <input name=a></label><label>B <input name=b></label><label>C <input name=c></label>"))
    assert not agent.page.find("textbox")
    opener = agent.find_one("button", "Go on…")
    assert (opener.property("hasPopup"), opener.property("expanded")) == ("dialog", False)
    agent.do("click [#]", "button", "Go on…")
    assert agent.find_one("dialog").property("modal") is True
    agent.do("type [#] [yes] [0]", "textbox", "B")
    agent.do("click [#]", "button", "Go on")
    assert agent.page.find("dialog", "Confirmation")
    agent.do("click [#]", "button", "Not now")
    assert sent(server) == []
    agent.do("click [#]", "button", "Go on")
    agent.do("click [#]", "button", "Confirm")
    assert sent(server) == [{"a": [""], "b": ["yes"], "c": [""]}]


def test_form_that_came_back_with_errors_is_open(show: Show, agent: PageAgent) -> None:
    show("<main><p role=alert>No.</p><form method=post><input><input><input><button>Save it</button></form></main>")
    assert agent.page.find("dialog", "Save it")


def test_deletion_is_confirmed(show: Show, agent: PageAgent, server: PagesServer) -> None:
    one = "<form method=post action=/sent><button name=do value={}>{}</button></form>"
    show(f"<main>{one.format('delete', 'Delete post')}{one.format('star', 'Like it')}</main>")
    agent.do("click [#]", "button", "Delete post")
    assert sent(server) == []
    agent.do("click [#]", "button", "Confirm")
    assert sent(server) == [{"do": ["delete"]}]
    agent.do("go_back")
    agent.do("click [#]", "button", "Like it")
    assert sent(server)[1:] == [{"do": ["star"]}]


def test_table_fetches_its_rows_page_by_page(show: Show, agent: PageAgent, server: PagesServer) -> None:
    rows = "".join(f"<tr><td><a href=/{i}>Row {i}</a></td></tr>" for i in range(1, 24))
    show(f"<main><table><tbody>{rows}</tbody></table></main>")
    assert names(agent, "link") == [f"Row {i}" for i in range(1, 11)]
    assert agent.page.find("StaticText", "Rows 1 to 10 of 23")
    assert agent.find_one("button", "Previous rows").property("disabled") is True
    before = server.paths().count("/page")
    for first in (11, 21):
        agent.do("click [#]", "button", "Next rows")
        assert names(agent, "link") == [f"Row {i}" for i in range(first, min(first + 10, 24))]
    assert server.paths().count("/page") == before + 2
    assert agent.find_one("button", "Next rows").property("disabled") is True
    agent.do("click [#]", "button", "Previous rows")
    assert names(agent, "link")[0] == "Row 11"


def test_table_with_fields_stays_whole(show: Show, agent: PageAgent) -> None:
    rows = "".join(f"<tr><td><input type=checkbox aria-label={i}></td></tr>" for i in range(15))
    show(f"<main><table><tbody>{rows}</tbody></table></main>")
    assert len(names(agent, "checkbox")) == 15


def test_list_grows_as_one_scrolls(show: Show, agent: PageAgent, server: PagesServer) -> None:
    items = "".join(f"<li style=height:90px><a href=/{i}>Entry {i}</a></li>" for i in range(1, 26))
    show(f"<main><ul>{items}</ul></main>")
    assert len(names(agent, "link")) == 10
    assert agent.page.find("StaticText", "10 of 25; scroll down for more")
    seen = [10]
    while agent.do("scroll [down]") is None:
        seen.append(len(names(agent, "link")))
    assert seen[-1] == 25
    assert 20 in seen
    assert names(agent, "link") == [f"Entry {i}" for i in range(1, 26)]
    assert server.paths().count("/page") == 3
    assert "scroll down for more" not in agent.text()


def test_menu_opens_on_hovering(show: Show, agent: PageAgent) -> None:
    show("<header><nav aria-label=Account><a href=/a>Orders</a><a href=/b>Settings</a></nav></header><h1>Front</h1>")
    button = agent.find_one("button", "Account")
    assert (button.property("hasPopup"), button.property("expanded")) == ("menu", False)
    assert names(agent, "link") == []
    agent.do("hover [#]", "button", "Account")
    assert names(agent, "link") == ["Orders", "Settings"]
    agent.do("press [Escape]")
    assert names(agent, "link") == []
    agent.do("click [#]", "heading", "Front")
    agent.do("hover [#]", "button", "Account")
    agent.do("hover [#]", "heading", "Front")
    assert names(agent, "link") == []
    agent.do("hover [#]", "button", "Account")
    agent.do("click [#]", "link", "Settings")
    assert agent.session.tab.url.endswith("/b")


def test_suggestions_wait_until_one_stops_to_type(show: Show, agent: PageAgent, server: PagesServer) -> None:
    server.pages["/suggestions"] = Page(
        '[{"text": "Red kettle", "href": "/kettle"}]', headers={"Content-Type": "application/json"}
    )
    show("<form role=search action=/search><input type=search aria-label=Find></form>")
    agent.do("type [#] [kettle] [0]", "searchbox", "Find")
    assert names(agent, "link") == ["Red kettle"]
    assert [path for path in server.paths() if "suggestions" in path] == ["/suggestions?q=kettle"]
    agent.do("press [Escape]")
    assert names(agent, "link") == []
    assert agent.find_one("searchbox").property("value") == "kettle"


def test_notice_is_a_toast_until_the_next_action_and_stays_in_the_log(show: Show, agent: PageAgent) -> None:
    show("<header></header><div class=notice role=status>Your order was placed.</div><h1>Orders</h1>")
    assert agent.page.find("StaticText", "Your order was placed.")
    agent.do("click [#]", "heading", "Orders")
    assert not agent.page.find("StaticText", "Your order was placed.")
    agent.do("click [#]", "button", "Notices: 1")
    assert agent.page.find("StaticText", "Your order was placed.")


BAR = """<p style="height: 690px">Text</p><a href=/end>Imprint</a><section class=consent aria-label="Cookie notice">
<button data-consent=all>Accept all</button><button data-consent=settings>Cookie settings</button></section>"""


def test_cookie_bar_covers_the_page_until_one_answers(show: Show, agent: PageAgent) -> None:
    show(BAR)
    refusal = agent.do("click [#]", "link", "Imprint")
    assert refusal is not None and "region 'Cookie notice' is in front of it" in refusal
    agent.do("click [#]", "button", "Accept all")
    assert not agent.page.find("region", "Cookie notice")
    assert agent.js("document.cookie") == "consent=all"
    assert agent.do("click [#]", "link", "Imprint") is None


def test_cookie_settings(show: Show, agent: PageAgent) -> None:
    show(BAR)
    agent.do("click [#]", "button", "Cookie settings")
    agent.do("click [#]", "checkbox", "Statistics")
    agent.do("click [#]", "button", "Save choice")
    assert agent.js("document.cookie") == "consent=necessary-statistics"
    assert not agent.page.find("region", "Cookie notice")


def test_icons_keep_names_except_that_of_search(show: Show, agent: PageAgent) -> None:
    show("<main><button>Save</button><button>Delete it</button><button>Search</button><button>Other</button></main>")
    assert names(agent, "button") == ["Save", "Delete it", "", "Other"]
    assert agent.js("[...document.querySelectorAll('main button')].map(b => b.innerText)") == ["", "", "", "Other"]
    agent.do(f"hover [{agent.page.find('button', '')[0].id}]")
    assert agent.page.find("tooltip", "Search")
