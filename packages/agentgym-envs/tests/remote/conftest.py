from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import what lies here

from remote_servers import FarServer, Wire, far_server


@pytest.fixture(scope="package")
def server() -> Iterator[FarServer]:
    """A server that lives as long as the tests of this folder."""
    with far_server() as server:
        yield server


@pytest.fixture
def wire(server: FarServer) -> Iterator[Wire]:
    wire = Wire(server.port)
    yield wire
    wire.close()
