"""HTTP to our servers from one asyncio loop: addresses, one request with its retries, connections that are kept.

Knows what a call is worth repeating for, and nothing of sessions or worlds. Whoever repeats a call that plays sends it
with its idempotency key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from agentgym_envs.remote.answers import SessionLost, refusal, unreachable

PAUSES = (0.1, 0.4, 1.6)
"""Seconds before each new attempt, give or take a half."""
_AWAY = 10.0  # seconds for which a server that could not be reached is only asked when all others are gone too
_CONNECT = 5.0
_IDLE = 4  # connections: looking through more of them for each request costs more than opening one
_KEPT = 240.0  # seconds; `serve` keeps a connection for a little longer


@dataclass(eq=False, slots=True)
class Server:
    """One of the servers, and what is known of it."""

    url: str
    """`http://HOST:PORT` with the path before `/v1`, if any; without a token."""
    headers: dict[str, str] = field(repr=False)
    sessions: int = 0
    """How many are ours."""
    load: int = 0
    """How many there are, of all clients, as it said last."""
    away_until: float = 0.0
    """On the monotonic clock."""

    @staticmethod
    def at(url: str, token: str | None) -> Server:
        """The server at `url`, which may carry its token as a password.

        Raises:
            ValueError: when it is no URL of http or https.
        """
        try:
            parsed = httpx.URL(url.strip())
        except httpx.InvalidURL as error:
            raise ValueError(f"The server {url!r} is no URL: {error}. It looks like http://127.0.0.1:8000.") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"The server {url!r} is no URL of http or https, such as http://127.0.0.1:8000.")
        token = parsed.password or parsed.username or token
        if token and not (token.isascii() and token.isprintable()):
            raise ValueError("A token has the letters, digits and signs of ASCII only, and no line break.")
        bare = str(parsed.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")
        headers = {"Accept-Encoding": "identity"}
        return Server(bare, headers | ({"Authorization": f"Bearer {token}"} if token else {}))

    @property
    def away(self) -> bool:
        """Whether it could not be reached a moment ago."""
        return time.monotonic() < self.away_until

    def missed(self) -> None:
        """It could not be reached."""
        self.away_until = time.monotonic() + _AWAY


class Client:
    """Connections to any servers; all of it happens on one loop. Proxy settings of the environment aren't followed."""

    def __init__(self, *, timeout: float, pauses: Sequence[float] = PAUSES, tls: bool = True) -> None:
        """`timeout`: seconds without a byte of an answer after which an attempt has failed; `tls`: whether there are
        servers of https.
        """
        self.pauses = tuple(pauses)
        self._jitter = Random()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, connect=min(_CONNECT, timeout), pool=None),
            # every batch on its way holds a connection: a limit would let a slow world hold up the others
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_IDLE, keepalive_expiry=_KEPT),
            trust_env=False,
            verify=tls,  # to load the certificates takes longer than all else that a client does at its beginning
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def request(
        self, server: Server, method: str, path: str, body: Any = None, *, pauses: Sequence[float] | None = None
    ) -> httpx.Response:
        """The answer to a request; what passes by itself is waited for, before each of `pauses`.

        Raises:
            SessionLost: when the server can't be reached, is closing or full, and goes on to be.
            Exception: what the server's refusal means; see `Refusal.error`.
        """
        for pause in (*(self.pauses if pauses is None else pauses), None):
            wait = 0.0
            try:
                answer = await self._http.request(method, server.url + path, json=body, headers=server.headers)
            except httpx.HTTPError as error:
                fault = self.missed(server, error)
            else:
                if answer.is_success:
                    return answer
                refused = refusal(answer.status_code, answer.content, answer.headers)
                fault, wait = refused.error(server.url), refused.retry_after
                if not refused.transient:
                    raise fault
            if pause is None:
                raise fault
            await asyncio.sleep(self.jittered(pause, wait))
        raise AssertionError("the last pause is None")

    async def stream(self, server: Server, path: str, body: bytes) -> httpx.Response:
        """The beginning of an answer, to be read and closed. One attempt.

        Raises:
            httpx.HTTPError: when there is none.
        """
        headers = server.headers | {"Content-Type": "application/json"}
        request = self._http.build_request("POST", server.url + path, content=body, headers=headers)
        return await self._http.send(request, stream=True)

    def jittered(self, pause: float, least: float = 0.0) -> float:
        """`pause` give or take a half, so that clients don't come back all at once; `least` is added to it."""
        return least + pause * self._jitter.uniform(0.5, 1.5)

    def missed(self, server: Server, error: httpx.HTTPError) -> SessionLost:
        """The fault of a server that gave no answer, which is noted."""
        server.missed()
        return unreachable(server.url, error)


def split_urls(urls: str | Sequence[str]) -> list[str]:
    """The URLs in one text with commas, or in several.

    Raises:
        ValueError: when there is none.
    """
    texts = [urls] if isinstance(urls, str) else urls
    found = [url.strip() for text in texts for url in text.split(",") if url.strip()]
    if not found:
        raise ValueError("No server was named; give its URL, such as url=http://127.0.0.1:8000.")
    return list(dict.fromkeys(found))
