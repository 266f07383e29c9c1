"""Tests of the guard, which admits or refuses requests, and of reading token files."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.server.auth import Guard, is_loopback, read_tokens
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

TOKEN = "correct-horse-battery-staple"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse({"unauthenticated": scope["state"]["unauthenticated"]})(scope, receive, send)


def send_request(
    token: str | None, path: str = "/v1/worlds", **headers: str | bytes
) -> tuple[int, Any, dict[bytes, bytes]]:
    """Send a request with `headers` to an app with `token`, and return the status, body and headers of the response."""
    raw_headers = {"host": b"127.0.0.1:8000"} | {
        name: value if isinstance(value, bytes) else value.encode("latin-1") for name, value in headers.items()
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(name.encode(), value) for name, value in raw_headers.items() if value],
    }
    asyncio.run(Guard(app, *[token] * bool(token))(scope, receive, send))
    start, body = sent
    return start["status"], json.loads(body["body"]), dict(start["headers"])


def basic(password: str, user: str = "") -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    "authorization",
    [f"Bearer {TOKEN}", f"bearer   {TOKEN} ", basic(TOKEN), basic(TOKEN, "anyone"), basic(TOKEN).replace("B", "b", 1)],
)
def test_request_with_the_token_is_admitted(authorization: str) -> None:
    assert send_request(TOKEN, authorization=authorization)[:2] == (200, {"unauthenticated": False})
    assert send_request(TOKEN, authorization=authorization, host="gpu7.example.org")[0] == 200


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Token {TOKEN}",
        basic("wrong"),
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
        "Basic !!!",
        "Bearer \xfc\xff".encode("latin-1"),
        b"\xff\xfe \xff",
        "Basic \xfc".encode(),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_request_without_a_valid_token_is_refused(authorization: str | bytes) -> None:
    for path in ("/v1/worlds", "/v1/sessions/a/step", "/retrieve", "/metrics", "/openapi.json", "/", ""):
        status, body, headers = send_request(TOKEN, path, authorization=authorization)
        assert (status, body["error"]["type"]) == (401, "unauthorized")
        assert headers[b"www-authenticate"] == b'Bearer realm="agentgym", Basic realm="agentgym"'
        assert TOKEN not in body["error"]["message"]


@given(st.binary(max_size=80))
def test_guard_handles_any_header(noise: bytes) -> None:
    for scheme in (b"", b"Bearer ", b"Basic "):
        assert send_request(TOKEN, authorization=scheme + noise)[0] == 401
    assert send_request(TOKEN, origin=noise or b"x")[0] in (401, 403)
    assert send_request(None, host=noise)[0] in (200, 403)


def test_health_check_needs_no_token() -> None:
    assert send_request(TOKEN, "/healthz")[:2] == (200, {"unauthenticated": True})
    assert send_request(TOKEN, "/healthz", authorization=f"Bearer {TOKEN}")[:2] == (200, {"unauthenticated": False})
    assert send_request(None, "/healthz")[:2] == (200, {"unauthenticated": False})
    assert send_request(TOKEN, "/healthz/")[0] == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]:8000", "127.9.9.9"])
def test_loopback_host_names_are_admitted(host: str) -> None:
    assert send_request(None, host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "10.0.0.7",
        "[::2]",
        "[::1",
        "127.0.0.1@evil",
    ],
)
def test_foreign_host_names_are_refused(host: str) -> None:
    status, body, _ = send_request(None, host=host)
    assert (status, body["error"]["type"]) == (403, "forbidden")
    assert send_request(None, "/healthz", host=host)[0] == 403


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://127.0.0.1:3000", "http://localhost:8000", "x"]
)
def test_other_origins_are_refused(origin: str, token: str | None) -> None:
    status, body, headers = send_request(token, origin=origin, authorization=f"Bearer {TOKEN}")
    assert (status, body["error"]["type"]) == (403, "forbidden")
    assert not [name for name in headers if name.startswith(b"access-control")]


def test_own_origin_is_admitted() -> None:
    assert send_request(None, origin="http://127.0.0.1:8000")[0] == 200
    headers = {"origin": "https://Gym.example", "host": "gym.example", "authorization": f"Bearer {TOKEN}"}
    assert send_request(TOKEN, **headers)[0] == 200


def test_lifespan_events_pass_the_guard() -> None:
    scopes: list[Any] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)

    async def fail(*_: Any) -> Any:
        raise AssertionError("nothing must be received or sent")

    asyncio.run(Guard(inner, TOKEN)({"type": "lifespan"}, fail, fail))
    assert scopes == [{"type": "lifespan"}]


def test_is_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "::1", "127.255.0.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "", "example.org")))


def write_token_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    assert read_tokens(write_token_file(tmp_path, f"  {TOKEN}\n".encode())) == (TOKEN,)
    assert read_tokens(write_token_file(tmp_path, TOKEN.encode(), 0o400)) == (TOKEN,)
    two_tokens = f"{TOKEN}\r\n\n another-token-of-one-client\n"
    assert read_tokens(write_token_file(tmp_path, two_tokens.encode())) == (TOKEN, "another-token-of-one-client")


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (f"{TOKEN}\nshort".encode(), 0o600, "has 5 characters and could be guessed"),
        (b"", 0o600, "has 0 characters and could be guessed"),
        (b"  short  \n", 0o600, "has 5 characters and could be guessed; the minimum is 16"),
        (TOKEN.encode(), 0o640, "make it private: chmod 600 "),
        (TOKEN.encode(), 0o604, "make it private: chmod 600 "),
        (b"sixteen and a bit", 0o600, "a space or a non-ASCII character"),
        ("schlüsselschlüssel".encode(), 0o600, "a space or a non-ASCII character"),
    ],
)
def test_invalid_token_file_is_refused(content: bytes, mode: int, message: str, tmp_path: Path) -> None:
    path = write_token_file(tmp_path, content, mode)
    with pytest.raises(ValueError, match=message) as caught:
        read_tokens(path)
    assert str(path) in str(caught.value)


def test_unreadable_token_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ValueError, match=r"can't be read \(.*\); create one: \(umask 077; python"):
            read_tokens(path)
