"""What comes over a connection before there is a request, and who may hold one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from agentgym_envs.server.auth import Guard
from agentgym_envs.server.connection import MAX_HEAD, Admission, Connection
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

TOKEN = "correct-horse-battery-staple"
LOCAL = b"Host: 127.0.0.1\r\n"
KNOWN = LOCAL + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
REQUEST = b"POST / HTTP/1.1\r\nHost: here\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d bytes." % size})


Opened = Callable[[], Any]


@asynccontextmanager
async def listening(app: ASGIApp, admission: Admission) -> AsyncGenerator[Opened]:
    """A server of `app`; what it yields opens a connection to it."""
    config, state = uvicorn.Config(app, http=Connection, ws="none", log_config=None), ServerState()
    config.load()
    loop = asyncio.get_running_loop()

    def accept() -> Connection:
        return Connection(config, state, {}, admission=admission)

    async with await loop.create_server(accept, "127.0.0.1", 0) as server:
        yield lambda: asyncio.open_connection(*server.sockets[0].getsockname())
        for connection in list(state.connections):
            connection.transport.abort()  # type: ignore[union-attr]


def answer(*pieces: bytes, app: ASGIApp = app, admission: Admission | None = None) -> bytes:
    """All that is answered to what comes in `pieces`, before the server hangs up."""

    async def ask() -> bytes:
        async with listening(app, admission or Admission()) as opened:
            reader, writer = await opened()
            said = bytearray()
            with suppress(ConnectionError):  # the server has hung up while there was more to come
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                while more := await reader.read(65_536):
                    said += more
            writer.close()
            return bytes(said)

    return asyncio.run(ask())


@pytest.mark.parametrize("before", [b"POST /", REQUEST + b"Long: ", REQUEST + b"Short: a\r\n" * 4_000])
def test_no_head_is_endless(before: bytes) -> None:
    answered = answer(before, b"a" * (MAX_HEAD + 1 - len(before)))
    assert answered.startswith(b"HTTP/1.1 400 ")
    assert b"65,536 bytes" in answered


def test_what_follows_a_body_is_not_endless_either() -> None:
    chunked = REQUEST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nTrailer: "
    assert b"200 OK" not in answer(chunked, *[b"a" * 1_000] * 2_000)


def test_a_body_is_as_long_as_it_is() -> None:
    sizes = b"Connection: close\r\nContent-Length: 200000\r\n\r\n"
    assert b"200000 bytes." in answer(REQUEST, sizes, *[b"a" * 1_000] * 200)
    chunked = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"20000 bytes." in answer(REQUEST, chunked, *[b"1\r\na\r\n" * 100] * 200, b"0\r\n\r\n")


@pytest.mark.parametrize("begun", [b"", b"POST /", REQUEST + b"Long: ", b"\r\n"])
def test_a_head_must_come_in_time(begun: bytes) -> None:
    answered = answer(begun, admission=Admission(head=0.01))
    assert answered.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert answered.endswith(b"The head of a request must be complete within 0.01 seconds.")


@pytest.mark.parametrize("begun", [b"Content-Length: 10\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"])
def test_a_body_must_come_in_time(begun: bytes) -> None:
    answered = answer(REQUEST + begun, admission=Admission(body=0.01))
    assert answered.startswith(b"HTTP/1.1 408 ")
    assert answered.endswith(b"The body of a request must be complete within 0.01 seconds.")


@pytest.mark.long
@pytest.mark.parametrize("left", [b"", b"a", b"a" * 9, b"a" * 9 + b"POST"])
def test_a_client_without_a_token_is_let_go_of_soon_after_its_answer(left: bytes) -> None:
    head = b"POST / HTTP/1.1\r\n" + LOCAL + b"Content-Length: 9\r\n\r\n"
    admission, guard = Admission(body=0.01), Guard(app, TOKEN)

    async def hurried(scope: Scope, receive: Receive, send: Send) -> None:
        # Of the next request only: a busy machine may take longer to bring the first.
        object.__setattr__(admission, "head", 0.01)
        await guard(scope, receive, send)

    answered = answer(head, left, app=hurried, admission=admission)
    assert answered.startswith(b"HTTP/1.1 401 ")


def test_too_many_clients_without_a_token_lose_the_oldest_connection() -> None:
    admission = Admission(strangers=2)

    async def scenario() -> None:
        async with listening(Guard(app, TOKEN), admission) as opened:
            kept = await opened()  # brings its token, and is idle from then on
            kept[1].write(b"GET / HTTP/1.1\r\n" + KNOWN + b"\r\n")
            assert (await kept[0].readuntil(b"0 bytes.\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            refused = await opened()
            refused[1].write(b"GET / HTTP/1.1\r\n" + LOCAL + b"\r\n")
            assert (await refused[0].readuntil(b"}}")).startswith(b"HTTP/1.1 401 ")
            half = [await opened() for _ in range(2)]
            for _, writer in half:
                writer.write(b"GET / HTTP/1.1\r\nLong: ")
            assert (await refused[0].read()).startswith(b"HTTP/1.1 503 ")
            last = await opened()
            assert b"too many unauthenticated connections" in await half[0][0].read()
            for reader, writer in (last, kept):
                writer.write(b"GET / HTTP/1.1\r\n" + KNOWN + b"\r\n")
                assert (await reader.readuntil(b"0 bytes.\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert len(admission.waiting) == 1
            for _, writer in (kept, refused, *half, last):
                writer.close()

    asyncio.run(scenario())


def test_requests_in_one_piece_need_their_token_all_the_same() -> None:
    admission = Admission()

    async def scenario() -> None:
        async with listening(Guard(app, TOKEN), admission) as opened:
            reader, writer = await opened()
            writer.write((b"GET / HTTP/1.1\r\n" + LOCAL + b"\r\n") * 3)
            for _ in range(3):
                assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 401 ")
            assert len(admission.waiting) == 1
            writer.close()

    asyncio.run(scenario())


class Timer:
    """A call that is due when a test says so."""

    def __init__(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.seconds, self.cancelled = seconds, False
        self.fire = lambda: call(*arguments)

    def cancel(self) -> None:
        self.cancelled = True


class Hand:
    """The running loop, with timers that a test fires by hand."""

    def __init__(self) -> None:
        self.timers = list[Timer]()

    def call_later(self, *due: Any) -> Timer:
        self.timers.append(Timer(*due))
        return self.timers[-1]

    def create_task(self, coroutine: Any) -> Any:
        return asyncio.get_running_loop().create_task(coroutine)

    @property
    def due(self) -> list[float]:
        return [timer.seconds for timer in self.timers if not timer.cancelled]


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    resume_reading = pause_reading


def test_who_is_at_work_is_not_hurried() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["stranger"] = False
        begun.set()
        await go_on.wait()
        await app(scope, receive, send)

    async def scenario() -> None:
        config, hand, wire = uvicorn.Config(slow, log_config=None, timeout_keep_alive=300), Hand(), Wire()
        config.load()
        connection = Connection(config, ServerState(), {}, hand)  # type: ignore[arg-type]
        connection.connection_made(wire)
        assert hand.due == [10.0]
        connection.data_received(REQUEST + b"Content-Length: 1\r\n\r\n")
        assert hand.due == [60.0]
        connection.data_received(b"a")
        assert hand.due == []
        await begun.wait()  # a call is played, for however long
        connection.data_received(b"GE")  # the next one has begun before there is an answer
        assert hand.due == [10.0]
        hand.timers[-1].fire()
        assert not wire.closed
        go_on.set()
        await asyncio.gather(*connection.tasks)
        assert wire.written.endswith(b"1 bytes.\r\n0\r\n\r\n")
        connection.data_received(b"T / HTTP/1.1\r\nHost: here\r\n\r\n")
        await asyncio.gather(*connection.tasks)
        assert (hand.due[-1], wire.closed) == (300, False)
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_a_known_client_may_idle_whose_body_ended_after_its_answer() -> None:
    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["stranger"] = False
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def scenario() -> None:
        config, hand, wire = uvicorn.Config(hasty, log_config=None, timeout_keep_alive=300), Hand(), Wire()
        config.load()
        connection = Connection(config, ServerState(), {}, hand)  # type: ignore[arg-type]
        connection.connection_made(wire)
        connection.data_received(REQUEST + b"Content-Length: 2\r\n\r\n")
        await asyncio.gather(*connection.tasks)
        assert wire.written.startswith(b"HTTP/1.1 413 ")
        connection.data_received(b"a")
        assert hand.due == [60.0]  # for the rest of the body
        connection.data_received(b"a")
        assert hand.due == [300]
        for empty in (b"\r\n", b"\r", b"\n"):
            connection.data_received(empty)
            assert hand.due == [300]
        connection.data_received(b"GE")
        assert hand.due == [10.0]
        connection.data_received(b"T / HTTP/1.1\r\nHost: here\r\n\r\n")
        await asyncio.gather(*connection.tasks)
        assert (hand.due, wire.written.count(b"HTTP/1.1 413 "), wire.closed) == ([300], 2, False)
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_an_upgrade_is_passed_over_without_advice() -> None:
    told = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("uvicorn.error")
    log.addHandler(handler)
    try:
        upgrade = b"Connection: close, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
        answered = answer(b"GET / HTTP/1.1\r\n" + LOCAL + upgrade, app=Guard(app, TOKEN))
    finally:
        log.removeHandler(handler)
    assert answered.startswith(b"HTTP/1.1 401 ")
    assert told == []
