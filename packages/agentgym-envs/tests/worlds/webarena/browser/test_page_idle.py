"""Tests of waiting for idle pages, and of the notices about pages that never become idle."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.browser.session import Session
from page_agent import page_text
from pages_server import NEVER, SHOP, Page, PagesServer, short_timeouts
from patience import eventually

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_form_submission_is_waited_for(server: PagesServer, session: Session, visit: Any, click: Any) -> None:
    server.pages |= {"/a": "<form action=/done method=post><button>go</button></form>", "/done": Page("ok", delay=0.2)}
    visit("/a")
    click("button")
    assert session.tab.url == SHOP + "/done"


@pytest.mark.long
@pytest.mark.parametrize(
    "handler",
    [
        "setTimeout(() => location = '/next', 25)",
        "fetch('/slow').then(() => location = '/next')",
        "setTimeout(() => fetch('/slow').then(() => setTimeout(() => location = '/next', 20)), 20)",
        "history.pushState(0, '', '/a2'); fetch('/slow').then(() => history.replaceState(0, '', '/next'))",
    ],
)
def test_delayed_navigation_after_a_click_is_waited_for(
    server: PagesServer, session: Session, visit: Any, click: Any, handler: str
) -> None:
    server.pages |= {
        "/a": f'<button onclick="{handler}">go</button>',
        "/slow": Page("", delay=0.1),
        "/next": Page("next", delay=0.1),
    }
    visit("/a")
    assert click("button") == []
    assert session.tab.url == SHOP + "/next"


GROW_SCRIPT = (
    "let n = 0; const timer = setInterval(() => { document.body.append(n); if (++n == 8) clearInterval(timer) }, 20)"
)


def test_changing_document_is_waited_for(
    server: PagesServer, session: Session, visit: Any, click: Any, run: Run
) -> None:
    server.pages["/a"] = f'<body><button onclick="{GROW_SCRIPT}">go</button>'
    visit("/a")
    click("button")
    assert page_text(session, run).endswith("01234567")


def test_changing_document_in_a_frame_is_waited_for(
    server: PagesServer, session: Session, visit: Any, run: Run
) -> None:
    server.pages |= {"/a": "<iframe src=/frame></iframe>", "/frame": f"<body><script>{GROW_SCRIPT}</script>"}
    visit("/a")
    assert run(session.tab.page.frames[1].inner_text("body")) == "01234567"


@short_timeouts
def test_hanging_request_is_noticed_once(server: PagesServer, session: Session, visit: Any, run: Run) -> None:
    server.pages |= {"/a": "<script>fetch('/poll')</script>here", "/poll": Page(delay=NEVER)}
    assert visit("/a") == ["The page was still loading after 0.5 seconds."]
    assert page_text(session, run) == "here"
    run(session.settle())
    assert session.take_notices() == []


@short_timeouts
def test_constantly_changing_page_is_noticed_once(server: PagesServer, session: Session, visit: Any, run: Run) -> None:
    server.pages["/a"] = "<p>0</p><script>setInterval(() => document.querySelector('p').textContent++, 5)</script>"
    assert visit("/a") == ["The page keeps changing by itself."]
    run(session.settle())
    assert session.take_notices() == []


def test_event_streams_sockets_and_workers_are_not_waited_for(server: PagesServer, visit: Any) -> None:
    server.pages |= {
        "/a": "<script>new EventSource('/events'); new WebSocket('/socket'); new Worker('/js')</script>",
        "/js": Page("1", headers={"Content-Type": "text/javascript"}),
        "/events": Page(delay=NEVER),
        "/socket": Page(delay=NEVER),
    }
    assert visit("/a") == []
    eventually(lambda: {"/events", "/socket", "/js"} <= set(server.paths()))


@pytest.mark.long
@short_timeouts
def test_navigation_that_never_ends_times_out(
    server: PagesServer, session: Session, visit: Any, click: Any, run: Run
) -> None:
    server.pages |= {"/never": Page(delay=NEVER), "/a": "<a href=/never>x</a>", "/b": "b"}
    assert run(session.goto(SHOP + "/never")) == SHOP + "/never did not finish loading within 3 seconds."
    visit("/a")
    assert click("a") == ["The page did not finish loading within 3 seconds."]
    assert session.tab.url == SHOP + "/a"
    assert visit("/b") == []


def test_page_may_shadow_document_properties(server: PagesServer, session: Session, visit: Any) -> None:
    names = ("title", "querySelectorAll", "body", "documentElement", "defaultView")
    server.pages["/a"] = "<title>mine</title>" + "".join(f"<form name={name}></form>" for name in names)
    assert visit("/a") == []
    assert session.tab.title == "mine"


def test_page_may_break_its_own_javascript(server: PagesServer, session: Session, visit: Any) -> None:
    broken = "for (const f of ['setTimeout', 'MutationObserver', 'Promise', 'performance']) window[f] = null;"
    server.pages["/a"] = f"<title>mine</title><script>{broken} Document.prototype.querySelectorAll = null</script>"
    assert visit("/a") == []
    assert session.tab.title == "mine"
