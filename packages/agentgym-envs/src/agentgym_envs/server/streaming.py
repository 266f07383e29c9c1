"""Batch requests: all calls start immediately, and their results are streamed line by line in order of completion.

Lines that are ready at the same time form one chunk. Environments that run in this thread block it for a few
milliseconds at a time, so that other requests are handled in between. Calls continue if the client disconnects: a
repeated request with the same keys gets their results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.models import BatchLine, SessionReset, SessionStep
from agentgym_envs.server.session_types import CallRecord, Session
from agentgym_envs.server.sessions import Sessions
from agentgym_envs.server.wire import written

_SLICE = 0.004  # seconds
MEDIA_TYPE = "application/x-ndjson"


class Stream(Response):
    """A streaming response whose `chunks` are all generated even if the client disconnects."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        """Create a response from `chunks`."""
        super().__init__(status_code=207, media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; see ASGI."""
        connected = True

        async def send_if_connected(message: Message) -> None:
            nonlocal connected
            if connected:
                try:
                    await send(message)
                except OSError:  # raised by some ASGI servers after a disconnect; others ignore the message
                    connected = False

        start: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send_if_connected(start)
        async for chunk in self._chunks:
            await send_if_connected({"type": "http.response.body", "body": chunk, "more_body": True})
        await send_if_connected({"type": "http.response.body", "body": b""})


async def lines(sessions: Sessions, calls: Sequence[SessionReset | SessionStep]) -> AsyncIterator[bytes]:
    """Start `calls` and yield their result lines in chunks, in order of completion."""
    ready: list[bytes] = []
    event = asyncio.Event()
    seen: set[str] = set()
    pending = 0

    def on_result(index: int, session: Session, record: CallRecord) -> None:
        nonlocal pending
        pending -= 1
        ready.append(_line(index, session, record))
        event.set()

    until = time.perf_counter() + _SLICE
    for index, request in enumerate(calls):
        try:
            session = _unique_session(sessions, request.session, seen)
            record = sessions.begin(session, request.call(), request.key)
        except Refusal as refusal:
            ready.append(_error_line(index, request.session, refusal))
        else:
            if record.result is None:
                pending += 1
                record.listeners.append(partial(on_result, index, session, record))
            else:
                ready.append(_line(index, session, record))
        if time.perf_counter() > until:
            if ready:
                yield _drained(ready)
            await asyncio.sleep(0)
            until = time.perf_counter() + _SLICE
    while ready or pending:
        if not ready:
            event.clear()
            await event.wait()
        yield _drained(ready)


def _drained(ready: list[bytes]) -> bytes:
    """Join the lines and clear the list before sending, since more lines arrive meanwhile."""
    chunk = b"".join(ready)
    ready.clear()
    return chunk


def _unique_session(sessions: Sessions, session_id: str, seen: set[str]) -> Session:
    if session_id in seen:
        raise Refusal(409, "busy", "A batch may have only one call per session; send the others after its response.")
    seen.add(session_id)
    return sessions.get(session_id)


def _line(index: int, session: Session, record: CallRecord) -> bytes:
    result = record.result
    assert result is not None, "a line is written once there is a result"
    if isinstance(result.error, Refusal):
        return _error_line(index, session.id, result.error)
    try:
        outcome = session.written(result)
    except (ValueError, RecursionError):  # must not fail the other calls of the batch
        return _error_line(
            index, session.id, Refusal(500, "internal", "The environment's response can't be serialized as JSON.")
        )
    return b'{"index":%d,"session":"%b","status":200,"outcome":%b}\n' % (index, session.id.encode(), outcome)


def _error_line(index: int, session: str, refusal: Refusal) -> bytes:
    line: BatchLine = {"index": index, "session": session, "status": refusal.status, **refusal.body}
    return written(line) + b"\n"
