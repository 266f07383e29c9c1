"""A small web server for tests, which serves a dictionary of pages on its own thread and records the requests."""

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
    """The response to a path."""

    body: str | bytes = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers besides `Content-Length`. `Content-Type` is HTML by default."""
    delay: float = 0.0
    """Seconds before the response; cut short when the server closes."""


@dataclass(frozen=True)
class Request:
    """A request that the server received."""

    method: str
    host: str
    """The `Host` header."""
    path: str
    """The path with the query."""
    headers: Mapping[str, str]
    """The headers, with names in lower case."""
    body: str


SHOP = "http://shop.example"
"""The server's URL in the browser of these tests."""
NEVER = 3600.0
"""A `delay` that outlasts any test."""
short_timeouts = pytest.mark.parametrize(
    "timeouts", [IdleTimeouts(changing=0.4, loading=0.5, navigation=3)], ids=["short timeouts"]
)
"""For tests of pages that never become idle. Other tests use the default timeouts, since machines can be busy."""


class PagesServer:
    """A web server on 127.0.0.1. `pages` may be changed at any time; a path without a page is a 404.

    Usable as a context manager. `pages["/x"] = "text"` is short for a page with `<!doctype html>` before the text.
    """

    def __init__(self, pages: Mapping[str, Page | str] | None = None) -> None:
        self.pages: dict[str, Page | str] = {"/favicon.ico": Page(status=204), **(pages or {})}
        self.requests: list[Request] = []
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
        """`127.0.0.1:PORT`, as in the `hosts` of a browser."""
        return f"127.0.0.1:{self.port}"

    def paths(self, host: str | None = None) -> list[str]:
        """Return the requested paths in order, without the favicon; only those of `host` if given."""
        return [r.path for r in self.requests if r.path != "/favicon.ico" and host in (None, r.host)]

    def clear(self) -> None:
        """Remove pages and requests, and close the connections of delayed responses."""
        self.closing.set()
        self.closing = threading.Event()
        self.pages = {"/favicon.ico": Page(status=204)}
        self.requests.clear()

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
        """Ignore browsers that close the connection early."""


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
        owner.requests.append(Request(self.command, headers.get("host", ""), self.path, headers, body))
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
        """Log nothing; tests read `requests`."""
