"""Refuses bodies that are too large before they are read, or as soon as they have become so."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgym_envs.server.errors import Refusal

_MOST_DIGITS = 20  # of 64 bits; Python reads no more than some thousand


class BodyLimit:
    """ASGI: no request has a body of more than `most` bytes, whatever its `Content-Length` says."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if said.isdigit() and (len(said) > _MOST_DIGITS or int(said) > self._most):
            await self._refusal().response()(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> Refusal:
        return Refusal(413, "too_large", f"A body has at most {self._most:,} bytes here; send less, or several.")
