"""Tests of set-of-marks: boxes and ids on screenshots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from agentgym_envs.util.images import pixels
from agentgym_envs.worlds.webarena.actions.input import PageInput
from agentgym_envs.worlds.webarena.page.marks import colour, draw_marks, marked_nodes
from agentgym_envs.worlds.webarena.page.snapshot import Node
from page_agent import PageAgent

PAGE = """<body style='margin:0'><h1>Title</h1><p>Text</p>
<a href=/one style='position:absolute;left:100px;top:200px;width:80px;height:40px'>One</a>
<button style='position:absolute;left:300px;top:200px'><b>Two</b></button>
<div id=area onclick='void 0' style='position:absolute;left:100px;top:300px;width:50px;height:50px'>Three</div>
<svg role=img aria-label=Four style='position:absolute;left:300px;top:300px' width=40 height=40></svg>
<select style='position:absolute;left:500px;top:300px'><option>A</option><option>B</option></select>
<div style='position:absolute;top:3000px'><button>Below</button></div></body>"""


def outline(node: Node) -> tuple[int, int]:
    """Return a point on the left line of a mark, in the middle of its height."""
    assert node.seen is not None
    return int(node.seen.left) - 1, int(node.seen.centre[1])


def test_visible_elements_that_can_be_acted_on_are_marked(agent: PageAgent) -> None:
    page = agent.open(PAGE)
    marked = marked_nodes(page)
    assert [node.name for node in marked][:4] == ["One", "Two", "Three", "Four"]
    assert [node.role for node in marked[4:]] == ["combobox"]
    assert all(node.visible for node in marked)


def test_marks_are_drawn_around_their_elements(agent: PageAgent) -> None:
    page = agent.open(PAGE)
    plain = agent.run(agent.session.screenshot())
    marked = marked_nodes(page)
    before, after = pixels(plain), pixels(draw_marks(plain, marked))
    assert after.shape == before.shape == (720, 1280, 3)
    for node in marked:
        x, y = outline(node)
        assert tuple(after[y, x]) == colour(node.id)
        assert tuple(before[y, x]) != colour(node.id)
        assert node.seen is not None
        left, top, right, bottom = (int(side) for side in node.seen)
        inside = slice(top + 1, bottom - 1), slice(left + 1, right - 1)
        assert np.array_equal(after[inside], before[inside]), node  # the page itself stays readable
    untouched = after[400:, :]
    assert np.array_equal(untouched, before[400:, :])
    assert draw_marks(plain, marked) == draw_marks(plain, marked)


def test_ids_are_written_above_the_boxes(agent: PageAgent) -> None:
    agent.open(PAGE)
    (link,) = agent.page.find("link", "One")
    plain = agent.run(agent.session.screenshot())
    labels: list[np.ndarray] = []
    for number in (link.id, link.id + 10):  # in the same color
        label = pixels(draw_marks(plain, [replace(link, id=number)]))[182:198, 98:125]
        background = (label == np.array(colour(number))).all(axis=2)
        assert background.sum() > 40
        assert np.ptp(label[background.any(axis=1)][:, background.any(axis=0)].astype(int).sum(axis=2)) > 300  # digits
        labels.append(label)
    assert not np.array_equal(*labels)


COVERED = """<body style='margin:0'>
<style>button, a, input, iframe, x-part {position:absolute; width:100px; height:40px; border:0}</style>
<button style='left:0;top:0'>Free</button>
<button style='left:0;top:660px'>Hidden</button>
<button style='left:200px;top:620px;height:60px'>Half hidden</button>
<a href=/one style='left:400px;top:690px'>Hidden link</a>
<button style='left:600px;top:0'><span style='position:absolute;inset:0'>Inside</span></button>
<button style='left:800px;top:100px'>Centre hidden</button>
<div style='position:absolute;left:830px;top:100px;width:40px;height:40px;background:red'></div>
<label style='position:absolute;left:0;top:200px'><input type=checkbox style='left:0;top:0;opacity:0'>
<span style='position:absolute;left:0;top:0;width:100px;height:40px;background:gray'>Styled</span></label>
<input type=checkbox aria-label='Hidden box' style='left:700px;top:680px'>
<x-part style='left:0;top:300px'></x-part>
<x-part style='left:0;top:670px'></x-part>
<iframe style='left:200px;top:300px' srcdoc="<body style='margin:0'><button>Framed</button>"></iframe>
<iframe style='left:200px;top:690px;height:30px' srcdoc="<body style='margin:0'><button>Hidden frame</button>"></iframe>
<div role=dialog aria-label=Cookies style='position:fixed;left:0;bottom:0;width:100%;height:75px;background:white'>
<button style='right:0;top:0'>Accept</button></div>
<script>customElements.define('x-part', class extends HTMLElement { connectedCallback() {
  this.attachShadow({mode: 'open'}).innerHTML = `<button style="width:90px;height:30px">Shadow</button>`; } });</script>
</body>"""


@pytest.mark.long
def test_elements_that_others_cover_are_not_reachable(agent: PageAgent) -> None:
    page = agent.open(COVERED)
    marked = marked_nodes(page)
    reached = agent.run(PageInput(agent.session.tab, page).reachable(marked))
    names = ["Free", "Half hidden", "Inside", "Centre hidden", "Styled", "Shadow", "Framed", "Accept"]
    assert [node.name for node in reached if node.role != "StaticText"] == names
    hidden = [node for node in marked if node not in reached]
    assert sorted(node.name for node in hidden) == ["Hidden", "Hidden box", "Hidden frame", "Hidden link", "Shadow"]
    for node in hidden:
        if node.role != "checkbox":  # on which a click works by a script
            assert "can't be reached" in (agent.do(f"click [{node.id}]") or ""), node
    for node in reached:
        assert agent.do(f"click [{node.id}]") is None, node
        assert agent.page.nodes[node.id - 1].name == node.name


def test_elements_are_reachable_on_a_page_that_has_scrolled(agent: PageAgent) -> None:
    agent.open("<body style='height:5000px'><button style='position:absolute;top:1500px'>Below</button></body>")
    agent.do("scroll [down]")
    agent.do("scroll [down]")
    (below,) = marked_nodes(agent.page)
    assert agent.run(PageInput(agent.session.tab, agent.page).reachable([below])) == [below]


def test_marks_at_the_edge_stay_within_the_picture(agent: PageAgent) -> None:
    agent.open(
        "<body style='margin:0'><button style='position:fixed;left:0;top:0;width:100vw;height:100vh'>All</button>"
        "<button style='position:fixed;right:0;bottom:0;width:12px;height:12px'>x</button></body>"
    )
    image = pixels(draw_marks(agent.run(agent.session.screenshot()), marked_nodes(agent.page)))
    first, last = marked_nodes(agent.page)
    assert tuple(image[300, 0]) == colour(first.id)
    assert (image == np.array(colour(last.id))).all(axis=2).sum() > 50
