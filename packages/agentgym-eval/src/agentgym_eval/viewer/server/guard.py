"""Request filtering and security headers.

A foreign page can make a browser send requests to 127.0.0.1 under a host name of its own (DNS rebinding), so `Host`
headers are checked. If text of an environment ever became markup, the content security policy would still allow only
the viewer's own files to run or load.
"""

from __future__ import annotations

import ipaddress
import socket

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)

STRICT_CSP = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""For HTML files of a run, which can come from an untrusted author: styles are allowed, scripts are not."""


class Guard:
    """ASGI middleware that refuses foreign `Host` headers and cross-origin posts, and adds security headers."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        """Wrap `app`; `host` is the address the server is bound to."""
        self._app = app
        self._names = {"localhost", host.lower()}
        if not is_loopback(host):
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it to the wrapped app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._is_allowed_host(headers.get("host", "")):
            message = "This host name is not the viewer's; open the address that the viewer printed."
            await PlainTextResponse(message, 403)(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD") and not _same_origin(headers):
            await PlainTextResponse("Only the viewer's own pages may post to it.", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, lambda message: _send(message, send))

    def _is_allowed_host(self, host: str) -> bool:
        """Return whether `host` is a known name or an IP address, which DNS rebinding can't use."""
        name = host.lower().rpartition(":")[0] if ":" in host.rpartition("]")[2] else host.lower()
        return name in self._names or _is_address(name.strip("[]"))


def _same_origin(headers: Headers) -> bool:
    return headers.get("origin", "").partition("://")[2] == headers.get("host")


async def _send(message: Message, send: Send) -> None:
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        headers.setdefault("content-security-policy", CSP)  # files of a run set a stricter one
        headers["x-content-type-options"] = "nosniff"
        headers["referrer-policy"] = "same-origin"  # with a stricter value, browsers omit the origin of a posted form
        headers.setdefault("cache-control", "no-cache")
    await send(message)


def is_loopback(host: str) -> bool:
    """Return whether `host` is reachable from this machine only."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
