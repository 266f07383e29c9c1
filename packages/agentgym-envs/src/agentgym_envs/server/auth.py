"""Who may call: the tokens of a server, and what a browser is made to send from pages that are none of ours.

`Guard` stands before the whole app, so that no route can forget it. Knows no worlds and no routes but `/healthz`,
which says whether the server is up to whoever asks.
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
_MOST_OF_TOKENS = 1 << 20  # bytes of a file
MAKE_A_TOKEN = "(umask 077; python -c 'import secrets; print(secrets.token_urlsafe())' > token)"
"""The shell command that makes a token file."""
OPEN_PATHS = frozenset({"/healthz"})
_CHALLENGES = 'Bearer realm="agentgym", Basic realm="agentgym"'
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^][:@/\\?#]+))(?::\d*)?")  # an address of IPv6, or a name; and a port


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens in the file at `path`, one a line; empty lines are passed over.

    Raises:
        ValueError: when the file can't be read, or others can read it, or a line of it is no token.
    """
    try:
        with path.open("rb") as file:
            mode, lines = os.fstat(file.fileno()).st_mode, file.read(_MOST_OF_TOKENS).splitlines()
    except OSError as error:
        raise ValueError(f"The token file {path} can't be read ({error.strerror}); make one: {MAKE_A_TOKEN}") from error
    if mode & 0o077:
        raise ValueError(f"Other users can open the token file {path}; make it yours alone: chmod 600 {path}")
    tokens = [line.strip() for line in lines if line.strip()]
    for token in tokens or [b""]:
        if len(token) < MIN_TOKEN_CHARS:
            raise ValueError(
                f"A token in {path} has {len(token)} characters and can be guessed; {MIN_TOKEN_CHARS} are the least. "
                f"Make one: {MAKE_A_TOKEN}"
            )
        if not all(0x21 <= byte <= 0x7E for byte in token):
            raise ValueError(
                f"A token in {path} has a space or a character beyond ASCII, which no header carries. "
                f"Make one: {MAKE_A_TOKEN}"
            )
    return tuple(token.decode("ascii") for token in tokens)


class Guard:
    """Lets pass who brings one of the tokens; without tokens, who calls this machine by its own name.

    The token comes as `Authorization: Bearer TOKEN`, or as the password of HTTP basic. A browser can be led to send
    requests here from any page: under a foreign name for this address (DNS rebinding), which the `Host` header tells
    when there are no tokens, or from another origin, which `Origin` tells. Both are refused.

    On `OPEN_PATHS` everybody passes; `request.state.stranger` is then true where no token was brought. `client_of`
    tells clients with different tokens apart.
    """

    def __init__(self, app: ASGIApp, *tokens: str) -> None:
        self._app = app
        self._clients = {token.encode(): hashlib.sha256(token.encode()).hexdigest() for token in tokens}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            client = self._client(_credentials(headers.get(b"authorization", b"")))
            stranger = bool(self._clients) and not client
            scope.setdefault("state", {}).update(stranger=stranger, client=client)
            refusal = self._refusal(headers, stranger and scope["path"] not in OPEN_PATHS)
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _client(self, token: bytes) -> str:
        """Who has this token; empty for nobody. Takes as long for each."""
        return "".join(client for known, client in self._clients.items() if hmac.compare_digest(token, known))

    def _refusal(self, headers: dict[bytes, bytes], stranger: bool) -> Refusal | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._clients and not is_loopback(_name(host)):
            return Refusal(403, "forbidden", f"{host!r} is no name of this machine; call it 127.0.0.1 or localhost.")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host.lower():
            return Refusal(403, "forbidden", "Pages of other origins may not call this server.")
        if stranger:
            said = "This server wants a token: Authorization: Bearer TOKEN, or HTTP basic with the token as password."
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


def client_of(request: Request) -> str:
    """What tells the client of a request from those with other tokens; empty where no token is asked for."""
    return getattr(request.state, "client", "")


def _credentials(authorization: bytes) -> bytes:
    """The token in a header; empty where there is none."""
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
    """The host in a `Host` header, without its port and the brackets of IPv6; empty for what is none."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1] or found[2]
