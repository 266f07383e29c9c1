"""Serves the pages of the package `miniwob` on 127.0.0.1 to the browsers of this process."""

from __future__ import annotations

import importlib.util
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from agentgym_envs.util.extras import brought_by

EXTRA = "miniwob"
HOST = "miniwob.example"
"""The host name of the pages in the browser."""
_SUFFIXES = frozenset((".html", ".js", ".css", ".png", ".gif", ".svg"))


def html_folder() -> Path:
    """Return the folder with the package's pages. Nothing of the package is imported, which would start Selenium.

    Raises:
        DependencyNotInstalled: if the package is missing; the message has the install command.
    """
    with brought_by(EXTRA):
        spec = importlib.util.find_spec("miniwob")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("No module named 'miniwob'", name="miniwob")
        return Path(spec.origin).parent / "html"


class PageServer:
    """A web server for the pages, on a thread of its own. Belongs to the process that created it."""

    def __init__(self) -> None:
        self.users = 0
        self._pid = os.getpid()
        self._server = _Server(("127.0.0.1", 0), partial(_Handler, directory=str(html_folder())))
        self._thread = threading.Thread(target=self._server.serve_forever, name="agentgym-miniwob", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT`."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def in_this_process(self) -> bool:
        """Whether this process created it. A forked child has none of its threads."""
        return self._pid == os.getpid()

    def close(self) -> None:
        """Stop the server and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_lock = threading.Lock()
_servers: list[PageServer] = []


def enter() -> PageServer:
    """Return this process's server; the caller must `leave` it.

    Raises:
        DependencyNotInstalled: if the package `miniwob` is missing.
    """
    with _lock:
        if not _servers:
            _servers.append(PageServer())
        _servers[0].users += 1
        return _servers[0]


def leave(server: PageServer) -> None:
    """Give up one use. The last one stops the server."""
    if not server.in_this_process:
        return
    with _lock:
        server.users -= 1
        if server.users > 0:
            return
        _servers.remove(server)
    server.close()


def _forget() -> None:
    """Drop the parent's server in a forked child."""
    global _lock
    _lock = threading.Lock()
    _servers.clear()


os.register_at_fork(after_in_child=_forget)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore browsers that close the connection early."""


class _Handler(SimpleHTTPRequestHandler):
    """Answers requests for files of the package that a page loads, and no others."""

    protocol_version = "HTTP/1.1"
    server_version = "agentgym"
    sys_version = ""

    def do_GET(self) -> None:
        """Send a file."""
        path = PurePosixPath(unquote(urlsplit(self.path).path))
        if path.suffix in _SUFFIXES and ".." not in path.parts:
            super().do_GET()
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
