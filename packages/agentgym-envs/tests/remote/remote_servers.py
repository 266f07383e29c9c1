"""Servers in threads of this process, and a proxy that injects faults into their responses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.server.app import build_app
from agentgym_envs.server.auth import Guard
from agentgym_envs.server.settings import Settings
from patience import PATIENCE, eventually_async

BLOCKING = "held/Held-v0"


class RemoteServer:
    """A server at `url` with the registered environments and `BLOCKING`."""

    def __init__(self, port: int = 0, *, token: str | None = None, world: Sequence[str] = (), **settings: Any) -> None:
        app = build_app(Settings(world=(f"blocking_world:{BLOCKING}", *world), **settings), grace=0.0)
        self.sessions: Any = app.state.sessions
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            Guard(app, *[token] * bool(token)), log_level="critical", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()

    def close_sessions(self) -> None:
        """Close all sessions, as if their leases had expired."""
        self._server.servers[0].get_loop().call_soon_threadsafe(self._close_sessions)
        while len(self.sessions):
            pass

    def _close_sessions(self) -> None:
        for session in list(self.sessions._sessions.values()):
            self.sessions.close(session)

    def stop(self) -> None:
        """Stop the server. Idempotent."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@contextmanager
def remote_server(*arguments: Any, **settings: Any) -> Iterator[RemoteServer]:
    server = RemoteServer(*arguments, **settings)
    try:
        yield server
    finally:
        server.stop()


class FaultyProxy:
    """A TCP proxy to the server at `port`. Each piece of a response consumes an entry of `faults`, if there is one.

    `drop` closes the connection instead of sending the piece, `cut` closes it after half of the piece, and `mute` sends
    nothing and calls `elapse`, which advances the client's clock, until the client gives up.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = LoopThread("The proxy")
        self._server = self._loop.run(asyncio.start_server(self._connect, "127.0.0.1", 0), PATIENCE)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.faults: list[str] = []
        self.elapse: Callable[[], None] = lambda: None

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
            writers.append(server_writer)
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(
                    self._send_requests(reader, server_writer), self._send_responses(server_reader, writer, reader)
                )
        finally:  # also when the loop ends: a writer that outlives it would raise a warning in a later test
            for opened in writers:
                opened.close()

    async def _send_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def _send_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamReader
    ) -> None:
        def given_up() -> bool:
            self.elapse()
            return client.at_eof()

        while data := await reader.read(1 << 16):
            fault = self.faults.pop(0) if self.faults else ""
            if fault == "mute":
                await eventually_async(given_up)
                break
            writer.write({"drop": b"", "cut": data[: len(data) // 2]}.get(fault, data))
            if fault:
                break
        writer.close()

    def close(self) -> None:
        self._server.get_loop().call_soon_threadsafe(self._server.close)
        self._loop.stop()
