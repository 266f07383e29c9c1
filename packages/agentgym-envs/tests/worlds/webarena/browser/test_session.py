"""Tests of sessions: navigation, tabs, dialogs, and options."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.browser import Browser
from agentgym_envs.worlds.webarena.browser.options import SessionOptions
from agentgym_envs.worlds.webarena.browser.playwright_errors import TabClosed
from agentgym_envs.worlds.webarena.browser.session import Session
from page_agent import page_text
from pages_server import NEVER, SHOP, Page, PagesServer, short_timeouts
from patience import eventually

Run = Callable[[Coroutine[Any, Any, Any]], Any]

# Navigation.


def test_session_starts_with_a_blank_tab(session: Session) -> None:
    assert [tab.url for tab in session.tabs] == ["about:blank"]


def test_goto_opens_a_page_by_its_host_name(server: PagesServer, session: Session, run: Run) -> None:
    server.pages["/a"] = "<title>The  shop\n</title>"
    assert run(session.goto(SHOP + "/a")) is None
    run(session.settle())
    assert (session.tab.url, session.tab.title) == (SHOP + "/a", "The shop")
    assert server.requests[0].host == "shop.example"


@pytest.mark.parametrize("status", [404, 500])
def test_http_errors_are_shown_as_pages(
    server: PagesServer, session: Session, visit: Any, run: Run, status: int
) -> None:
    server.pages["/a"] = Page("<p>sorry</p>", status)
    assert visit("/a") == []
    assert page_text(session, run) == "sorry"


def test_go_back_and_go_forward(server: PagesServer, session: Session, visit: Any, run: Run) -> None:
    server.pages |= {"/a": "a", "/b": "b"}
    visit("/a")
    assert run(session.go_back()) == "There is no page to go back to."
    visit("/b")
    assert run(session.go_forward()) == "There is no page to go forward to."
    for move, path in ((session.go_back, "/a"), (session.go_forward, "/b")):
        assert run(move()) is None
        run(session.settle())
        assert session.tab.url == SHOP + path


def test_go_back_from_an_unreachable_page(
    server: PagesServer, session: Session, visit: Any, click: Any, run: Run
) -> None:
    server.pages["/a"] = "<a href='http://elsewhere.example/x'>out</a>"
    visit("/a")
    notices = click("a")
    assert len(notices) == 1
    assert notices[0].startswith(
        "http://elsewhere.example/x is not one of the sites. There are: http://port.example:8080,"
    )
    assert run(session.go_back()) is None
    run(session.settle())
    assert session.tab.url == SHOP + "/a"


def test_page_may_redirect_while_loading(server: PagesServer, session: Session, visit: Any, run: Run) -> None:
    server.pages |= {"/a": "<script>setTimeout(() => location = '/b', 5)</script>", "/b": "b"}
    for _ in range(5):
        visit("/a")
        assert session.tab.url == SHOP + "/b"


def test_downloads_are_refused(server: PagesServer, session: Session, visit: Any, click: Any, run: Run) -> None:
    file = Page("x", headers={"Content-Disposition": "attachment; filename=a.txt", "Content-Type": "text/plain"})
    server.pages |= {"/file": file, "/a": "<a href=/file>here</a><a id=new target=_blank href=/file>there</a>"}
    assert run(session.goto(SHOP + "/file")) == SHOP + "/file was not opened: it is a download, which is refused."
    session.take_notices()
    visit("/a")
    assert click("a") == ["A download ('a.txt') was refused."]
    assert click("#new") == ["A download ('a.txt') was refused."]
    assert [tab.url for tab in session.tabs] == [SHOP + "/a"]


def test_response_without_content_keeps_the_page(server: PagesServer, session: Session, visit: Any, click: Any) -> None:
    server.pages |= {"/none": Page(status=204), "/a": "<a href=/none>x</a>"}
    visit("/a")
    assert click("a") == []
    assert session.tab.url == SHOP + "/a"


# Tabs.


def test_tabs_can_be_opened_focused_and_closed(server: PagesServer, session: Session, visit: Any, run: Run) -> None:
    server.pages |= {"/a": "<title>A</title>", "/b": "<title>B</title>"}
    visit("/a")
    assert run(session.new_tab()) is None
    assert session.active == 1
    visit("/b")
    assert run(session.focus(0)) is None
    run(session.settle())
    assert (session.active, [tab.title for tab in session.tabs]) == (0, ["A", "B"])
    assert run(session.focus(2)) == "There is no tab 2; there are 0 to 1."
    assert run(session.close_tab()) is None
    assert [tab.url for tab in session.tabs] == [SHOP + "/b"]


def test_closing_the_last_tab_opens_a_blank_tab(server: PagesServer, session: Session, visit: Any, run: Run) -> None:
    server.pages["/a"] = "a"
    visit("/a")
    assert run(session.close_tab()) is None
    assert [tab.url for tab in session.tabs] == ["about:blank"]
    assert visit("/a") == []


def test_number_of_tabs_is_limited(browser: Browser, run: Run) -> None:
    session = run(browser.session(max_tabs=3))
    assert [run(session.new_tab()) for _ in range(3)] == [None, None, "There are 3 tabs already; close one first."]
    run(session.close())


@pytest.mark.long
@pytest.mark.parametrize(
    "opener",
    [
        "<a target=_blank href=/slow>x</a>",
        "<a target=_blank rel=noopener href=/slow>x</a>",
        "<a onclick=\"window.open('/slow')\">x</a>",
        "<a onclick=\"window.open('/slow', 'name', 'popup,width=200,height=200')\">x</a>",
    ],
)
def test_tab_opened_by_a_page_becomes_active(
    server: PagesServer, session: Session, visit: Any, click: Any, opener: str
) -> None:
    server.pages |= {"/a": opener, "/slow": Page("<title>late</title>", delay=0.2)}
    visit("/a")
    assert click("a") == []
    assert session.active == 1
    assert (session.tab.url, session.tab.title) == (SHOP + "/slow", "late")


def test_pop_ups_beyond_the_limit_are_closed(server: PagesServer, browser: Browser, run: Run) -> None:
    server.pages |= {"/a": "<script>for (let i = 0; i < 6; i++) window.open('/b?' + i)</script>", "/b": "b"}
    session = run(browser.session(max_tabs=4))
    run(session.goto(SHOP + "/a"))
    run(session.settle())
    notices = session.take_notices()
    assert len(session.tabs) == 4
    assert notices == ["The page opened another tab; as there were 4 already, it was closed."] * 3
    run(session.close())


def test_page_may_close_its_own_tab(server: PagesServer, session: Session, visit: Any, click: Any) -> None:
    server.pages |= {
        "/a": "<a target=_blank rel=opener href=/b>x</a>",
        "/b": "<button onclick='window.close()'>x</button>",
    }
    visit("/a")
    click("a")
    assert len(session.tabs) == 2
    with suppress(TabClosed):  # the tab may close before the click returns
        click("button")
    eventually(lambda: [tab.url for tab in session.tabs] == [SHOP + "/a"])


@short_timeouts
def test_pop_up_that_never_loads_is_closed(server: PagesServer, session: Session, visit: Any, click: Any) -> None:
    server.pages |= {"/a": "<a target=_blank href=/never>x</a>", "/never": Page(delay=NEVER)}
    visit("/a")
    assert click("a") == ["A tab that the page opened did not begin to load."]
    assert [tab.url for tab in session.tabs] == [SHOP + "/a"]


def test_background_page_is_not_a_tab(server: PagesServer, session: Session, visit: Any, run: Run) -> None:
    server.pages |= {"/a": "a", "/b": "b"}
    visit("/a")

    async def read_in_background() -> str:
        async with session.background_page() as page:
            await page.goto(SHOP + "/b")
            return await page.inner_text("body")

    assert run(read_in_background()) == "b"
    run(session.settle())
    assert [tab.url for tab in session.tabs] == [SHOP + "/a"]


# Dialogs.


@pytest.mark.parametrize(
    ("call", "notice"),
    [
        ("alert('hi\\nthere')", "The page showed a dialog (alert) ('hi there'); it was dismissed."),
        ("confirm('sure?')", "The page showed a dialog (confirm) ('sure?'); it was dismissed."),
        ("prompt('name?', 'x')", "The page showed a dialog (prompt) ('name?'); it was dismissed."),
    ],
)
def test_dialogs_are_dismissed_with_a_notice(
    server: PagesServer, session: Session, visit: Any, click: Any, run: Run, call: str, notice: str
) -> None:
    server.pages["/a"] = f'<button onclick="document.title = {call.replace(chr(39), "&#39;")}">x</button>'
    visit("/a")
    assert click("button") == [notice]
    assert session.tab.title == {"alert": "undefined", "confirm": "false", "prompt": "null"}[call.split("(")[0]]


def test_dialog_during_loading_is_dismissed(server: PagesServer, visit: Any) -> None:
    server.pages["/a"] = "<script>alert(1)</script>"
    assert visit("/a") == ["The page showed a dialog (alert) ('1'); it was dismissed."]


def test_dialog_notices_are_limited_in_number_and_length(server: PagesServer, visit: Any) -> None:
    server.pages["/a"] = "<script>for (let i = 0; i < 30; i++) alert('x'.repeat(1000))</script>"
    notices = visit("/a")
    assert len(notices) == 20
    assert max(map(len, notices)) < 400


def test_failed_session_leaves_no_browser_context(browser: Browser, run: Run) -> None:
    session = run(browser.session())
    before = len(session.context.browser.contexts)
    with pytest.raises(EnvFault, match=r"[Cc]ookie"):
        run(browser.session(cookies=[{"name": "c", "value": "1"}]))
    assert len(session.context.browser.contexts) == before
    run(session.close())


def test_page_cannot_prevent_navigation(server: PagesServer, session: Session, visit: Any, click: Any) -> None:
    server.pages |= {"/a": "<button>x</button><script>onbeforeunload = e => e.preventDefault()</script>", "/b": "b"}
    visit("/a")
    click("button")  # beforeunload only fires after an interaction
    assert visit("/b") == ["The page asked whether to leave it; it was left all the same."]
    assert session.tab.url == SHOP + "/b"


# Options.


def test_session_options_reach_the_page_and_the_server(
    server: PagesServer, browser: Browser, run: Run, tmp_path: Any
) -> None:
    har = tmp_path / "requests.har"
    server.pages["/a"] = "<p></p>"
    session = run(
        browser.session(
            headers={"X-Episode": "f00"},
            cookies=[{"name": "c", "value": "1", "url": SHOP}],
            viewport=(640, 480),
            geolocation={"latitude": 1.5, "longitude": 2.5},
            init_scripts=["window.given = 7"],
            record_har_path=har,
        )
    )
    run(session.goto("http://127.0.0.2/a"))  # geolocation requires a secure origin
    latitude = "new Promise(r => navigator.geolocation.getCurrentPosition(p => r(p.coords.latitude)))"
    script = f"async () => [innerWidth, innerHeight, given, await {latitude}, devicePixelRatio, navigator.language]"
    assert run(session.tab.page.evaluate(script)) == [640, 480, 7, 1.5, 1, "en-US"]
    run(session.goto(SHOP + "/a"))
    run(session.settle())
    assert server.requests[-1].headers["x-episode"] == "f00"
    assert server.requests[-1].headers["cookie"] == "c=1"
    assert run(session.screenshot()).startswith(b"\x89PNG")
    state = run(session.context.storage_state())
    run(session.close())
    run(session.close())
    assert SHOP + "/a" in har.read_text()
    restored = run(browser.session(storage_state=state))
    run(restored.goto(SHOP + "/a"))
    assert server.requests[-1].headers["cookie"] == "c=1"
    assert "x-episode" not in server.requests[-1].headers
    run(restored.close())


def test_unknown_session_option_is_rejected(browser: Browser, run: Run) -> None:
    with pytest.raises(TypeError, match="colour"):
        run(browser.session(colour="red"))


def test_sessions_are_isolated(server: PagesServer, browser: Browser, run: Run) -> None:
    server.pages["/a"] = "<script>localStorage.n = (+localStorage.n || 0) + 1; document.title = localStorage.n</script>"
    for _ in range(2):
        session = run(browser.session())
        run(session.goto(SHOP + "/a"))
        run(session.settle())
        assert session.tab.title == "1"
        run(session.close())


def test_unreachable_site_is_a_fault_that_names_it(
    server: PagesServer, session: Session, visit: Any, click: Any, run: Run
) -> None:
    with pytest.raises(EnvFault, match=r"http://down\.example/ can't be reached \(net::ERR_CONNECTION_REFUSED\)"):
        run(session.goto("http://down.example/"))
    server.pages["/a"] = "<a href='http://down.example/x'>x</a>"
    visit("/a")
    with pytest.raises(EnvFault, match=r"http://down\.example/x can't be reached"):
        click("a")


def test_session_options_have_defaults() -> None:
    assert SessionOptions().viewport == (1280, 720)
