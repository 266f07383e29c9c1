"""A connection, as uvicorn has it, with limits on what a client can hold without having shown a token: the length of a
head, the time for heads and bodies, and the number of such connections. Knows no paths and no content.
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
"""Bytes that may come, in pieces, without the end of a head or a piece of a body among them."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the connections of a server may take, and those of them whose client isn't known yet, oldest first."""

    head: float = 10.0
    """Seconds until a head is complete, from the connection or, on a kept one, from its first byte. A client without a
    token has as long for its next request."""
    body: float = 60.0
    """Seconds until a body is complete, from the end of its head."""
    strangers: int = 1_024
    """Connections at a time that have brought no request with a token. One more ends the oldest."""
    waiting: dict[Connection, None] = field(default_factory=dict["Connection", None], repr=False)

    def add(self, connection: Connection) -> None:
        """One more that isn't known."""
        self.waiting[connection] = None
        if len(self.waiting) > self.strangers:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.refuse(503, "This server has too many connections without a token; call again.")

    def remove(self, connection: Connection) -> None:
        """The client is known, or is being asked for its token, or is gone."""
        self.waiting.pop(connection, None)


class Connection(HttpToolsProtocol):
    """Hangs up with 400 where a head, or what follows a chunked body, is longer than `MAX_HEAD`, with 408 where a head
    or a body takes longer than `Admission` allows, and with 503 where too many clients are unknown.

    An `Upgrade` that is asked for, such as to WebSocket, is passed over, as HTTP has it.
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
        self._known = False
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came."""
        super().connection_made(transport)
        self._admission.add(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It went."""
        self._admission.remove(self)
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came. An empty line between requests begins none (RFC 9112, 2.2)."""
        if self._deadline is None and not data.strip(b"\r\n"):
            return
        self._unfinished += len(data)
        if self._deadline is None:
            self._expect_head()
        super().data_received(data)
        if self._unfinished > MAX_HEAD:
            self.refuse(400, f"The head of a request has at most {MAX_HEAD:,} bytes here.")

    def on_message_begin(self) -> None:
        """A head begins, maybe behind another request."""
        self._unset_keepalive_if_required()
        if self._deadline is None:
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self._unfinished = 0
        self._admission.remove(self)
        self._in_head = False
        self._expect_within(self._admission.body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body came."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete; it may have been answered before its body was."""
        self._expect_nothing()
        if bool(self.cycle) and self.cycle.response_complete and not self.transport.is_closing():
            if self._known:
                self._keep_alive()
            else:
                self._expect_head()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request is answered."""
        cycle = self.cycle  # the last one, which may still wait behind that which is answered
        self._known = self._known or not cycle.scope.get("state", {}).get("stranger", True)
        super().on_response_complete()
        if cycle.response_complete and not self._known and not self.transport.is_closing():
            self._admission.add(self)
            if self._deadline is None:
                self._expect_head()

    def refuse(self, status: int, said: str) -> None:
        """Hang up, and say why where no other answer is on its way."""
        if self.transport.is_closing():
            return
        if self._answering or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        phrase = http.HTTPStatus(status).phrase
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain\r\ncontent-length: {len(said)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n{said}".encode())
        self.transport.close()

    @property
    def _answering(self) -> bool:
        """Whether an answer has begun that isn't complete."""
        return bool(self.cycle) and self.cycle.response_started and not self.cycle.response_complete

    def _keep_alive(self) -> None:
        """Wait for a known client as after an answer, which the body behind it has cut short."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _expect_head(self) -> None:
        self._in_head = True
        self._expect_within(self._admission.head)

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self._overdue, seconds)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _overdue(self, seconds: float) -> None:
        """The head or body didn't come in time; unless it isn't read, because another request comes first."""
        self._deadline = None
        playing = bool(self.cycle) and not self.cycle.response_complete
        if self.flow.read_paused or (self._in_head and playing):
            self._expect_within(seconds)
        else:
            self.refuse(408, f"A request's {'head' if self._in_head else 'body'} has {seconds:g} seconds here.")

    def _unsupported_upgrade_warning(self) -> None:
        """Uvicorn would advise to install what this server doesn't use."""
