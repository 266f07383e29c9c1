"""Servers in threads of the test process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from patience import PATIENCE, eventually


@contextmanager
def served(app: Any) -> Generator[str]:
    """Serve an ASGI app on a free port of 127.0.0.1, and yield its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert eventually(lambda: server.started or not thread.is_alive()) and thread.is_alive()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
