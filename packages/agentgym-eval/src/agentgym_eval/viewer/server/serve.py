"""A viewer that runs: where its index lies, the port it gets, the browser it opens."""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import uvicorn
from agentgym_envs.util.files import cache_folder

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.indexer import VERSION
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from agentgym_eval.viewer.server.guard import is_loopback

_KEPT_S = 30 * 86400.0


def serve(
    directory: Path, host: str, port: int, *, open_browser: bool, environment: Mapping[str, str] | None = None
) -> int:
    """Serve the folder until Ctrl-C; for `environment` see `make_app`. Returns the exit code.

    Raises:
        UsageError: when the address can't be listened on.
    """
    with open_index(directory) as index, _listening(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        sys.stderr.write(f"{directory} is shown at {address} until Ctrl-C.\n")
        if not is_loopback(host):
            sys.stderr.write(f"Whoever reaches {host} can read all episodes below {directory}.\n")
        config = uvicorn.Config(
            make_app(Site(index, Links()), host, environment), log_level="warning", timeout_graceful_shutdown=1
        )
        if open_browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with suppress(KeyboardInterrupt):  # uvicorn ends in order, and then raises again what ended it
            uvicorn.Server(config).run(sockets=[listener])
    return 0


@contextmanager
def open_index(directory: Path) -> Generator[Index]:
    """The index of a folder. It is kept in the user's cache folder, so that the next viewer finds it filled."""
    folder = cache_folder("viewer")
    for old in folder.glob("*.sqlite*"):
        if time.time() - old.stat().st_mtime > _KEPT_S:
            old.unlink(missing_ok=True)
    name = hashlib.sha256(f"{VERSION} {directory.resolve()}".encode()).hexdigest()[:16]
    with closing(Index(directory, folder / f"{name}.sqlite")) as index:
        yield index


@contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()  # who opens the address from here on waits, and isn't refused
        except OSError as error:
            raise UsageError(
                f"{host}:{port} can't be listened on ({error}); choose another --port, or 0 for a free one."
            ) from error
        yield listener
