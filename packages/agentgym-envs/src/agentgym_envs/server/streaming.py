"""Many calls in one: each begins at once, and their results go out as they come, line by line.

Lines that are ready together go out in one chunk. Worlds that play in this thread get it for some milliseconds at a
time, so that others are heard in between. Calls go on when the client leaves: a repeat under the same keys gets their
results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.models import Line, ResetOf, StepOf
from agentgym_envs.server.session_types import Play, Session
from agentgym_envs.server.sessions import Sessions
from agentgym_envs.server.wire import written

_SLICE = 0.004  # seconds
MEDIA_TYPE = "application/x-ndjson"


class Stream(Response):
    """An answer in chunks, which are made to the end whether or not the client stays."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        """An answer of these `chunks`."""
        super().__init__(status_code=207, media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        stays = True

        async def tell(message: Message) -> None:
            nonlocal stays
            if stays:
                try:
                    await send(message)
                except OSError:  # some servers pass over what is sent to who has left, others raise it
                    stays = False

        await tell({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await tell({"type": "http.response.body", "body": chunk, "more_body": True})
        await tell({"type": "http.response.body", "body": b""})


async def lines(sessions: Sessions, calls: Sequence[ResetOf | StepOf]) -> AsyncIterator[bytes]:
    """The lines that `calls` come to, in chunks, in order of completion."""
    ready: list[bytes] = []
    arrived = asyncio.Event()
    seen: set[str] = set()
    left = 0

    def answered(index: int, session: Session, play: Play) -> None:
        nonlocal left
        left -= 1
        ready.append(_line(index, session, play))
        arrived.set()

    until = time.perf_counter() + _SLICE
    for index, wanted in enumerate(calls):
        try:
            session = _claimed(sessions, wanted.session, seen)
            play = sessions.begin(session, wanted.call(), wanted.key)
        except Refusal as refusal:
            ready.append(_refused(index, wanted.session, refusal))
        else:
            if play.result is None:
                left += 1
                play.listeners.append(partial(answered, index, session, play))
            else:
                ready.append(_line(index, session, play))
        if time.perf_counter() > until:
            if ready:
                yield _taken(ready)
            await asyncio.sleep(0)
            until = time.perf_counter() + _SLICE
    while ready or left:
        if not ready:
            arrived.clear()
            await arrived.wait()
        yield _taken(ready)


def _taken(ready: list[bytes]) -> bytes:
    """All lines, of which none is left: while they are sent, others come."""
    chunk = b"".join(ready)
    ready.clear()
    return chunk


def _claimed(sessions: Sessions, wanted: str, seen: set[str]) -> Session:
    if wanted in seen:
        raise Refusal(409, "busy", "A batch has one call for each session; send the others when it is answered.")
    seen.add(wanted)
    return sessions.get(wanted)


def _line(index: int, session: Session, play: Play) -> bytes:
    result = play.result
    assert result is not None, "it is asked for when there is one"
    if isinstance(result.error, Refusal):
        return _refused(index, session.id, result.error)
    try:
        outcome = session.written(result)
    except (ValueError, RecursionError):  # no other call of the batch can help it
        return _refused(
            index, session.id, Refusal(500, "internal", "What the world answered can't be written as JSON.")
        )
    return b'{"index":%d,"session":"%b","status":200,"outcome":%b}\n' % (index, session.id.encode(), outcome)


def _refused(index: int, session: str, refusal: Refusal) -> bytes:
    line: Line = {"index": index, "session": session, "status": refusal.status, **refusal.body}
    return written(line) + b"\n"
