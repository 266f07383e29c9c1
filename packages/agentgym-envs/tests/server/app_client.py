"""Asks an app, with as little typing as a test can bear."""

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

    def made(self, world: str = strange_worlds.QUICK, **options: Any) -> str:
        """The id of a new session."""
        return told(self.post("/v1/sessions", json={"world": world, "options": options}), 201)["id"]

    def playing(self, world: str = strange_worlds.QUICK, **options: Any) -> str:
        """The id of a new session in which TASK was begun."""
        session = self.made(world, **options)
        told(self.reset(session, task=TASK))
        return session

    def reset(self, session: str, **body: Any) -> Any:
        return self.post(f"/v1/sessions/{session}/reset", json=body)

    def step(self, session: str, action: str, **body: Any) -> Any:
        return self.post(f"/v1/sessions/{session}/step", json={"action": action, **body})

    def ask(self, session: str, what: str, **query: Any) -> Any:
        return self.get(f"/v1/sessions/{session}/{what}", params=query)

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """A deadline that a world which waits will miss."""
        with impatient(self.app.state.sessions):  # pyright: ignore[reportAttributeAccessIssue]
            yield

    def raw(self, path: str, body: bytes) -> Any:
        return self.post(path, content=body, headers={"content-type": "application/json"})


@contextmanager
def impatient(sessions: Sessions) -> Iterator[None]:
    """A deadline that a world which waits will miss."""
    before = sessions.settings
    sessions.settings = dataclasses.replace(before, deadline=0.1)
    yield
    sessions.settings = before


def told(answer: Any, status: int = 200, model: Any = None) -> Any:
    """The body of an answer, which has that status and is what its description says."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if model is not None:
        TypeAdapter(model).validate_python(body, strict=True)
        assert body.keys() <= model.__annotations__.keys()
    return body


def refused(answer: Any, status: int, kind: str) -> str:
    """The sentence of an error, which has that status and type."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, kind), answer.text
    assert answer.json().keys() == {"error"}
    assert error.keys() == {"type", "message"}
    return error["message"]
