"""What comes over a connection before there is a request."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
import uvicorn
from agentgym_envs.server.connection import MAX_HEAD, Connection
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

REQUEST = b"POST / HTTP/1.1\r\nHost: here\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d bytes." % size})


def answer(*pieces: bytes) -> bytes:
    """All that is answered to what comes in `pieces`, before the server hangs up."""

    async def ask() -> bytes:
        config, state = uvicorn.Config(app, http=Connection, log_config=None), ServerState()
        config.load()
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
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
