from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests and workers can import the modules in this folder

import strange_worlds
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from app_client import Client


@pytest.fixture
def serve() -> Iterator[Callable[..., Client]]:
    """A function of settings that returns a client of an app with the environments of `strange_worlds`.

    All environments must be closed after the test.
    """
    strange_worlds.clear_state()
    with ExitStack() as stack:

        def make_client(**settings: Any) -> Client:
            app = build_app(Settings(world=strange_worlds.WORLDS, **settings), grace=5.0)
            return stack.enter_context(Client(app, raise_server_exceptions=False))

        yield make_client
        strange_worlds.release_all()
    assert strange_worlds.all_closed()


@pytest.fixture(scope="module")
def shared_client() -> Iterator[Client]:
    """A client of an app that the tests of a module share, for requests that are refused."""
    with Client(build_app(Settings(world=strange_worlds.WORLDS)), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(serve: Callable[..., Client]) -> Client:
    """A client of an app with the environments of `strange_worlds`."""
    return serve()
