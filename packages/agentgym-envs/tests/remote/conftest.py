from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import `remote_servers`

from remote_servers import FaultyProxy, RemoteServer, remote_server


@pytest.fixture(scope="package")
def server() -> Iterator[RemoteServer]:
    """A server that all tests of this folder share."""
    with remote_server() as server:
        yield server


@pytest.fixture
def proxy(server: RemoteServer) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(server.port)
    yield proxy
    proxy.close()
