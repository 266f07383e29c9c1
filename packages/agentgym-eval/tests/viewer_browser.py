"""Helpers for browser tests of the viewer: a running server, and a page that records its requests and messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from patience import PATIENCE, eventually
from playwright.sync_api import Page, expect

expect.set_options(timeout=1_000 * PATIENCE)
PHONE = {"width": 360, "height": 740}


@dataclass
class WatchedPage:
    """A page with its requests, console messages, errors and dialogs."""

    page: Page
    requests: list[str] = field(default_factory=list[str])
    messages: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.messages.append(dialog.message), dialog.dismiss()))


def width_of(page: Page) -> int:
    """Measure the width of a document in CSS pixels, once its style sheets have loaded."""
    page.wait_for_load_state("load")
    return int(page.evaluate("document.documentElement.scrollWidth"))


@contextmanager
def serve_index(index: Index) -> Iterator[str]:
    """Run a viewer of the index and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(make_app(Site(index, Links())), log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        eventually(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
