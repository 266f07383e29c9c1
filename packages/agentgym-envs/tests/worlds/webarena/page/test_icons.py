"""Tests of the words for icons, on pages as sites have them."""

from __future__ import annotations

import pytest
from agentgym_envs.worlds.webarena.page.observation import tree
from agentgym_envs.worlds.webarena.page.snapshot import take_snapshot
from page_agent import PageAgent

ICON = "width:20px;height:20px;content:url(data:image/gif;base64,R0lGODlhAQABAAAAACw=)"


@pytest.mark.parametrize(
    ("html", "line"),
    [
        ("<button class=ql-bold></button>", "button '' icon: bold"),
        ("<button class=Like></button>", "button '' icon: like"),
        ("<button id=open-search></button>", "button '' icon: open-search"),
        ("<button class='btn btn-primary' id=star></button>", "button '' icon: star"),
        ("<a href=/ class=trash></a>", "link '' icon: trash"),
        (f"<span class=like onclick='void 0' style='{ICON}'></span>", "image '' icon: like clickable: True"),
        ("<button class='btn btn-primary'></button>", "button ''"),
        ("<button class=x17></button>", "button ''"),
        ("<button></button>", "button ''"),
        ("<button class=like title=Heart></button>", "button 'Heart'"),
        ("<button class=like aria-label=Heart></button>", "button 'Heart'"),
        ("<button class=like>Heart</button>", "button 'Heart'"),
        ("<svg class=like role=img onclick='void 0' width=9 height=9></svg>", "image '' clickable: True"),
    ],
)
def test_nameless_icons_have_the_word_of_their_class_or_id(agent: PageAgent, html: str, line: str) -> None:
    agent.open(f"<title>Icons</title>{html}")
    shown = tree(agent.run(take_snapshot(agent.session.tab, icons=True)), whole_page=True, max_chars=2_000)
    assert [text.strip() for text in shown.splitlines()][1:] == [f"[2] {line}"]
    assert "icon:" not in agent.text()  # other sites are shown as they are
