"""Running the viewer: the location of its index, its port, and opening the browser."""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
import sys
import threading
import time
import webbrowser
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from agentgym_envs.util.files import cache_folder

from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.indexer import VERSION
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from agentgym_eval.viewer.server.guard import is_loopback

_INDEX_LIFETIME_S = 30 * 86400.0


def serve(
    directory: Path,
    host: str,
    port: int,
    *,
    open_browser: bool,
    environment: Mapping[str, str] | None = None,
    read_only: bool = False,
) -> int:
    """Serve the folder until Ctrl-C and return the exit code; for `environment` and `read_only` see `make_app`.

    Raises:
        UsageError: if the server can't listen on the address.
    """
    with open_index(directory) as index, _listening(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        sys.stderr.write(f"Serving {directory} at {address} until Ctrl-C.\n")
        if not is_loopback(host):
            sys.stderr.write(f"Anyone who can reach {host} can read all episodes below {directory}.\n")
        app = make_app(Site(index, Links()), host, environment, read_only=read_only)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        if open_browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with suppress(KeyboardInterrupt):  # uvicorn shuts down gracefully, then raises the interrupt again
            uvicorn.Server(config).run(sockets=[listener])
    return 0


@contextmanager
def open_index(directory: Path) -> Generator[Index]:
    """Open the index of a folder. It is stored in the user's cache folder, so the next viewer can reuse it, or in a
    temporary folder if the cache can't be used.

    Raises:
        UsageError: if `directory` is a file without episodes.
    """
    with ExitStack() as stack:
        try:
            index = _cached_index(directory)
        except (OSError, sqlite3.Error) as error:
            sys.stderr.write(f"The index is stored in a temporary folder, since the cache can't be used: {error}\n")
            folder = stack.enter_context(TemporaryDirectory(prefix="agentgym-viewer-"))
            index = Index(directory, Path(folder) / "index.sqlite")
        yield stack.enter_context(closing(index))


def _cached_index(directory: Path) -> Index:
    folder = cache_folder("viewer")
    for old in folder.glob("*.sqlite*"):
        if time.time() - old.stat().st_mtime > _INDEX_LIFETIME_S:
            old.unlink(missing_ok=True)
    name = hashlib.sha256(f"{VERSION} ".encode() + os.fsencode(directory.resolve())).hexdigest()[:16]
    database = folder / f"{name}.sqlite"
    try:
        return Index(directory, database)
    except sqlite3.OperationalError:  # locked, or not writable
        raise
    except sqlite3.DatabaseError:  # damaged
        for file in folder.glob(f"{name}.sqlite*"):
            file.unlink(missing_ok=True)
        return Index(directory, database)


@contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()  # from here on, early connections queue instead of being refused
        except OSError as error:
            raise UsageError(
                f"The viewer can't listen on {host}:{port} ({error}); choose another --port, or 0 for a free one."
            ) from error
        yield listener
