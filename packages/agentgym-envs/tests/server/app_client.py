"""A client of a server app, and checks of its responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import strange_worlds
from agentgym_envs.server.sessions import Sessions
from pydantic import TypeAdapter
from starlette.testclient import TestClient

TASK = "door/train/2"


class Client(TestClient):
    """A client of one app."""

    def create_session(self, world: str = strange_worlds.QUICK, **options: Any) -> str:
        """Create a session and return its id."""
        return expect_ok(self.post("/v1/sessions", json={"world": world, "options": options}), 201)["id"]

    def start_episode(self, world: str = strange_worlds.QUICK, **options: Any) -> str:
        """Create a session, start an episode of `TASK` in it and return its id."""
        session = self.create_session(world, **options)
        expect_ok(self.reset(session, task=TASK))
        return session

    def reset(self, session: str, **body: Any) -> Any:
        return self.post(f"/v1/sessions/{session}/reset", json=body)

    def step(self, session: str, action: str, **body: Any) -> Any:
        return self.post(f"/v1/sessions/{session}/step", json={"action": action, **body})

    def query(self, session: str, route: str, **parameters: Any) -> Any:
        return self.get(f"/v1/sessions/{session}/{route}", params=parameters)

    @contextmanager
    def short_deadline(self) -> Iterator[None]:
        """Set a deadline that blocked environments miss."""
        with short_deadline(self.app.state.sessions):  # pyright: ignore[reportAttributeAccessIssue]
            yield

    def post_bytes(self, path: str, body: bytes) -> Any:
        return self.post(path, content=body, headers={"content-type": "application/json"})


@contextmanager
def short_deadline(sessions: Sessions) -> Iterator[None]:
    """Set a deadline that blocked environments miss."""
    before = sessions.settings
    sessions.settings = dataclasses.replace(before, deadline=0.1)
    yield
    sessions.settings = before


def expect_ok(response: Any, status: int = 200, model: Any = None) -> Any:
    """Check the status of a response, and its body against `model`, and return the body."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    if model is not None:
        TypeAdapter(model).validate_python(body, strict=True)
        assert body.keys() <= model.__annotations__.keys()
    return body


def expect_error(response: Any, status: int, kind: str) -> str:
    """Check the status and the type of an error response, and return its message."""
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (status, kind), response.text
    assert response.json().keys() == {"error"}
    assert error.keys() == {"type", "message"}
    return error["message"]
