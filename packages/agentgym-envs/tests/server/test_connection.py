"""Tests of connections: limits on heads and bodies, and on clients without a token."""

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
LOCAL_HOST = b"Host: 127.0.0.1\r\n"
AUTHENTICATED = LOCAL_HOST + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
REQUEST = b"POST / HTTP/1.1\r\nHost: here\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d bytes." % size})


Connect = Callable[[], Any]


@asynccontextmanager
async def listen(app: ASGIApp, admission: Admission) -> AsyncGenerator[Connect]:
    """Serve `app`, and yield a function that opens a connection to it."""
    config, state = uvicorn.Config(app, http=Connection, ws="none", log_config=None), ServerState()
    config.load()
    loop = asyncio.get_running_loop()

    def accept() -> Connection:
        return Connection(config, state, {}, admission=admission)

    async with await loop.create_server(accept, "127.0.0.1", 0) as server:
        yield lambda: asyncio.open_connection(*server.sockets[0].getsockname())
        for connection in list(state.connections):
            connection.transport.abort()  # type: ignore[union-attr]


def response_to(*pieces: bytes, app: ASGIApp = app, admission: Admission | None = None) -> bytes:
    """Send `pieces`, and return everything that the server sends before it closes the connection."""

    async def exchange() -> bytes:
        async with listen(app, admission or Admission()) as connect:
            reader, writer = await connect()
            received = bytearray()
            with suppress(ConnectionError):  # the server may close the connection before all pieces are sent
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                while data := await reader.read(65_536):
                    received += data
            writer.close()
            return bytes(received)

    return asyncio.run(exchange())


@pytest.mark.parametrize("start", [b"POST /", REQUEST + b"Long: ", REQUEST + b"Short: a\r\n" * 4_000])
def test_long_head_is_refused(start: bytes) -> None:
    response = response_to(start, b"a" * (MAX_HEAD + 1 - len(start)))
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"65,536 bytes" in response


def test_long_trailer_is_refused() -> None:
    chunked = REQUEST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nTrailer: "
    assert b"200 OK" not in response_to(chunked, *[b"a" * 1_000] * 2_000)


def test_long_bodies_are_received() -> None:
    headers = b"Connection: close\r\nContent-Length: 200000\r\n\r\n"
    assert b"200000 bytes." in response_to(REQUEST, headers, *[b"a" * 1_000] * 200)
    chunked = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"20000 bytes." in response_to(REQUEST, chunked, *[b"1\r\na\r\n" * 100] * 200, b"0\r\n\r\n")


@pytest.mark.parametrize("start", [b"", b"POST /", REQUEST + b"Long: ", b"\r\n"])
def test_late_head_is_refused(start: bytes) -> None:
    response = response_to(start, admission=Admission(head=0.01))
    assert response.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert response.endswith(b"The head of a request must be complete within 0.01 seconds.")


@pytest.mark.parametrize("start", [b"Content-Length: 10\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"])
def test_late_body_is_refused(start: bytes) -> None:
    response = response_to(REQUEST + start, admission=Admission(body=0.01))
    assert response.startswith(b"HTTP/1.1 408 ")
    assert response.endswith(b"The body of a request must be complete within 0.01 seconds.")


@pytest.mark.long
@pytest.mark.parametrize("rest", [b"", b"a", b"a" * 9, b"a" * 9 + b"POST"])
def test_unauthenticated_connection_closes_soon_after_the_response(rest: bytes) -> None:
    head = b"POST / HTTP/1.1\r\n" + LOCAL_HOST + b"Content-Length: 9\r\n\r\n"
    admission, guard = Admission(body=0.01), Guard(app, TOKEN)

    async def guard_with_short_timeout(scope: Scope, receive: Receive, send: Send) -> None:
        # Only for the next request: on a busy machine, the first may take longer to arrive.
        object.__setattr__(admission, "head", 0.01)
        await guard(scope, receive, send)

    response = response_to(head, rest, app=guard_with_short_timeout, admission=admission)
    assert response.startswith(b"HTTP/1.1 401 ")


def test_oldest_unauthenticated_connection_closes_at_the_limit() -> None:
    admission = Admission(max_unauthenticated=2)

    async def scenario() -> None:
        async with listen(Guard(app, TOKEN), admission) as connect:
            kept = await connect()  # authenticates, and is idle from then on
            kept[1].write(b"GET / HTTP/1.1\r\n" + AUTHENTICATED + b"\r\n")
            assert (await kept[0].readuntil(b"0 bytes.\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            refused = await connect()
            refused[1].write(b"GET / HTTP/1.1\r\n" + LOCAL_HOST + b"\r\n")
            assert (await refused[0].readuntil(b"}}")).startswith(b"HTTP/1.1 401 ")
            incomplete = [await connect() for _ in range(2)]
            for _, writer in incomplete:
                writer.write(b"GET / HTTP/1.1\r\nLong: ")
            assert (await refused[0].read()).startswith(b"HTTP/1.1 503 ")
            last = await connect()
            assert b"too many unauthenticated connections" in await incomplete[0][0].read()
            for reader, writer in (last, kept):
                writer.write(b"GET / HTTP/1.1\r\n" + AUTHENTICATED + b"\r\n")
                assert (await reader.readuntil(b"0 bytes.\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert len(admission.waiting) == 1
            for _, writer in (kept, refused, *incomplete, last):
                writer.close()

    asyncio.run(scenario())


def test_pipelined_requests_each_need_the_token() -> None:
    admission = Admission()

    async def scenario() -> None:
        async with listen(Guard(app, TOKEN), admission) as connect:
            reader, writer = await connect()
            writer.write((b"GET / HTTP/1.1\r\n" + LOCAL_HOST + b"\r\n") * 3)
            for _ in range(3):
                assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 401 ")
            assert len(admission.waiting) == 1
            writer.close()

    asyncio.run(scenario())


class Timer:
    """A timer that a test fires by hand."""

    def __init__(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.seconds, self.cancelled = seconds, False
        self.fire = lambda: call(*arguments)

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """The running loop, with timers that a test fires by hand."""

    def __init__(self) -> None:
        self.timers = list[Timer]()

    def call_later(self, *arguments: Any) -> Timer:
        self.timers.append(Timer(*arguments))
        return self.timers[-1]

    def create_task(self, coroutine: Any) -> Any:
        return asyncio.get_running_loop().create_task(coroutine)

    @property
    def active(self) -> list[float]:
        """The delays of the timers that aren't cancelled."""
        return [timer.seconds for timer in self.timers if not timer.cancelled]


class RecordingTransport(asyncio.Transport):
    """A transport that records what is written."""

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
        """Do nothing: tests pass the data to the connection themselves."""

    resume_reading = pause_reading


def test_no_timeout_applies_while_a_call_is_pending() -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["unauthenticated"] = False
        started.set()
        await finish.wait()
        await app(scope, receive, send)

    async def scenario() -> None:
        loop, transport = ManualLoop(), RecordingTransport()
        config = uvicorn.Config(slow, log_config=None, timeout_keep_alive=300)
        config.load()
        connection = Connection(config, ServerState(), {}, loop)  # type: ignore[arg-type]
        connection.connection_made(transport)
        assert loop.active == [10.0]
        connection.data_received(REQUEST + b"Content-Length: 1\r\n\r\n")
        assert loop.active == [60.0]
        connection.data_received(b"a")
        assert loop.active == []
        await started.wait()  # the call may take any time
        connection.data_received(b"GE")  # the next request starts before the response
        assert loop.active == [10.0]
        loop.timers[-1].fire()
        assert not transport.closed
        finish.set()
        await asyncio.gather(*connection.tasks)
        assert transport.written.endswith(b"1 bytes.\r\n0\r\n\r\n")
        connection.data_received(b"T / HTTP/1.1\r\nHost: here\r\n\r\n")
        await asyncio.gather(*connection.tasks)
        assert (loop.active[-1], transport.closed) == (300, False)
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_authenticated_client_may_idle_after_an_early_response() -> None:
    async def respond_early(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["unauthenticated"] = False
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def scenario() -> None:
        loop, transport = ManualLoop(), RecordingTransport()
        config = uvicorn.Config(respond_early, log_config=None, timeout_keep_alive=300)
        config.load()
        connection = Connection(config, ServerState(), {}, loop)  # type: ignore[arg-type]
        connection.connection_made(transport)
        connection.data_received(REQUEST + b"Content-Length: 2\r\n\r\n")
        await asyncio.gather(*connection.tasks)
        assert transport.written.startswith(b"HTTP/1.1 413 ")
        connection.data_received(b"a")
        assert loop.active == [60.0]  # for the rest of the body
        connection.data_received(b"a")
        assert loop.active == [300]
        for empty in (b"\r\n", b"\r", b"\n"):
            connection.data_received(empty)
            assert loop.active == [300]
        connection.data_received(b"GE")
        assert loop.active == [10.0]
        connection.data_received(b"T / HTTP/1.1\r\nHost: here\r\n\r\n")
        await asyncio.gather(*connection.tasks)
        assert (loop.active, transport.written.count(b"HTTP/1.1 413 "), transport.closed) == ([300], 2, False)
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_upgrade_is_ignored_without_a_warning() -> None:
    messages = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("uvicorn.error")
    log.addHandler(handler)
    try:
        upgrade = b"Connection: close, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
        response = response_to(b"GET / HTTP/1.1\r\n" + LOCAL_HOST + upgrade, app=Guard(app, TOKEN))
    finally:
        log.removeHandler(handler)
    assert response.startswith(b"HTTP/1.1 401 ")
    assert messages == []
