"""A test web server with the login forms of Magento, Postmill and GitLab, distinguished by host."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit


@dataclass
class LoginSite:
    """A site with a login form, its accounts and its sessions."""

    login: str
    check: str
    username: str
    password: str
    accounts: dict[str, str]
    redirects: bool = True
    """Whether visitors that aren't logged in are redirected to the form, instead of seeing it in place of each page."""
    form: bool = True
    sessions: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    """Method and path of each request."""


class LoginPages:
    """A web server on 127.0.0.1 for the given sites, by host. Usable as a context manager."""

    def __init__(self, sites: dict[str, LoginSite]) -> None:
        self.sites = sites
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.sites = sites  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> LoginPages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def site(self) -> LoginSite:
        return self.server.sites[self.headers["Host"]]  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/favicon.ico":
            return self._answer(404)
        site = self.site
        site.requests.append(f"GET {path}")
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get("session")
        if cookie is not None and cookie.value in site.sessions:
            return self._answer(200, f"<h1>Hello</h1><p>{cookie.value}</p>")
        if path == site.login or not site.redirects:
            return self._answer(200, self._form() if site.form else "<h1>Under construction</h1>")
        return self._answer(302, headers={"Location": site.login})

    def do_POST(self) -> None:
        site = self.site
        site.requests.append(f"POST {urlsplit(self.path).path}")
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        name, password = form[site.username][0], form[site.password][0]
        if form["token"] != ["hidden"] or site.accounts.get(name) != password:
            return self._answer(302, headers={"Location": site.login})
        session = f"{name.partition('@')[0]}-{len(site.sessions)}"
        site.sessions.add(session)
        return self._answer(302, headers={"Location": site.check, "Set-Cookie": f"session={session}; Path=/; HttpOnly"})

    def _form(self) -> str:
        site = self.site
        return f"""<form method=post action="{site.login}"><input type=hidden name=token value=hidden>
            <input name="{site.username}"><input type=password name="{site.password}"><button>Sign in</button></form>
            <form action=/search><input name=q><button>Search</button></form>"""

    def _answer(self, status: int, body: str = "", headers: dict[str, str] | None = None) -> None:
        content = body.encode()
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing; tests read `requests`."""
