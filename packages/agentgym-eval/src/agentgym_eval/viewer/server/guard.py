"""Who may ask, and what a browser may do with an answer.

A page from elsewhere can make a browser ask 127.0.0.1 under a name of its own (DNS rebinding), so names are checked;
and even if text of a world became markup, the policy lets nothing run or load that isn't the viewer's own file.
"""

from __future__ import annotations

import ipaddress
import socket

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)

STRICT = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""Of a page that lies in a run, which anybody may have written: it may look as it likes, and do nothing."""


class Guard:
    """ASGI middleware: refuses foreign `Host` headers, and posts from other sites; adds the headers of safety."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        """`host` is the address the server is bound to."""
        self._app = app
        self._names = {"localhost", host.lower()}
        if not is_loopback(host):
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._is_ours(headers.get("host", "")):
            answer = PlainTextResponse("This viewer isn't called that; open the address that it printed.", 403)
            await answer(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD") and not _same_origin(headers):
            await PlainTextResponse("Only the viewer's own pages may post to it.", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, lambda message: _send(message, send))

    def _is_ours(self, host: str) -> bool:
        """An address in figures is never a name that somebody else can give to this machine."""
        name = host.lower().rpartition(":")[0] if ":" in host.rpartition("]")[2] else host.lower()
        return name in self._names or _is_address(name.strip("[]"))


def _same_origin(headers: Headers) -> bool:
    return headers.get("origin", "").partition("://")[2] == headers.get("host")


async def _send(message: Message, send: Send) -> None:
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        headers.setdefault("content-security-policy", POLICY)  # a file of a run comes under a stricter one
        headers["x-content-type-options"] = "nosniff"
        headers["referrer-policy"] = "same-origin"  # with less, browsers don't say from where a form is posted
        headers.setdefault("cache-control", "no-cache")
    await send(message)


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach `host`."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
