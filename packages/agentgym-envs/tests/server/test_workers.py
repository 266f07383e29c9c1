"""Sessions in worker processes: when one dies, its sessions hear of it and the others don't."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from app_client import TASK, Client, refused, told
from patience import all_end, eventually
from strange_worlds import QUICK, WAITING, WORLDS


def workers(client: Client) -> list[dict[str, Any]]:
    return told(client.get("/healthz"))["workers"]


def test_sessions_live_in_the_worker_with_the_fewest(serve: Callable[..., Client]) -> None:
    client = serve(workers=2)
    assert len({worker["pid"] for worker in workers(client)} | {os.getpid()}) == 3
    sessions = [client.playing(world) for world in (QUICK, WAITING, QUICK, WAITING)]
    assert [worker["sessions"] for worker in workers(client)] == [2, 2]
    for session in sessions[::2]:
        client.delete(f"/v1/sessions/{session}")
    assert [worker["sessions"] for worker in workers(client)] == [0, 2]
    client.playing()
    assert [worker["sessions"] for worker in workers(client)] == [1, 2]


def test_worlds_play_there_as_they_do_here(serve: Callable[..., Client]) -> None:
    here, there = serve(), serve(workers=1)
    for world in (QUICK, WAITING):
        one, other = here.playing(world), there.playing(world)
        for action in ("knock", "what", "knock", "open"):
            assert told(here.step(one, action)) == told(there.step(other, action))
        assert here.ask(one, "tasks", fields="all").json() == there.ask(other, "tasks", fields="all").json()
        refused(there.reset(other, task="nope"), 404, "unknown_task")
        told(there.reset(other, task=TASK))
        refused(there.step(other, "fault"), 502, "world_fault")
        refused(there.step(other, "bug"), 500, "internal")


@pytest.mark.parametrize("world", [QUICK, WAITING])
def test_a_dead_worker_takes_no_other_with_it(serve: Callable[..., Client], world: str) -> None:
    client = serve(workers=2)
    sessions = [client.playing(world) for _ in range(4)]
    before = workers(client)
    for session in sessions:
        told(client.step(session, "knock"))
    assert "status 3" in refused(client.step(sessions[0], "die", key="k"), 502, "world_fault")
    refused(client.step(sessions[0], "die", key="k"), 502, "world_fault")  # a repeat, and nothing dies again
    answers = [client.step(session, "knock") for session in sessions]
    assert [answer.status_code for answer in answers] == [502, 200, 502, 200]
    assert told(answers[1])["reward"] == 0.5
    for session in (sessions[0], sessions[2]):
        told(client.reset(session, task=TASK))
        told(client.step(session, "knock"))
    after = workers(client)
    assert [worker["alive"] for worker in after] == [True, True]
    assert sum(worker["sessions"] for worker in after) == 4
    assert len({worker["pid"] for worker in before} & {worker["pid"] for worker in after}) == 1
    assert "agentgym_worker_restarts_total 1.0" in client.get("/metrics").text


def test_a_killed_worker_is_replaced_unasked(serve: Callable[..., Client]) -> None:
    client = serve(workers=1)
    (before,) = workers(client)
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: workers(client)[0]["pid"] != before["pid"])
    client.playing()


def test_a_world_that_hangs_there_is_replaced(serve: Callable[..., Client]) -> None:
    client = serve(workers=1)
    sessions = [client.playing(world) for world in (QUICK, WAITING, QUICK)]
    for session in sessions[:2]:
        with client.impatient():
            refused(client.step(session, "wait a"), 504, "deadline")
        told(client.reset(session, task=TASK))
        told(client.step(session, "knock"))
    told(client.step(sessions[2], "knock"))


def test_the_end_of_an_app_ends_its_workers() -> None:
    with Client(build_app(Settings(world=WORLDS, workers=2))) as client:
        processes = [psutil.Process(worker["pid"]) for worker in workers(client)]
        client.playing(WAITING)
    assert all_end(processes)
