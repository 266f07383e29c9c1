"""A limit on the size of request bodies, checked before and while a body is read."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgym_envs.server.errors import Refusal

_MAX_DIGITS = 20  # of a 64-bit number; int() refuses strings of more than 4,300 digits


class BodyLimit:
    """ASGI middleware that refuses bodies of more than `limit` bytes, independently of `Content-Length`."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; see ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and (len(length) > _MAX_DIGITS or int(length) > self._limit):
            await self._refusal().response()(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> Refusal:
        return Refusal(
            413, "too_large", f"A request body may have at most {self._limit:,} bytes; split it into several requests."
        )
