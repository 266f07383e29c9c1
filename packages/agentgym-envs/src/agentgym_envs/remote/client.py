"""The HTTP client: server addresses, requests with retries, and kept-alive connections, on one asyncio loop.

It decides which failures to retry, and does not depend on sessions or environments. Calls that change an environment
must carry an idempotency key, since they may be sent repeatedly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import sniffio as sniffio  # httpx looks for it in every request: a fork meanwhile would leave the import locked

from agentgym_envs.remote.answers import SessionLost, refusal, unreachable

PAUSES = (0.1, 0.4, 1.6)
"""Backoff in seconds before each retry, with a jitter of 50 %."""
_AVOID_SECONDS = 10.0  # an unreachable server is used during this time only if all others are unreachable too
_CONNECT_TIMEOUT = 5.0  # seconds
_IDLE_CONNECTIONS = 4  # searching through more of them for each request costs more than opening one
_KEEPALIVE = 240.0  # seconds; `serve` keeps a connection a little longer


@dataclass(eq=False, slots=True)
class Server:
    """A server and its last known state."""

    url: str
    """`http://HOST:PORT` plus the path before `/v1`, if any; without a token."""
    headers: dict[str, str] = field(repr=False)
    sessions: int = 0
    """Number of sessions of this client."""
    load: int = 0
    """Number of sessions of all clients, as last reported."""
    away_until: float = 0.0
    """Time on the monotonic clock until which the server counts as unreachable."""

    @staticmethod
    def at(url: str, token: str | None) -> Server:
        """Create the server at `url`, which may contain the token as a password.

        Raises:
            ValueError: If `url` is no http or https URL, or the token is not printable ASCII.
        """
        try:
            parsed = httpx.URL(url.strip())
        except httpx.InvalidURL as error:
            raise ValueError(f"{url!r} is not a URL: {error}. Give one such as http://127.0.0.1:8000.") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"{url!r} is not an http or https URL. Give one such as http://127.0.0.1:8000.")
        token = parsed.password or parsed.username or token
        if token and not (token.isascii() and token.isprintable()):
            raise ValueError("The token must consist of printable ASCII characters, without line breaks.")
        bare = str(parsed.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")
        headers = {"Accept-Encoding": "identity"}
        return Server(bare, headers | ({"Authorization": f"Bearer {token}"} if token else {}))

    @property
    def away(self) -> bool:
        """Return whether the server was unreachable recently."""
        return time.monotonic() < self.away_until

    def missed(self) -> None:
        """Record that the server could not be reached."""
        self.away_until = time.monotonic() + _AVOID_SECONDS


class Client:
    """Connections to any number of servers, to be used on one asyncio loop. Proxy environment variables are ignored."""

    def __init__(self, *, timeout: float, pauses: Sequence[float] = PAUSES, tls: bool = True) -> None:
        """Create a client without connections.

        Args:
            timeout: Seconds without a received byte after which an attempt fails.
            pauses: Backoff in seconds before each retry.
            tls: Whether any server uses https.
        """
        self.pauses = tuple(pauses)
        self._jitter = Random()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, connect=min(_CONNECT_TIMEOUT, timeout), pool=None),
            # each pending batch holds a connection, so a limit would let slow environments block the others
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS, keepalive_expiry=_KEEPALIVE
            ),
            trust_env=False,
            verify=tls,  # loading the certificates takes longer than the rest of the client's startup
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def request(
        self, server: Server, method: str, path: str, body: Any = None, *, pauses: Sequence[float] | None = None
    ) -> httpx.Response:
        """Send a request, with a retry after each of `pauses` if the failure is transient.

        Raises:
            SessionLost: If the server stays unreachable, closing or full.
            Exception: The error that the server responded with; see `Refusal.error`.
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
        """Send a request without retries. Return the response with an unread body; the caller reads and closes it.

        Raises:
            httpx.HTTPError: If there is no response.
        """
        headers = server.headers | {"Content-Type": "application/json"}
        request = self._http.build_request("POST", server.url + path, content=body, headers=headers)
        return await self._http.send(request, stream=True)

    def jittered(self, pause: float, least: float = 0.0) -> float:
        """Return `least` plus `pause` with a jitter of 50 %, so that clients don't retry simultaneously."""
        return least + pause * self._jitter.uniform(0.5, 1.5)

    def missed(self, server: Server, error: httpx.HTTPError) -> SessionLost:
        """Record that a server did not respond, and return the error to raise."""
        server.missed()
        return unreachable(server.url, error)


def split_urls(urls: str | Sequence[str]) -> list[str]:
    """Split comma-separated URLs, in one string or several.

    Raises:
        ValueError: If there is no URL.
    """
    texts = [urls] if isinstance(urls, str) else urls
    found = [url.strip() for text in texts for url in text.split(",") if url.strip()]
    if not found:
        raise ValueError("No server URL was given; give one such as url=http://127.0.0.1:8000.")
    return list(dict.fromkeys(found))
