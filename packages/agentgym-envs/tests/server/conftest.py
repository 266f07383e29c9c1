from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests, and workers, can import what lies here

import strange_worlds
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from app_client import Client


@pytest.fixture
def serve() -> Iterator[Callable[..., Client]]:
    """`serve(**settings)`: a client of an app with the strange worlds. In the end no world is left."""
    strange_worlds.forget()
    with ExitStack() as stack:

        def served(**settings: Any) -> Client:
            app = build_app(Settings(world=strange_worlds.WORLDS, **settings), grace=5.0)
            return stack.enter_context(Client(app, raise_server_exceptions=False))

        yield served
        strange_worlds.let_go()
    assert strange_worlds.all_closed()


@pytest.fixture(scope="module")
def asked() -> Iterator[Client]:
    """A client of an app whose sessions don't matter: for what is refused."""
    with Client(build_app(Settings(world=strange_worlds.WORLDS)), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(serve: Callable[..., Client]) -> Client:
    """A client of an app with the strange worlds."""
    return serve()
