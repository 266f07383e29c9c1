from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import `pages_server`

from pages_server import PagesServer  # noqa: E402


@pytest.fixture
def server() -> Iterator[PagesServer]:
    """An empty web server on 127.0.0.1; a test fills `server.pages`."""
    with PagesServer() as server:
        yield server
