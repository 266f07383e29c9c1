"""Authentication: access tokens, and protection against requests that foreign web pages make a browser send.

`Guard` wraps the whole app, so that no route can omit it. The only route it treats differently is `/healthz`, which
reports to unauthenticated clients whether the server is up.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import re
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentgym_envs.server.errors import Refusal

MIN_TOKEN_CHARS = 16
_MAX_TOKEN_FILE = 1 << 20  # bytes
MAKE_A_TOKEN = "(umask 077; python -c 'import secrets; print(secrets.token_urlsafe())' > token)"
"""The shell command that makes a token file."""
OPEN_PATHS = frozenset({"/healthz"})
_CHALLENGES = 'Bearer realm="agentgym", Basic realm="agentgym"'
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^][:@/\\?#]+))(?::\d*)?")  # an IPv6 address or a name, then a port


def read_tokens(path: Path) -> tuple[str, ...]:
    """Read the tokens in the file at `path`, one per line. Empty lines are ignored.

    Raises:
        ValueError: If the file can't be read, other users can access it, or a line is no valid token.
    """
    try:
        with path.open("rb") as file:
            mode, lines = os.fstat(file.fileno()).st_mode, file.read(_MAX_TOKEN_FILE).splitlines()
    except OSError as error:
        raise ValueError(
            f"The token file {path} can't be read ({error.strerror}); create one: {MAKE_A_TOKEN}"
        ) from error
    if mode & 0o077:
        raise ValueError(f"Other users can access the token file {path}; make it private: chmod 600 {path}")
    tokens = [line.strip() for line in lines if line.strip()]
    for token in tokens or [b""]:
        if len(token) < MIN_TOKEN_CHARS:
            raise ValueError(
                f"A token in {path} has {len(token)} characters and could be guessed; the minimum is "
                f"{MIN_TOKEN_CHARS}. Create one: {MAKE_A_TOKEN}"
            )
        if not all(0x21 <= byte <= 0x7E for byte in token):
            raise ValueError(
                f"A token in {path} contains a space or a non-ASCII character, which HTTP headers can't carry. "
                f"Create one: {MAKE_A_TOKEN}"
            )
    return tuple(token.decode("ascii") for token in tokens)


class Guard:
    """ASGI middleware that admits requests with a valid token or, on servers without tokens, to a loopback host name.

    The token is sent as `Authorization: Bearer TOKEN`, or as the password of HTTP basic authentication. Any web page
    can make a browser send requests to this server: under a foreign name for its address (DNS rebinding), which the
    `Host` header reveals if there are no tokens, or from another origin, which the `Origin` header reveals. Both are
    refused.

    `OPEN_PATHS` admit all clients; `request.state.unauthenticated` is true there for requests without a token.
    `client_of` distinguishes clients with different tokens.
    """

    def __init__(self, app: ASGIApp, *tokens: str) -> None:
        self._app = app
        self._clients = {token.encode(): hashlib.sha256(token.encode()).hexdigest() for token in tokens}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; see ASGI."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            client = self._client(_credentials(headers.get(b"authorization", b"")))
            unauthenticated = bool(self._clients) and not client
            scope.setdefault("state", {}).update(unauthenticated=unauthenticated, client=client)
            refusal = self._refusal(headers, unauthenticated and scope["path"] not in OPEN_PATHS)
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _client(self, token: bytes) -> str:
        """Return the client with this token, or an empty string. Compares in constant time."""
        return "".join(client for known, client in self._clients.items() if hmac.compare_digest(token, known))

    def _refusal(self, headers: dict[bytes, bytes], unauthenticated: bool) -> Refusal | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._clients and not is_loopback(_name(host)):
            return Refusal(
                403, "forbidden", f"The Host header {host!r} is no loopback name; use 127.0.0.1 or localhost."
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host.lower():
            return Refusal(403, "forbidden", "Web pages of other origins may not send requests to this server.")
        if unauthenticated:
            message = (
                "A token is required: send Authorization: Bearer TOKEN, or use HTTP basic with the token as password."
            )
            return Refusal(401, "unauthorized", message, {"WWW-Authenticate": _CHALLENGES})
        return None


def is_loopback(name: str) -> bool:
    """Return whether `name` is `localhost` or a loopback address."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def client_of(request: Request) -> str:
    """Return an id of the request's token, or an empty string on servers without tokens."""
    return getattr(request.state, "client", "")


def _credentials(authorization: bytes) -> bytes:
    """Return the token in an `Authorization` header, or an empty string."""
    scheme, _, credentials = authorization.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return credentials.strip()
        case b"basic":
            try:
                return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                return b""
        case _:
            return b""


def _name(host: str) -> str:
    """Return the host in a `Host` header without port and IPv6 brackets, or an empty string if it is malformed."""
    match = _HOST.fullmatch(host)
    return "" if match is None else match[1] or match[2]
