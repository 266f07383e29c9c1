"""A connection, as uvicorn has it, on which heads end. Knows no paths and no bodies.

The parser keeps whatever comes before the end of a head, however much that is, and nobody has shown a token by then.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 65_536
"""Bytes that may come, in pieces, without the end of a head or a piece of a body among them."""


class Connection(HttpToolsProtocol):
    """Hangs up with 400 where a head, or what follows a chunked body, is longer than `MAX_HEAD`."""

    _unfinished = 0

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The head of a request has at most {MAX_HEAD:,} bytes here.")

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self._unfinished = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body came."""
        self._unfinished = 0
        super().on_body(body)
