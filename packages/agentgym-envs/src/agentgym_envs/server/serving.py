"""Runs the server: the listening socket, what is printed, signals and the end. Knows nothing of what a call does.

The first SIGINT or SIGTERM lets the calls on their way end while new ones are answered 503; then the worlds are closed.
The second one ends the process at once: what it started sees its pipes close, and ends too.
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
from agentgym_envs.server.models import ErrorBody, WorldSeen
from agentgym_envs.server.settings import ServeSettings
from agentgym_envs.util.redaction import redacted, resolved

_KEEP_ALIVE = 300  # seconds; between two steps of an agent a language model thinks
_LEAST_BODY, _SLOWEST = 30.0, 65_536.0  # seconds for any body, and bytes a second for a long one
_MOST_STRANGERS = 4_096
_MOST_FILES = 1 << 20
_LAST_WORDS = 0.5  # seconds for answers to go out in when the grace is over
_INTERRUPTED = 130


def run(settings: ServeSettings) -> int:
    """Serve until a signal ends it. Returns the exit code.

    Raises:
        ValueError: when nothing can, or nothing should, be served as the settings say.
        OSError: when the address can't be listened on.
        EnvFault: when the retriever doesn't come up.
    """
    tokens = _tokens(settings)
    # an interrupt that gets here came before there was any call to wait for
    with _sigterm_interrupts(), suppress(KeyboardInterrupt), ExitStack() as held:
        listener = held.enter_context(_listener(settings.host, settings.port))
        app = build_app(settings, grace=0.0)  # the server below waits for calls
        if settings.retriever is not None:
            _add_retriever(app, settings.retriever, settings.max_batch, held)
        admission = Admission(
            body=_LEAST_BODY + settings.max_body / _SLOWEST, strangers=min(_MOST_STRANGERS, raise_open_files() // 2)
        )
        _Server(app, settings, tokens, admission).run(sockets=[listener])
    sys.stderr.write("Stopped.\n")
    return 0


class _Server(uvicorn.Server):
    """uvicorn's, but it says what it serves, and on a signal goes on until the requests on their way are answered or
    their grace is over.
    """

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
            timeout_graceful_shutdown=5,  # what is half sent ends with its connection; only a search may take longer
        )
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._until: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections, and say so."""
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        worlds = await self._app.state.sessions.catalog.seen()
        sys.stdout.write(f"Serving on {url}: {offer(worlds, self._settings.retriever)}\n")
        sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self._until is not None:
            os.write(2, b"Ended at once.\n")
            os._exit(_INTERRUPTED)
        self._until = time.monotonic() + self._settings.grace
        self._app.state.sessions.refuse_calls()
        if calls := len(self.server_state.tasks):
            grace = f"{self._settings.grace:g} seconds"
            os.write(2, f"{calls} request(s) on their way have {grace} to end; Ctrl-C again ends at once.\n".encode())

    async def on_tick(self, counter: int) -> bool:
        """Whether it is over; asked every tenth of a second."""
        over = self._until is not None and not self.server_state.tasks
        if self._until is not None and time.monotonic() >= self._until:
            self._app.state.sessions.cut_off()
            over = True
        return await super().on_tick(counter) or over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, also for who doesn't say all of a request or read all of an answer."""
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._hang_up)
        await super().shutdown(sockets)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.transport.abort()


def _tokens(settings: ServeSettings) -> tuple[str, ...]:
    if settings.host != "localhost":
        try:
            ipaddress.ip_address(settings.host)
        except ValueError as error:
            raise ValueError(f"{settings.host} is no IP address to listen on; take 127.0.0.1.") from error
    if settings.token_file is not None:
        return read_tokens(settings.token_file)
    if not is_loopback(settings.host):
        raise ValueError(
            f"{settings.host} lets other machines in, so every request has to bring a token: make one with "
            f"{MAKE_A_TOKEN} and add --token-file token; or listen on 127.0.0.1."
        )
    return ()


def raise_open_files() -> int:
    """Let this process have as many open files, connections among them, as the system allows it; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS allows fewer than it says
        return soft
    return most


def _listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE:
                said = f"port {port} is in use; choose another with --port."
            case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
                said = f"this machine has no address {host}; listen on one that it has, such as 127.0.0.1."
            case errno.EACCES:
                said = f"port {port} is for the system's administrator; choose one above 1023 with --port."
            case _:
                raise
        raise OSError(said) from error


def _add_retriever(app: FastAPI, spec: str, max_queries: int, held: ExitStack) -> None:
    retriever = held.enter_context(closing(open_retriever(resolved(spec))))
    download = "; a prebuilt index is downloaded when it is new" if spec.startswith("pyserini:") else ""
    sys.stderr.write(f"Loading {redacted(spec)}{download}\n")
    retriever.search(["ready"], 1)  # what it stands on is loaded before the first client waits for it
    errors: dict[int | str, Any] = {status: {"model": ErrorBody} for status in (401, 403, 413, 422, 502)}
    app.include_router(retrieval_router(retriever, max_queries), responses=errors)


def offer(worlds: Sequence[WorldSeen], retriever: str | None) -> str:
    """What there is, and how to get the worlds that are missing, on one line."""
    there = [world["id"] for world in worlds if world["installed"]]
    search = [] if retriever is None else [f"/retrieve from {redacted(retriever)}"]
    missing = [f"without {world['id']}: {world['missing']}" for world in worlds if not world["installed"]]
    return " ".join("; ".join([", ".join(there + search), *missing]).split())


@contextmanager
def _sigterm_interrupts() -> Generator[None]:
    """SIGTERM does what SIGINT does while things are loaded and closed; in between, uvicorn hears both."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
