"""Run the server: listening socket, console output, signals and shutdown. This module does not depend on the routes.

After the first SIGINT or SIGTERM, pending calls may finish while new ones fail with 503; then the environments close.
The second signal ends the process immediately; its child processes end when their pipes close.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from agentgym_envs.retrieval import open_retriever
from agentgym_envs.retrieval.server import retrieval_router
from agentgym_envs.server.app import build_app
from agentgym_envs.server.auth import MAKE_A_TOKEN, Guard, is_loopback, read_tokens
from agentgym_envs.server.connection import Admission, Connection
from agentgym_envs.server.logs import log_config
from agentgym_envs.server.models import EnvironmentInfo, ErrorBody
from agentgym_envs.server.settings import ServeSettings
from agentgym_envs.util.redaction import redacted, resolved

_KEEP_ALIVE = 300  # seconds; a language model generates between two steps of an agent
_MIN_BODY_SECONDS, _MIN_BYTES_PER_SECOND = 30.0, 65_536.0  # time limit of a body: a base plus its size over the rate
_MAX_UNAUTHENTICATED = 4_096
_MAX_FILES = 1 << 20
_FLUSH_SECONDS = 0.5  # time to send the last responses at shutdown
_EXIT_INTERRUPTED = 130


def run(settings: ServeSettings) -> int:
    """Serve until a signal arrives. Return the exit code.

    Raises:
        ValueError: If the settings are invalid or insecure.
        OSError: If the server can't listen on the address.
        EnvFault: If the retriever fails to start.
    """
    tokens = _tokens(settings)
    # a KeyboardInterrupt that propagates to here came before there was any call to wait for
    with _sigterm_interrupts(), suppress(KeyboardInterrupt), ExitStack() as held:
        listener = held.enter_context(_listener(settings.host, settings.port))
        app = build_app(settings, grace=0.0)  # `_Server` waits for pending calls
        if settings.retriever is not None:
            _add_retriever(app, settings.retriever, settings.max_batch, held)
        admission = Admission(
            body=_MIN_BODY_SECONDS + settings.max_body / _MIN_BYTES_PER_SECOND,
            max_unauthenticated=min(_MAX_UNAUTHENTICATED, raise_open_files() // 2),
        )
        _Server(app, settings, tokens, admission).run(sockets=[listener])
    sys.stderr.write("Stopped.\n")
    return 0


class _Server(uvicorn.Server):
    """A uvicorn server that prints what it serves and, after a signal, gives pending requests a grace period."""

    def __init__(self, app: FastAPI, settings: ServeSettings, tokens: Sequence[str], admission: Admission) -> None:
        config = uvicorn.Config(
            Guard(app, *tokens),
            http=cast("type[Connection]", partial(Connection, admission=admission)),
            log_config=log_config(),
            log_level="warning",
            access_log=False,
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=5,  # incomplete requests end with their connection; only a search may take longer
        )
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._until: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections, and print the URL and the environments."""
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        worlds = await self._app.state.sessions.catalog.list_environments()
        sys.stdout.write(f"Serving on {url}: {offer(worlds, self._settings.retriever)}\n")
        sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: begin the grace period, or exit if it began already."""
        if self._until is not None:
            os.write(2, b"Stopped immediately.\n")
            os._exit(_EXIT_INTERRUPTED)
        self._until = time.monotonic() + self._settings.grace
        self._app.state.sessions.refuse_calls()
        if calls := len(self.server_state.tasks):
            grace = f"{self._settings.grace:g} seconds"
            os.write(
                2, f"{calls} pending request(s) have {grace} to finish; Ctrl-C again stops immediately.\n".encode()
            )

    async def on_tick(self, counter: int) -> bool:
        """Return whether to shut down. uvicorn calls this every 0.1 seconds."""
        over = self._until is not None and not self.server_state.tasks
        if self._until is not None and time.monotonic() >= self._until:
            self._app.state.sessions.cut_off()
            over = True
        return await super().on_tick(counter) or over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down, without waiting for clients that send incomplete requests or do not read their responses."""
        asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._abort_connections)
        await super().shutdown(sockets)

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.transport.abort()


def _tokens(settings: ServeSettings) -> tuple[str, ...]:
    if settings.host != "localhost":
        try:
            ipaddress.ip_address(settings.host)
        except ValueError as error:
            raise ValueError(f"--host {settings.host} is not an IP address; use 127.0.0.1, for example.") from error
    if settings.token_file is not None:
        return read_tokens(settings.token_file)
    if not is_loopback(settings.host):
        raise ValueError(
            f"--host {settings.host} accepts other machines, so tokens are required: create one with "
            f"{MAKE_A_TOKEN} and add --token-file token, or listen on 127.0.0.1."
        )
    return ()


def raise_open_files() -> int:
    """Raise this process's limit of open files, including connections, to the system's maximum, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return limit
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):  # macOS allows fewer than its hard limit
        return soft
    return limit


def _listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE:
                message = f"port {port} is in use; choose another with --port."
            case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
                message = f"this machine has no address {host}; listen on one of its addresses, such as 127.0.0.1."
            case errno.EACCES:
                message = f"port {port} is privileged; choose one above 1023 with --port."
            case _:
                raise
        raise OSError(message) from error


def _add_retriever(app: FastAPI, spec: str, max_queries: int, held: ExitStack) -> None:
    retriever = held.enter_context(closing(open_retriever(resolved(spec))))
    download = "; a prebuilt index is downloaded on first use" if spec.startswith("pyserini:") else ""
    sys.stderr.write(f"Loading {redacted(spec)}{download}\n")
    retriever.search(["ready"], 1)  # loads the index before the first client's request
    errors: dict[int | str, Any] = {status: {"model": ErrorBody} for status in (401, 403, 413, 422, 502)}
    app.include_router(retrieval_router(retriever, max_queries), responses=errors)


def offer(worlds: Sequence[EnvironmentInfo], retriever: str | None) -> str:
    """Return one line that lists the environments and how to install the missing ones."""
    installed = [world["id"] for world in worlds if world["installed"]]
    search = [] if retriever is None else [f"/retrieve from {redacted(retriever)}"]
    missing = [f"without {world['id']}: {world['missing']}" for world in worlds if not world["installed"]]
    return " ".join("; ".join([", ".join(installed + search), *missing]).split())


@contextmanager
def _sigterm_interrupts() -> Generator[None]:
    """Make SIGTERM raise KeyboardInterrupt during startup and shutdown. In between, uvicorn handles both signals."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
