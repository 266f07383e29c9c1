"""Tests of snapshots: which nodes have a line and an id, where they are, and that snapshots are reproducible."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.browser import Browser
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page.snapshot import take_snapshot
from page_agent import PageAgent

Run = Callable[[Coroutine[Any, Any, Any]], Any]


KITCHEN_SINK = """<title>Kitchen "sink"</title>
<h1>Head <em>line</em></h1><nav><ul><li><a href=/a>Link A</a></li><li>Plain item</li></ul></nav>
<p>Some <b>bold</b> <a href=/b>link</a>.</p>
<label for=q>Search</label><input id=q value="hello  there" required>
<input type=password aria-label=Secret value=abc><input type=number aria-label=Count value=3 min=0 max=9>
<input type=date aria-label=Day value=2024-01-02>
<label><input type=checkbox checked> Agree</label><label><input type=radio name=r> Yes</label>
<select aria-label=Size><option>Small<option selected>Medium
<optgroup label=Big><option disabled>Huge</optgroup></select>
<textarea aria-label=Story readonly>two
lines</textarea><div contenteditable aria-label=Edit>edit me</div>
<button disabled>Off</button><button aria-expanded=false aria-haspopup=menu>Menu</button>
<img src=data:, alt="A picture"><img src=data:,><button aria-pressed=true>Bold</button>
<p></p><div style="display:none">gone</div><div style="visibility:hidden">unseen</div><div aria-hidden=true>mute</div>
<div onclick=1 style="width:9px;height:9px"></div><div onclick=1>click me</div><span tabindex=0></span>
<table><tr><th>Name<th>Price<tr><td>Tea<td><a href=/tea>3.50</a></table>"""

KITCHEN_SINK_TEXT = """\
[1] RootWebArea 'Kitchen "sink"' focused: True
	[2] heading 'Head line'
	[3] link 'Link A'
	[4] StaticText 'Plain item'
	[5] StaticText 'Some'
	[6] StaticText 'bold'
	[7] link 'link'
	[8] StaticText '.'
	[9] StaticText 'Search'
	[10] textbox 'Search' required: True value: 'hello there'
	[11] textbox 'Secret' required: False value: '•••'
	[12] spinbutton 'Count' required: False valuemin: 0 valuemax: 9 value: 3
	[13] Date 'Day' value: '2024-01-02'
	[14] checkbox 'Agree' checked: True
	[15] radio 'Yes' checked: False
	[16] combobox 'Size' hasPopup: menu expanded: False
		[17] option 'Small' selected: False
		[18] option 'Medium' selected: True
		[19] group 'Big'
			[20] option 'Huge' disabled: True
	[21] textbox 'Story' readonly: True required: False value: 'two lines'
	[22] generic 'Edit' editable: True
		[23] StaticText 'edit me'
	[24] button 'Off' disabled: True
	[25] button 'Menu' hasPopup: menu expanded: False
	[26] image 'A picture'
	[27] button 'Bold' pressed: True
	[28] generic '' clickable: True
	[29] StaticText 'click me'
	[30] generic '' clickable: True
	[31] table ''
		[32] row ''
			[33] columnheader 'Name' required: False
			[34] columnheader 'Price' required: False
		[35] row ''
			[36] cell 'Tea'
			[37] cell '3.50'
				[38] link '3.50'"""


def test_snapshot_of_a_page_with_all_kinds_of_elements(agent: PageAgent) -> None:
    agent.open(KITCHEN_SINK)
    assert agent.text() == KITCHEN_SINK_TEXT


@pytest.mark.long
def test_snapshots_are_identical_across_sessions(agent: PageAgent, browser: Browser, run: Run) -> None:
    agent.open("<p>first</p><button>x</button>", "/before")
    agent.open(KITCHEN_SINK + "<iframe srcdoc='<button>framed</button>'></iframe>")
    text = agent.text()
    assert "framed" in text
    for _ in range(2):
        other = PageAgent(agent.server, run(browser.session()), run)
        run(other.session.goto("http://shop.example/page"))
        other.look()
        assert other.text() == text
        run(other.session.close())


def test_find_searches_the_whole_page_by_role_and_name(agent: PageAgent) -> None:
    page = agent.open("<a href=/1>Go</a><button>Go</button><p style='height:2000px'></p><a href=/2>Go</a>")
    assert [(node.role, node.place) for node in page.find(None, "Go")] == [
        ("link", "visible"),
        ("button", "visible"),
        ("link", "below"),
    ]
    assert len(page.find("link")) == len(page.find("link", "Go")) == 2
    assert page.find("link", "Stop") == []
    agent.do("scroll [down]")
    agent.do("scroll [down]")
    assert [node.place for node in agent.page.find("link", "Go")] == ["above", "visible"]
    assert [node.id for node in agent.page.nodes] == [1, 2, 3, 4]


def test_clipped_and_offscreen_elements_are_not_visible(agent: PageAgent) -> None:
    page = agent.open(
        "<style>* { margin: 0 }</style>"
        "<div style='height:100px;overflow:auto;position:relative'><p style='height:90px'>in</p><p>half</p>"
        "<p style='height:300px'></p><p>out</p><p style='position:fixed;top:300px'>fixed</p></div>"
        "<div style='height:50px;overflow:hidden'><p style='height:200px'></p>"
        "<p style='position:absolute;top:400px'>absolute</p></div>"
        "<p style='position:absolute;left:2000px;white-space:nowrap'>beside</p>"
        "<p style='position:absolute;left:-2000px'>nowhere</p>"
        "<p style='position:absolute;top:717px'>sliver</p>"
    )
    places = {node.name: node.place for node in page.find("StaticText")}
    assert places == {
        "in": "visible",
        "half": "visible",
        "out": "hidden",
        "fixed": "visible",
        "absolute": "visible",
        "beside": "hidden",
        "nowhere": "hidden",
        "sliver": "hidden",
    }


def test_scrolled_container_shows_its_current_content(agent: PageAgent) -> None:
    agent.open("<div style='height:60px;overflow:auto'><p>one</p><p style='height:500px'></p><p>two</p></div>")
    agent.js("document.querySelector('div').scrollTop = 9999")
    agent.look()
    assert [agent.find_one("StaticText", name).visible for name in ("one", "two")] == [False, True]


def test_boxes_match_client_rects_in_frames(agent: PageAgent) -> None:
    agent.server.pages["/inner"] = "<body style='margin:0'><p style='height:100px'></p><button>Inner</button>"
    agent.open("<p style='height:900px'></p><iframe src=/inner style='border:3px solid;padding:5px'></iframe>")
    agent.js("scrollTo(0, 400)")
    agent.js("frames[0].scrollTo(0, 70)")
    agent.look()
    box = agent.find_one("button").box
    frame = agent.js("(({x, y}) => [x, y])(document.querySelector('iframe').getBoundingClientRect())")
    inner = agent.js("(({x, y}) => [x, y])(frames[0].document.querySelector('button').getBoundingClientRect())")
    assert box is not None
    assert (box.left, box.top) == pytest.approx((frame[0] + 8 + inner[0], frame[1] + 8 + inner[1]), abs=1)
    assert agent.find_one("button").visible


def test_frame_of_another_site_is_read_and_clicked(agent: PageAgent) -> None:
    agent.server.pages["/inner"] = "<button onclick=\"this.textContent = 'Clicked'\">Foreign</button>"
    agent.open("<p>Top</p><iframe src=http://wiki.example/inner></iframe>")
    assert agent.do("click [#]", "button", "Foreign") is None
    assert agent.find_one("button", "Clicked").visible


def test_options_are_as_visible_as_their_list(agent: PageAgent) -> None:
    agent.open("<select><option>a</select><p style='height:2000px'></p><select><option>b</select>")
    assert [agent.find_one("option", name).place for name in "ab"] == ["visible", "below"]


def test_element_without_a_box_is_where_its_content_is(agent: PageAgent) -> None:
    agent.open("<button style='display:contents'><span>one</span></button>")
    assert agent.find_one("button", "one").visible


def test_shadow_trees_are_read_and_clicked(agent: PageAgent) -> None:
    agent.open(
        "<x-box></x-box><script>customElements.define('x-box', class extends HTMLElement { constructor() { super();"
        "const root = this.attachShadow({mode: 'open'}); root.innerHTML = '<button>Shade</button>';"
        "root.firstChild.onclick = () => { root.firstChild.textContent = 'Clicked' } } })</script>"
    )
    assert agent.do("click [#]", "button", "Shade") is None
    assert agent.find_one("button", "Clicked").visible


def rows_page(count: int) -> str:
    row = (
        "<tr><td>{0}</td><td><a href='/{0}'>Item {0}</a></td><td><button onclick='document.title={0}'>Buy {0}</button>"
    )
    return "<title>Rows</title><h1>Rows</h1><table>" + "".join(row.format(i) for i in range(count)) + "</table>"


@pytest.mark.long
def test_large_page_is_read_only_near_the_viewport(agent: PageAgent) -> None:
    page = agent.open(rows_page(1200) + "<iframe srcdoc='far' style='display:block'></iframe>")
    assert page.bounded
    assert len(page.nodes) < 400
    assert page.nodes[0].name == "Rows"
    assert agent.find_one("heading", "Rows").visible
    assert agent.do("click [#]", "button", "Buy 7") is None
    assert agent.session.tab.title == "7"
    agent.js("scrollTo(0, 9000)")
    agent.look()
    assert agent.page.find("heading") == []
    seen = [node for node in agent.page.find("link") if node.visible]
    assert len(seen) > 20
    assert agent.do(f"click [{seen[3].parent}]") is None  # the cell of the link
    ids = [node.id for node in agent.page.nodes]
    assert ids == list(range(1, len(ids) + 1))


def test_visible_part_of_a_large_page_is_read_like_a_small_page(agent: PageAgent) -> None:
    hidden = "<div style='display:none'>" + "<i>x</i>" * 4000 + "</div>"
    agent.open(KITCHEN_SINK)
    text = [line.strip() for line in agent.text().splitlines()]
    assert agent.open(KITCHEN_SINK + hidden).bounded
    assert [line.strip() for line in agent.text().splitlines()][:-1] == text


def test_snapshot_of_a_closed_tab_raises(session: Session, run: Run) -> None:
    tab = session.tab
    run(session.new_tab())
    run(tab.page.close())
    with pytest.raises(TabClosed):
        run(take_snapshot(tab))


def test_unresponsive_browser_is_a_fault(session: Session, run: Run) -> None:
    run(session.tab.cdp.detach())
    with pytest.raises((EnvFault, TabClosed)):
        run(take_snapshot(session.tab))
