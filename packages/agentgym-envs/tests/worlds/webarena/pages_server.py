"""A tiny web server for tests: a dictionary of pages, on a thread of its own, that remembers what it was asked for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

import pytest
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts


@dataclass(frozen=True)
class Page:
    """What is answered to a path."""

    body: str | bytes = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Besides `Content-Type`, which is HTML unless said otherwise, and `Content-Length`."""
    delay: float = 0.0
    """Seconds before the answer; cut short when the server closes."""


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    host: str
    """The `Host` header."""
    path: str
    """With the query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: str


SHOP = "http://shop.example"
"""What the browser of these tests calls the server."""
NEVER = 3600.0
"""A `delay` that outlasts any test."""
impatient = pytest.mark.parametrize(
    "timeouts", [IdleTimeouts(changing=0.4, loading=0.5, navigation=3)], ids=["impatient"]
)
"""For tests of what never ends. All others have the patience that users have: the machine may be busy."""


class PagesServer:
    """A web server on 127.0.0.1. `pages` may be changed at any time; a path without a page is a 404.

    Usable as a context manager. `pages["/x"] = "text"` is short for a page with `<!doctype html>` before the text.
    """

    def __init__(self, pages: Mapping[str, Page | str] | None = None) -> None:
        self.pages: dict[str, Page | str] = {"/favicon.ico": Page(status=204), **(pages or {})}
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT`, as it stands in the `hosts` of a browser."""
        return f"127.0.0.1:{self.port}"

    def paths(self, host: str | None = None) -> list[str]:
        """The paths asked for so far, in order, without the favicon's; those of one `Host` if given."""
        return [a.path for a in self.asked if a.path != "/favicon.ico" and host in (None, a.host)]

    def clear(self) -> None:
        """Forget pages and requests, and hang up on those that wait for an answer."""
        self.closing.set()
        self.closing = threading.Event()
        self.pages = {"/favicon.ico": Page(status=204)}
        self.asked.clear()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> PagesServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    owner: PagesServer

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up in the middle is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        owner = self.server.owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0))).decode()
        owner.asked.append(Asked(self.command, headers.get("host", ""), self.path, headers, body))
        page = owner.pages.get(self.path, owner.pages.get(urlsplit(self.path).path, Page("<h1>Not here</h1>", 404)))
        if isinstance(page, str):
            page = Page("<!doctype html>\n" + page)
        if page.delay and owner.closing.wait(page.delay):
            self.close_connection = True
            return
        content = page.body.encode() if isinstance(page.body, str) else page.body
        self.send_response(page.status)
        for name, value in {"Content-Type": "text/html; charset=utf-8", **page.headers}.items():
            self.send_header(name, value)
        if page.status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Tests look at `asked` instead."""
