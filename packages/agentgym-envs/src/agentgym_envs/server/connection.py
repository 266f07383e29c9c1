"""A uvicorn connection with limits for clients that have not shown a token: the length of a head, the time for heads
and bodies, and the number of such connections. It does not depend on paths or contents.
"""

from __future__ import annotations

import asyncio
import http
from dataclasses import dataclass, field
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_HEAD = 65_536
"""Maximum number of bytes received without completing a head or a piece of a body."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Connection limits of a server, and the connections of unauthenticated clients, oldest first."""

    head: float = 10.0
    """Seconds within which a head must be complete, from the connection or, on a kept-alive one, from its first byte.
    A client without a token has as long for its next request."""
    body: float = 60.0
    """Seconds within which a body must be complete, from the end of its head."""
    max_unauthenticated: int = 1_024
    """Maximum number of connections without an authenticated request. One more closes the oldest."""
    waiting: dict[Connection, None] = field(default_factory=dict["Connection", None], repr=False)

    def add(self, connection: Connection) -> None:
        """Add a connection of an unauthenticated client."""
        self.waiting[connection] = None
        if len(self.waiting) > self.max_unauthenticated:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.refuse(503, "This server has too many unauthenticated connections; retry.")

    def remove(self, connection: Connection) -> None:
        """Remove a connection whose client is authenticated, is being authenticated, or is gone."""
        self.waiting.pop(connection, None)


class Connection(HttpToolsProtocol):
    """A connection that closes with 400 if a head, or the trailer of a chunked body, is longer than `MAX_HEAD`, with
    408 if a head or a body takes longer than `Admission` allows, and with 503 if too many clients are unauthenticated.

    `Upgrade` requests, such as to WebSocket, are ignored, as HTTP allows.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        admission: Admission | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._admission = admission or Admission()
        self._unfinished = 0
        self._authenticated = False
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Handle a new connection."""
        super().connection_made(transport)
        self._admission.add(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._admission.remove(self)
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. Empty lines between requests are ignored (RFC 9112, section 2.2)."""
        if self._deadline is None and not data.strip(b"\r\n"):
            return
        self._unfinished += len(data)
        if self._deadline is None:
            self._expect_head()
        super().data_received(data)
        if self._unfinished > MAX_HEAD:
            self.refuse(400, f"The head of a request may have at most {MAX_HEAD:,} bytes.")

    def on_message_begin(self) -> None:
        """Handle the start of a head, possibly of a pipelined request."""
        self._unset_keepalive_if_required()
        if self._deadline is None:
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Handle the end of a head."""
        self._unfinished = 0
        self._admission.remove(self)
        self._in_head = False
        self._set_deadline(self._admission.body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Handle a piece of a body."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request, whose response may have been complete before its body."""
        self._cancel_deadline()
        if bool(self.cycle) and self.cycle.response_complete and not self.transport.is_closing():
            if self._authenticated:
                self._keep_alive()
            else:
                self._expect_head()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Handle the end of a response."""
        cycle = self.cycle  # of the last request, which may be queued behind the one that was responded to
        self._authenticated = self._authenticated or not cycle.scope.get("state", {}).get("unauthenticated", True)
        super().on_response_complete()
        if cycle.response_complete and not self._authenticated and not self.transport.is_closing():
            self._admission.add(self)
            if self._deadline is None:
                self._expect_head()

    def refuse(self, status: int, message: str) -> None:
        """Close the connection, with an error response unless another response is being sent."""
        if self.transport.is_closing():
            return
        if self._responding or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        phrase = http.HTTPStatus(status).phrase
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain\r\ncontent-length: {len(message)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n{message}".encode())
        self.transport.close()

    @property
    def _responding(self) -> bool:
        """Return whether a response has started and is incomplete."""
        return bool(self.cycle) and self.cycle.response_started and not self.cycle.response_complete

    def _keep_alive(self) -> None:
        """Restart the keep-alive timer of an authenticated client, which the end of the body cancelled."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _expect_head(self) -> None:
        self._in_head = True
        self._set_deadline(self._admission.head)

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._overdue, seconds)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _overdue(self, seconds: float) -> None:
        """Refuse a late head or body. Extend the deadline if reading is paused or another request is pending."""
        self._deadline = None
        busy = bool(self.cycle) and not self.cycle.response_complete
        if self.flow.read_paused or (self._in_head and busy):
            self._set_deadline(seconds)
        else:
            part = "head" if self._in_head else "body"
            self.refuse(408, f"The {part} of a request must be complete within {seconds:g} seconds.")

    def _unsupported_upgrade_warning(self) -> None:
        """Suppress uvicorn's advice to install a WebSocket library."""
