"""Tests of the command `serve`: a server process from start to shutdown, and errors in its settings."""

from __future__ import annotations

import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentgym_envs.cli.main import serve
from agentgym_envs.server.models import EnvironmentInfo
from agentgym_envs.server.serving import offer
from patience import PATIENCE, all_end, eventually
from serve_process import ServerProcess, serve_process

TOKEN = "correct-horse-battery-staple"


def start_episode(client: httpx.Client) -> str:
    """Create a session of the blocking environment, start an episode and return the path of the session."""
    response = client.post("/v1/sessions", json={"world": "held/Held-v0"})
    assert response.status_code == 201
    path = f"/v1/sessions/{response.json()['id']}"
    assert client.post(f"{path}/reset", json={"task": "door/train/1"}).json()["observation"] == "Knock 1 times."
    return path


def test_server_from_start_to_shutdown(tmp_path: Path) -> None:
    """One test of everything that a user does with a server, since starting a server takes seconds."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    flags = [
        "--world",
        "blocking_world:held/Held-v0",
        "--workers",
        1,
        "--grace",
        600,
        "--token-file",
        tmp_path / "token",
    ]
    with serve_process(*flags) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        assert re.match(r"Serving on http://127\.0\.0\.1:\d+: agentgym/TextCraft-v0, ", server.ready_line)
        assert "held/Held-v0" in server.ready_line
        assert client.get("/healthz").json() == {"status": "ok"}
        for path in ("/v1/worlds", "/metrics", "/openapi.json", "/nowhere"):
            assert client.get(path).status_code == 401
        assert httpx.get(server.url.replace("//", f"//:{TOKEN}@") + "/v1/worlds").status_code == 200
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        session = start_episode(client)
        processes = server.processes()
        assert len(processes) == 2
        with ThreadPoolExecutor(1) as executor:
            batch = {"calls": [{"session": session.rpartition("/")[2], "action": f"hold {tmp_path}"}]}
            response = executor.submit(client.post, "/v1/step", json=batch)
            eventually((tmp_path / "begun").exists)
            server.process.send_signal(signal.SIGINT)
            refusal = wait_for_refusal(server)
            assert refusal.json()["error"]["type"] == "closing"
            assert refusal.headers["Retry-After"].isdigit()
            (tmp_path / "go").touch()
            assert response.result().json()["outcome"]["observation"] == "You waited."
        assert server.process.wait(PATIENCE) == 0
        assert server.errors() == [
            "1 pending request(s) have 600 seconds to finish; Ctrl-C again stops immediately.",
            "Stopped.",
        ]
        assert all_end(processes[1:])


def wait_for_refusal(server: ServerProcess) -> httpx.Response:
    """Send requests until the server is closing, and return its first refusal."""
    while True:
        response = httpx.get(f"{server.url}/v1/sessions/none", headers={"Authorization": f"Bearer {TOKEN}"})
        if response.status_code != 404:
            assert response.status_code == 503
            return response


@pytest.mark.long
def test_pending_requests_are_refused_after_the_grace_period(tmp_path: Path) -> None:
    flags = ["--world", "blocking_world:held/Held-v0", "--grace", "0.2"]
    with (
        serve_process(*flags) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
        socket.create_connection((client.base_url.host, client.base_url.port or 0)) as incomplete_request,
    ):
        head = b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        incomplete_request.sendall(head + b"Content-Length: 20\r\n\r\n{")
        session = start_episode(client)
        with ThreadPoolExecutor(1) as executor:
            response = executor.submit(client.post, f"{session}/step", json={"action": f"hold {tmp_path}"})
            eventually((tmp_path / "begun").exists)
            server.process.send_signal(signal.SIGTERM)
            assert response.result().status_code == 503
            assert response.result().json()["error"]["type"] == "closing"
        assert server.process.wait(PATIENCE) == 0
        assert server.errors() == [
            "2 pending request(s) have 0.2 seconds to finish; Ctrl-C again stops immediately.",
            "Stopped.",
        ]


@pytest.mark.long
def test_second_ctrl_c_stops_immediately(tmp_path: Path) -> None:
    flags = ["--world", "blocking_world:held/Held-v0", "--workers", 2, "--grace", 600]
    with serve_process(*flags) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        session = start_episode(client)
        processes = server.processes()
        assert len(processes) == 3
        with ThreadPoolExecutor(1) as executor:
            response = executor.submit(client.post, f"{session}/step", json={"action": f"hold {tmp_path}"})
            eventually((tmp_path / "begun").exists)
            server.process.send_signal(signal.SIGINT)
            assert server.process.stderr is not None
            assert server.process.stderr.readline().startswith("1 pending request(s) have 600 seconds to finish")
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(PATIENCE) == 130
            with pytest.raises(httpx.HTTPError):
                response.result()
        assert server.errors() == ["Stopped immediately."]
        assert all_end(processes[1:])


@pytest.mark.long
def test_workers_end_with_a_killed_server() -> None:
    with serve_process("--world", "blocking_world:held/Held-v0", "--workers", 2) as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            start_episode(client)
        processes = server.processes()
        server.process.kill()
        assert len(processes) == 3
        assert all_end(processes)


def test_first_line_reports_missing_packages() -> None:
    def world_seen(world: str, missing: str | None) -> EnvironmentInfo:
        return {"id": world, "max_episode_steps": 9, "installed": missing is None, "missing": missing}

    hint = "B needs a thing:\nrun `pip install thing`."
    worlds = [world_seen("a/A-v0", None), world_seen("b/B-v0", hint), world_seen("c/C-v0", None)]
    assert offer(worlds, None) == "a/A-v0, c/C-v0; without b/B-v0: B needs a thing: run `pip install thing`."
    assert offer(worlds[:1], "bm25") == "a/A-v0, /retrieve from bm25"


def stderr_text(capsys: pytest.CaptureFixture[str]) -> str:
    """Return standard error as one line, without the box that tyro draws."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().err).split())


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["--host", "0.0.0.0"],
            2,
            "serve: --host 0.0.0.0 accepts other machines, so tokens are required: create",
        ),
        (["--host", "::"], 2, "serve: --host :: accepts other machines"),
        (["--host", "example.org"], 2, "serve: --host example.org is not an IP address; use 127.0.0.1"),
        (
            ["--host", "192.0.2.1", "--token-file", "TOKEN"],
            1,
            "serve: this machine has no address 192.0.2.1; listen on",
        ),
        (
            ["--token-file", "nowhere"],
            2,
            "serve: The token file nowhere can't be read (No such file or directory); create",
        ),
        (["--port", "TAKEN"], 1, "serve: port TAKEN is in use; choose another with --port."),
        (
            ["--world", "agentgym/TextCraft-v1"],
            2,
            "serve: There is no environment 'agentgym/TextCraft-v1'. Did you mean agen",
        ),
        (["--world", "no_module:x/X-v0"], 2, "serve: The module of the environment no_module:x/X-v0 can't be imported"),
        (["--port", "70000"], 2, "There is no port 70000; choose one from 1 to 65535, or 0 for a free one."),
        (["--port", "http"], 2, "Error parsing --port"),
        (["--workers", "-1"], 2, "--workers must be 0 or more, not -1."),
        (["--max-sessions", "0"], 2, "--max-sessions must be at least 1, not 0."),
        (["--lease", "0"], 2, "--lease must be a number of seconds above 0, not 0."),
        (["--deadline", "inf"], 2, "--deadline must be a number of seconds above 0, not inf."),
        (["--grace", "nan"], 2, "--grace must be a number of seconds, not nan."),
        (["--trust-network"], 2, "Unrecognized options: --trust-network"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_settings_are_reported(
    arguments: list[str], status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        values = {"TOKEN": str(token), "TAKEN": str(occupied.getsockname()[1])}
        assert exit_status([values.get(word, word) for word in arguments]) == status
    for name, value in values.items():
        message = message.replace(name, value)
    assert message in stderr_text(capsys)


def exit_status(arguments: list[str]) -> Any:
    try:
        return serve(arguments)
    except SystemExit as end:
        return end.code
