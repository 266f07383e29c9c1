"""Who may call: the token of a server, and what a browser is made to send from pages that are none of ours.

`Guard` stands before the whole app, so that no route can forget it. Knows no worlds and no routes but `/healthz`,
which says whether the server is up to whoever asks.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import re
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from agentgym_envs.server.errors import Refusal

MIN_TOKEN_CHARS = 16
MAKE_A_TOKEN = "(umask 077; python -c 'import secrets; print(secrets.token_urlsafe())' > token)"
"""The shell command that makes a token file."""
OPEN_PATHS = frozenset({"/healthz"})
_CHALLENGES = 'Bearer realm="agentgym", Basic realm="agentgym"'
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^][:@/\\?#]+))(?::\d*)?")  # an address of IPv6, or a name; and a port


def read_token(path: Path) -> str:
    """The token in the file at `path`, without the white space around it.

    Raises:
        ValueError: when the file can't be read, or others can read it, or what is in it is no token.
    """
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(4_096).strip()
    except OSError as error:
        raise ValueError(f"The token file {path} can't be read ({error.strerror}); make one: {MAKE_A_TOKEN}") from error
    if mode & 0o077:
        raise ValueError(f"Other users can open the token file {path}; make it yours alone: chmod 600 {path}")
    if len(content) < MIN_TOKEN_CHARS:
        raise ValueError(
            f"The token in {path} has {len(content)} characters and can be guessed; {MIN_TOKEN_CHARS} are the least. "
            f"Make one: {MAKE_A_TOKEN}"
        )
    if not all(0x21 <= byte <= 0x7E for byte in content):
        raise ValueError(
            f"The token in {path} has a space or a character beyond ASCII, which no header carries. "
            f"Make one: {MAKE_A_TOKEN}"
        )
    return content.decode("ascii")


class Guard:
    """Lets pass who brings the token; without a token, who calls this machine by its own name.

    The token comes as `Authorization: Bearer TOKEN`, or as the password of HTTP basic. A browser can be led to send
    requests here from any page: under a foreign name for this address (DNS rebinding), which the `Host` header tells
    when there is no token, or from another origin, which `Origin` tells. Both are refused.

    On `OPEN_PATHS` everybody passes; `request.state.stranger` is then true where the token was not there.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            stranger = self._token is not None and not _matches(headers.get(b"authorization", b""), self._token)
            scope.setdefault("state", {})["stranger"] = stranger
            refusal = self._refusal(headers, stranger and scope["path"] not in OPEN_PATHS)
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes], stranger: bool) -> Refusal | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self._token is None and not is_loopback(_name(host)):
            return Refusal(403, "forbidden", f"{host!r} is no name of this machine; call it 127.0.0.1 or localhost.")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host.lower():
            return Refusal(403, "forbidden", "Pages of other origins may not call this server.")
        if stranger:
            said = "This server wants its token: Authorization: Bearer TOKEN, or HTTP basic with the token as password."
            return Refusal(401, "unauthorized", said, {"WWW-Authenticate": _CHALLENGES})
        return None


def is_loopback(name: str) -> bool:
    """Whether `name` is `localhost` or an address by which a machine calls itself."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _matches(authorization: bytes, token: bytes) -> bool:
    scheme, _, credentials = authorization.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return hmac.compare_digest(credentials.strip(), token)
        case b"basic":
            try:
                _, _, password = base64.b64decode(credentials.strip(), validate=True).partition(b":")
            except binascii.Error:
                return False
            return hmac.compare_digest(password, token)
        case _:
            return False


def _name(host: str) -> str:
    """The host in a `Host` header, without its port and the brackets of IPv6; empty for what is none."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1] or found[2]
