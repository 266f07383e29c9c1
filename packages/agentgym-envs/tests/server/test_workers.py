"""Tests of sessions in worker processes: a worker that dies affects only its own sessions."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from app_client import TASK, Client, expect_error, expect_ok
from patience import all_end, eventually
from strange_worlds import QUICK, WAITING, WORLDS


def workers(client: Client) -> list[dict[str, Any]]:
    return expect_ok(client.get("/healthz"))["workers"]


def test_new_session_goes_to_the_least_loaded_worker(serve: Callable[..., Client]) -> None:
    client = serve(workers=2)
    assert len({worker["pid"] for worker in workers(client)} | {os.getpid()}) == 3
    sessions = [client.start_episode(world) for world in (QUICK, WAITING, QUICK, WAITING)]
    assert [worker["sessions"] for worker in workers(client)] == [2, 2]
    for session in sessions[::2]:
        client.delete(f"/v1/sessions/{session}")
    assert [worker["sessions"] for worker in workers(client)] == [0, 2]
    client.start_episode()
    assert [worker["sessions"] for worker in workers(client)] == [1, 2]


def test_environments_in_workers_match_local_environments(serve: Callable[..., Client]) -> None:
    local, remote = serve(), serve(workers=1)
    for world in (QUICK, WAITING):
        local_session, remote_session = local.start_episode(world), remote.start_episode(world)
        for action in ("knock", "what", "knock", "open"):
            assert expect_ok(local.step(local_session, action)) == expect_ok(remote.step(remote_session, action))
        local_tasks = local.query(local_session, "tasks", fields="all").json()
        assert local_tasks == remote.query(remote_session, "tasks", fields="all").json()
        expect_error(remote.reset(remote_session, task="nope"), 404, "unknown_task")
        expect_ok(remote.reset(remote_session, task=TASK))
        expect_error(remote.step(remote_session, "fault"), 502, "world_fault")
        expect_error(remote.step(remote_session, "bug"), 500, "internal")


@pytest.mark.parametrize("world", [QUICK, WAITING])
def test_dead_worker_affects_only_its_own_sessions(serve: Callable[..., Client], world: str) -> None:
    client = serve(workers=2)
    sessions = [client.start_episode(world) for _ in range(4)]
    before = workers(client)
    for session in sessions:
        expect_ok(client.step(session, "knock"))
    assert "status 3" in expect_error(client.step(sessions[0], "die", key="k"), 502, "world_fault")
    expect_error(client.step(sessions[0], "die", key="k"), 502, "world_fault")  # repeated, not executed again
    responses = [client.step(session, "knock") for session in sessions]
    assert [response.status_code for response in responses] == [502, 200, 502, 200]
    assert expect_ok(responses[1])["reward"] == 0.5
    for session in (sessions[0], sessions[2]):
        expect_ok(client.reset(session, task=TASK))
        expect_ok(client.step(session, "knock"))
    after = workers(client)
    assert [worker["alive"] for worker in after] == [True, True]
    assert sum(worker["sessions"] for worker in after) == 4
    assert len({worker["pid"] for worker in before} & {worker["pid"] for worker in after}) == 1
    assert "agentgym_worker_restarts_total 1.0" in client.get("/metrics").text


def test_killed_worker_is_replaced_without_a_request(serve: Callable[..., Client]) -> None:
    client = serve(workers=1)
    (before,) = workers(client)
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: workers(client)[0]["pid"] != before["pid"])
    client.start_episode()


def test_blocked_environment_in_a_worker_is_replaced(serve: Callable[..., Client]) -> None:
    client = serve(workers=1)
    sessions = [client.start_episode(world) for world in (QUICK, WAITING, QUICK)]
    for session in sessions[:2]:
        with client.short_deadline():
            expect_error(client.step(session, "wait a"), 504, "deadline")
        expect_ok(client.reset(session, task=TASK))
        expect_ok(client.step(session, "knock"))
    expect_ok(client.step(sessions[2], "knock"))


def test_shutdown_of_an_app_ends_its_workers() -> None:
    with Client(build_app(Settings(world=WORLDS, workers=2))) as client:
        processes = [psutil.Process(worker["pid"]) for worker in workers(client)]
        client.start_episode(WAITING)
    assert all_end(processes)
