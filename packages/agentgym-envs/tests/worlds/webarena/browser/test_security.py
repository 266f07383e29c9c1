"""Tests that pages and agents can't reach anything but the sites from inside the browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.browser.browser import Browser
from agentgym_envs.worlds.webarena.browser.hosts import Hosts
from agentgym_envs.worlds.webarena.browser.session import Session
from hypothesis import given
from hypothesis import strategies as st
from pages_server import Page, PagesServer
from patience import eventually

Run = Callable[[Coroutine[Any, Any, Any]], Any]
SHOP = "http://shop.example"


@pytest.fixture
def outside() -> Iterator[PagesServer]:
    """A web server on this machine that isn't one of the sites."""
    with PagesServer({"/": "secret", "/x": "secret"}) as server:
        yield server


def open_page(run: Run, session: Session, url: str) -> str | None:
    message = run(session.goto(url))
    run(session.settle())
    return message


def outside_urls(outside: PagesServer) -> dict[str, str]:
    """Return URLs that could reach the server outside."""
    port = outside.port
    return {
        "ip": f"http://127.0.0.1:{port}/x",
        "short ip": f"http://127.1:{port}/x",
        "decimal ip": f"http://2130706433:{port}/x",
        "ipv6": f"http://[::ffff:127.0.0.1]:{port}/x",
        "localhost": f"http://localhost:{port}/x",
        "any.localhost": f"http://any.localhost:{port}/x",
        "wildcard dns": f"http://127.0.0.1.nip.example:{port}/x",
        "user": f"http://shop.example@127.0.0.1:{port}/x",
        "wrong port": f"http://port.example:{port}/x",
    }


def pages_requesting(url: str) -> dict[str, Page | str]:
    """Return pages that try to request or open `url` in different ways."""
    worker = f"URL.createObjectURL(new Blob(['fetch(`{url}`, {{mode: `no-cors`}})']))"
    return {
        "/redirect": Page(status=302, headers={"Location": url}),
        "/refresh": f"<meta http-equiv=refresh content='0;url={url}'>",
        "/script": f"<script>location = {url!r}</script>",
        "/form": f"<form method=post action='{url}'></form><script>document.forms[0].submit()</script>",
        "/frame": f"<iframe src='{url}'></iframe><img src='{url}'><script src='{url}'></script>",
        "/fetch": f"<script>fetch({url!r}, {{mode: 'no-cors'}}); navigator.sendBeacon({url!r}, 'x')</script>",
        "/stream": f"<script>new EventSource({url!r})</script>",
        "/socket": f"<script>new WebSocket({url.replace('http:', 'ws:')!r})</script>",
        "/worker": f"<script>new Worker({worker})</script>",
        "/window": f"<script>window.open({url!r})</script>",
        "/prefetch": f"<link rel=prefetch href='{url}'>",
    }


EVERYDAY = ["ip", "wrong port"]
OTHERS = ["short ip", "decimal ip", "ipv6", "localhost", "any.localhost", "wildcard dns", "user"]


@pytest.mark.parametrize("name", [*EVERYDAY, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_only_the_sites_can_be_reached(
    server: PagesServer, outside: PagesServer, session: Session, run: Run, name: str
) -> None:
    url = outside_urls(outside)[name]
    message = run(session.goto(url))
    assert message is not None
    assert message.startswith(f"{url} is not one of the sites. There are: ")
    pages = pages_requesting(url)
    server.pages |= pages
    for path in pages:
        open_page(run, session, SHOP + path)
    assert outside.requests == []
    assert set(server.paths()) == set(pages)


@pytest.mark.long
def test_sites_can_be_reached_in_all_of_these_ways(server: PagesServer, session: Session, run: Run) -> None:
    pages = pages_requesting("http://wiki.example/x")
    server.pages |= pages | {"/x": "open"}
    for path in pages:
        server.requests.clear()
        open_page(run, session, SHOP + path)
        eventually(lambda: "/x" in server.paths("wiki.example"), f"the request of {path}")


@pytest.mark.parametrize("name", OTHERS)
def test_urls_outside_the_sites_are_refused_without_a_request(
    outside: PagesServer, session: Session, run: Run, name: str
) -> None:
    url = outside_urls(outside)[name]
    assert run(session.goto(url)).startswith(f"{url} is not one of the sites.")
    assert session.tab.url == "about:blank"
    assert outside.requests == []


def test_redirect_outside_the_sites_is_reported(
    server: PagesServer, outside: PagesServer, session: Session, run: Run
) -> None:
    server.pages |= {
        "/far": Page(status=302, headers={"Location": "http://wiki.example/farther"}),
        "/farther": Page(status=302, headers={"Location": f"http://{outside.address}/x"}),
    }
    message = open_page(run, session, SHOP + "/far")
    assert message is not None
    assert message.startswith(f"http://{outside.address}/x is not one of the sites.")


def test_redirect_to_another_site_is_allowed(server: PagesServer, session: Session, run: Run) -> None:
    server.pages |= {"/far": Page(status=302, headers={"Location": "http://port.example:8080/there"}), "/there": "yes"}
    assert open_page(run, session, SHOP + "/far") is None
    assert session.tab.url == "http://port.example:8080/there"
    assert server.paths("port.example:8080") == ["/there"]


@pytest.mark.parametrize("call", ["stun:127.0.0.1:{port}", "turn:127.0.0.1:{port}?transport=udp"])
def test_web_rtc_sends_no_packets(server: PagesServer, session: Session, run: Run, call: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(0.5)
        ice = f"{{urls: '{call.format(port=listener.getsockname()[1])}', username: 'u', credential: 'c'}}"
        server.pages["/rtc"] = (
            f"<script>const c = new RTCPeerConnection({{iceServers: [{ice}]}}); c.createDataChannel('x');"
            "c.onicegatheringstatechange = () => document.title = c.iceGatheringState;"
            "c.createOffer().then(o => c.setLocalDescription(o))</script>"
        )
        open_page(run, session, SHOP + "/rtc")
        with pytest.raises(TimeoutError):
            listener.recv(1)
    assert session.tab.title in ("gathering", "complete")


OTHER_SCHEMES = [
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    " \tfile:///etc/passwd",
    "chrome://version",
    "chrome-untrusted://new-tab-page",
    "view-source:http://shop.example/a",
    "javascript:document.title='x'",
    "data:text/html,hello",
    "blob:http://shop.example/1",
    "about:version",
    "devtools://devtools/bundled/inspector.html",
    "filesystem:http://shop.example/temporary/x",
    "ftp://shop.example/",
    "ws://shop.example/",
    "java\nscript:document.title='x'",
]


def test_only_http_urls_can_be_opened(server: PagesServer, session: Session, run: Run) -> None:
    server.pages["/a"] = "<title>a</title>"
    open_page(run, session, SHOP + "/a")
    for url in OTHER_SCHEMES:
        message = open_page(run, session, url)
        assert message is not None
        assert "can't be opened, only those with http: or https:" in message
        assert (session.tab.url, session.tab.title) == (SHOP + "/a", "a")


@pytest.mark.parametrize(
    "text", ["", "shop", "shop.example", "//shop.example/a", "http://[", "http://x:99999999/", "http:"]
)
def test_malformed_urls_are_refused(session: Session, run: Run, text: str) -> None:
    assert run(session.goto(text)) is not None
    assert session.tab.url == "about:blank"


@pytest.mark.long
@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "chrome://version", "view-source:http://shop.example/a", "data:text/html,x"]
)
def test_pages_cannot_open_other_schemes(server: PagesServer, session: Session, run: Run, url: str) -> None:
    openings = f"location = {url!r}; document.querySelector('a').click(); window.open({url!r})"
    server.pages["/a"] = f"<a href='{url}'>x</a><iframe src='{url}'></iframe><script>{openings}</script>"
    open_page(run, session, SHOP + "/a")
    assert {tab.url for tab in session.tabs} <= {SHOP + "/a", "about:blank", "about:blank#blocked"}
    script = "() => { try { return frames[0].document.body.innerText } catch { return '' } }"
    assert run(session.tabs[0].page.evaluate(script)) == ""


def test_no_service_workers_and_no_permissions(server: PagesServer, session: Session, run: Run) -> None:
    server.pages |= {"/a": "a", "/worker.js": Page("", headers={"Content-Type": "text/javascript"})}
    open_page(run, session, "http://127.0.0.2/a")  # a secure origin, which could have both
    script = """async () => {
        await Promise.race([navigator.serviceWorker.register('/worker.js'), new Promise(r => setTimeout(r, 200))]);
        const workers = await navigator.serviceWorker.getRegistrations();
        const asked = ['geolocation', 'notifications', 'camera', 'microphone', 'clipboard-read'];
        const states = await Promise.all(asked.map(name => navigator.permissions.query({name})));
        return [workers.length, ...states.map(s => s.state)]
    }"""
    count, *states = run(session.tab.page.evaluate(script))
    assert count == 0
    assert "granted" not in states


def test_page_cannot_detect_the_harness(server: PagesServer, session: Session, run: Run) -> None:
    server.pages["/a"] = "<iframe srcdoc='x'></iframe>"
    script = "() => [...Object.getOwnPropertyNames(window), ...Object.getOwnPropertyNames(frames[0])].sort()"
    open_page(run, session, SHOP + "/a")
    names = run(session.tab.page.evaluate(script))
    run(session.settle())
    assert run(session.tab.page.evaluate(script)) == names
    assert [name for name in names if "playwright" in name.lower() or "agentgym" in name.lower()] == []


def test_all_frames_of_a_page_share_one_process(server: PagesServer, session: Session, run: Run) -> None:
    server.pages |= {"/a": "<iframe src='http://wiki.example/b'></iframe>", "/b": "<p>inside</p>"}
    open_page(run, session, SHOP + "/a")
    snapshot = run(session.tab.cdp.send("DOMSnapshot.captureSnapshot", {"computedStyles": []}))
    strings = snapshot["strings"]
    urls = [strings[document["documentURL"]] for document in snapshot["documents"]]
    assert urls == [SHOP + "/a", "http://wiki.example/b"]


# The rules for hosts.


def test_resolver_rules_are_ordered_by_specificity() -> None:
    hosts = Hosts.of({"a.example": "127.0.0.1:1", "a.example:81": "127.0.0.1:2", "B.example:80": None})
    assert hosts.rules() == (
        "MAP a.example:81 127.0.0.1:2 , MAP b.example:80 b.example:80 , MAP a.example 127.0.0.1:1 , MAP * ~NOTFOUND"
    )


@pytest.mark.parametrize(
    "host", ["", "*", "a b", "a,b", "a.example , MAP * c", "http://a.example", "a:0", "a:99999", "~x"]
)
def test_malformed_hosts_are_rejected(host: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        Hosts.of({host: None})
    with pytest.raises(ValueError, match="is not a host"):
        Hosts.of({"a.example": host})


@pytest.mark.parametrize(
    ("url", "reachable"),
    [
        ("http://shop.example", True),
        ("http://SHOP.example/x?y#z", True),
        ("https://shop.example:8443/", True),
        ("http://port.example:8080/", True),
        ("http://port.example/", False),
        ("http://shop.example.evil.example/", False),
        ("http://shop.example:x/", False),
        ("file://shop.example/x", False),
        ("about:blank", False),
    ],
)
def test_reachable_urls_have_a_site_as_host_and_port(url: str, reachable: bool) -> None:
    assert Hosts.of({"shop.example": None, "port.example:8080": None}).reachable(url) is reachable


@given(st.text() | st.text().map("http://".__add__))
def test_any_text_is_either_refused_or_reachable(text: str) -> None:
    hosts = Hosts.of({"shop.example": None})
    assert (hosts.refusal(text) is None) == (text == "about:blank" or hosts.reachable(text))


def test_hosts_of_other_browsers_are_refused(browser: Browser) -> None:
    assert browser.hosts.refusal("http://code.example/") is not None
