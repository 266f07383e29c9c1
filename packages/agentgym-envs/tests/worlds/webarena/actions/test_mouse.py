"""Tests of the mouse beyond a click: double and right clicks, dragging, points, selected text, scrolling a part."""

from __future__ import annotations

import pytest
from agentgym_envs.worlds.webarena.actions.candidates import candidate_actions
from agentgym_envs.worlds.webarena.page.observation import tree
from page_agent import LOG, PageAgent
from pages_server import Page

BOXES = "<div id=a class=ui-draggable style='width:50px;height:50px'>A</div><div id=b style='height:50px'>B</div>"
DRAG_LOG = """<script>
  for (const kind of ['mousedown', 'mouseup']) addEventListener(kind, event => say(kind + ' ' + event.target.id));
</script>"""


@pytest.mark.parametrize(
    ("action", "log"), [("double_click", ["click", "click", "dblclick"]), ("right_click", ["menu"])]
)
def test_double_and_right_clicks_reach_the_element(agent: PageAgent, action: str, log: list[str]) -> None:
    agent.open(LOG + "<button onclick=say('click') ondblclick=say('dblclick') oncontextmenu=say('menu')>It</button>")
    assert agent.do(f"{action} [#]", "button") is None
    assert agent.log == log


def test_a_click_waits_for_a_picture_that_the_mouse_replaces(agent: PageAgent) -> None:
    """Until the second picture is there, the element is empty, and a press would reach what is behind it."""
    icon = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='40'><rect width='40' height='40'/></svg>"
    headers = {"Content-Type": "image/svg+xml"}
    agent.server.pages |= {"/icon": Page(icon, headers=headers), "/late": Page(icon, headers=headers, delay=0.2)}
    agent.open(
        LOG + "<style>#icon { content: url(/icon) } #icon:hover { content: url(/late) }</style>"
        "<div onclick=\"say(event.target.id)\" id=behind><span id=icon onclick='void 0'></span></div>"
    )
    assert agent.do("click [#]", "image") is None
    assert agent.log == ["icon"]


def test_double_click_on_a_disabled_button_is_refused(agent: PageAgent) -> None:
    agent.open("<button disabled>It</button>")
    assert agent.do("double_click [#]", "button") == "[2] button 'It' is disabled."


def test_drag_moves_from_one_element_to_the_other(agent: PageAgent) -> None:
    agent.open(LOG + BOXES + DRAG_LOG)
    assert agent.do(f"drag [#] [{agent.find_one('StaticText', 'B').id}]", "StaticText", "A") is None
    assert agent.log == ["mousedown a", "mouseup b"]


def test_drag_uses_the_browsers_drag_and_drop(agent: PageAgent) -> None:
    agent.open(
        LOG + "<p draggable=true ondragstart=\"event.dataTransfer.setData('text', 'mine')\">Item</p>"
        "<h1 ondragover=event.preventDefault() ondrop=\"say(event.dataTransfer.getData('text'))\">Bin</h1>"
    )
    assert agent.do(f"drag [#] [{agent.find_one('heading', 'Bin').id}]", "StaticText", "Item") is None
    assert agent.log == ["mine"]


def test_drag_of_elements_that_the_window_cannot_show_together_is_refused(agent: PageAgent) -> None:
    agent.open("<p>Top</p><div style='height:3000px'></div><p>Bottom</p>")
    message = agent.do(f"drag [#] [{agent.find_one('StaticText', 'Bottom').id}]", "StaticText", "Top")
    assert message == "The two places are too far apart: the window can't show both at once."


def test_points_stand_for_what_has_no_id(agent: PageAgent) -> None:
    agent.open(
        LOG + "<canvas width=200 height=100 style='position:fixed;left:0;top:0' onclick=\"say([event.x, event.y])\""
        " onmousemove=\"say('move')\" oncontextmenu=\"say('menu')\"></canvas>"
    )
    assert agent.do("click [120,45]") is None
    assert agent.log[-1] == [120, 45]
    assert agent.do("right_click [12, 4]") is None
    assert agent.log[-1] == "menu"
    agent.js("log = []")
    assert agent.do("hover [13,4]") is None
    assert agent.log == ["move"]
    assert agent.do("drag [10,10] [20,20]") is None
    message = agent.do("click [1280,45]")
    assert message == "The point 1280,45 is outside of the window, which is 1280 pixels wide and 720 high."


def selection(agent: PageAgent) -> str:
    return agent.js("getSelection().toString()")


def test_select_text_selects_a_part_or_all_of_an_element(agent: PageAgent) -> None:
    agent.open("<p>One <b>two</b>\n three (4+)</p>")
    two = agent.find_one("StaticText", "two").id
    assert agent.do(f"select_text [{two}]") is None
    assert selection(agent) == "two"
    assert agent.do("select_text [#] [three]", "StaticText", "three (4+)") is None
    assert selection(agent) == "three"
    assert agent.do(f"select_text [{two}] [One two three (4+)]") is None
    assert selection(agent) == "One two three (4+)"
    assert agent.do("press [Ctrl+c]") is None
    assert agent.session.clipboard == "One two three (4+)"
    assert agent.do(f"select_text [{two}] [five]") == (
        f"[{two}] StaticText 'two' does not contain 'five'; write the text as the page has it, or leave it out to "
        "select all of the element's."
    )


def test_select_text_selects_in_fields(agent: PageAgent) -> None:
    agent.open("<textarea aria-label=It>some words here</textarea><input aria-label=Empty>")
    assert agent.do("select_text [#] [words]", "textbox", "It") is None
    assert agent.do("press [Delete]") is None
    assert agent.js("document.querySelector('textarea').value") == "some  here"
    assert "has no text that can be selected" in str(agent.do("select_text [#] [x]", "textbox", "Empty"))


def test_scroll_of_an_element_scrolls_the_part_that_it_is_in(agent: PageAgent) -> None:
    agent.open(
        "<div style='height:50px;overflow:auto' id=small><p style='height:99px'>small</p></div><h1>Title</h1>"
        "<div style='height:300px;overflow:auto'><p style='height:900px'>large</p></div>"
    )
    small = agent.find_one("StaticText", "small").id
    assert agent.do(f"scroll [down] [{small}]") is None
    assert agent.js("document.getElementById('small').scrollTop") == 50
    assert agent.do(f"scroll [up] [{small}]") is None
    assert "can't be scrolled further up" in str(agent.do(f"scroll [up] [{small}]"))
    message = agent.do("scroll [down] [#]", "heading", "Title")
    assert message is not None
    assert message.endswith("can be scrolled; scroll [down] scrolls the page.")


def test_positions_are_points_that_a_click_reaches(agent: PageAgent) -> None:
    agent.open(LOG + "<button onclick=say('it') style='position:fixed;left:100px;top:50px;width:40px;height:20px'>It")
    assert tree(agent.page, False, 1000, positions=True).splitlines()[1].strip() == "[2] button 'It' at: 120,60"
    assert agent.do("click [120,60]") is None
    assert agent.log == ["it"]


def test_candidates_contain_drags_between_draggable_elements(agent: PageAgent) -> None:
    agent.open("<p draggable=true>One</p><p draggable=true>Two</p><p>Three</p>")
    drags = [action for action in candidate_actions(agent.page, 1) if action.startswith("drag")]
    one, two = (node.id for node in agent.page.find("StaticText")[:2])
    assert drags == [f"drag [{one}] [{two}]", f"drag [{two}] [{one}]"]


def test_a_point_stands_for_the_field_list_or_part_there(agent: PageAgent) -> None:
    agent.open(
        "<body style='margin:0'><input aria-label=Field style='position:fixed;left:10px;top:10px;width:200px'>"
        "<select style='position:fixed;left:300px;top:10px'><option>One</option><option>Two</option></select>"
        "<div id=part style='position:fixed;left:10px;top:100px;width:200px;height:100px;overflow:auto'>"
        "<p>First</p><p style='margin-top:900px'>Last</p></div><p style='margin-top:600px'>Text</p></body>"
    )
    assert agent.do("type [50,20] [some words] [0]") is None
    assert agent.do("select_option [310,20] [Two]") is None
    assert agent.do("scroll [down] [50,150]") is None
    assert agent.js("[document.querySelector('input').value, document.querySelector('select').value]") == [
        "some words",
        "Two",
    ]
    assert agent.js("document.getElementById('part').scrollTop") > 0
    assert agent.do("type [50,150] [more] [0]") is not None  # no field
    assert agent.do("type [5000,20] [more]") == (
        "The point 5000,20 is outside of the window, which is 1280 pixels wide and 720 high."
    )
