"""Tests of faults between a client and its servers: no call is executed twice, and lost sessions are reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from agentgym_envs import EnvFault
from agentgym_envs.pool.calls import Ask, Reset, Result, Step, WorldSpec
from agentgym_envs.remote.client import Client, split_urls
from agentgym_envs.remote.slots import RemoteSlot, Servers
from patience import PATIENCE, eventually
from remote_servers import BLOCKING, FaultyProxy, RemoteServer, remote_server
from starlette.responses import HTMLResponse, JSONResponse, Response
from uvicorn_threads import served

PAUSES = (0.01,) * 9
"""More than the injected faults: the elapsed time of one attempt may also count for the next one."""


class Caller:
    """Remote slots with synchronous calls. Attempts time out when `proxy` is mute, independently of real time."""

    def __init__(self, *urls: str, proxy: FaultyProxy | None = None) -> None:
        self.servers = Servers([proxy.url] if proxy else urls, timeout=PATIENCE, pauses=PAUSES)
        self.slots = [RemoteSlot(0, WorldSpec(BLOCKING), self.servers)]
        if proxy:
            self._elapsed = 0.0
            self.servers.loop._loop.time = lambda: time.monotonic() + self._elapsed
            proxy.elapse = self._elapse

    def _elapse(self) -> None:
        self._elapsed += PATIENCE
        self.servers.loop.call_soon(str)  # wakes the loop, which then reads its clock

    def __call__(self, call: Reset | Step | Ask, slot: int = 0) -> Result:
        while len(self.slots) <= slot:
            self.slots.append(RemoteSlot(len(self.slots), WorldSpec(BLOCKING), self.servers))
        future: Future[Result] = Future()
        self.slots[slot].submit(call, future.set_result)
        return future.result(PATIENCE)

    def close(self) -> None:
        for slot in self.slots:
            slot.close()
        self.servers.close()


@pytest.fixture
def caller(proxy: FaultyProxy) -> Iterator[Caller]:
    """A caller behind the proxy, in an episode whose goal is 3 knocks."""
    caller = Caller(proxy=proxy)
    assert caller(Reset("door/train/3")).observation == "Knock 3 times."
    yield caller
    caller.close()


@pytest.mark.parametrize("faults", [["drop"], ["cut"], ["mute"], ["drop", "cut", "mute"]], ids="-".join)
def test_step_with_lost_response_is_executed_once(caller: Caller, proxy: FaultyProxy, faults: list[str]) -> None:
    proxy.faults[:] = faults
    assert caller(Step("knock")).observation == "You knocked 1 times."
    assert proxy.faults == []
    result = caller(Step("knock"))
    assert (result.observation, result.info["raw"]["knocks"]) == ("You knocked 2 times.", 2)


@pytest.mark.parametrize("fault", ["drop", "cut", "mute"])
def test_creation_with_lost_response_creates_one_session(server: RemoteServer, proxy: FaultyProxy, fault: str) -> None:
    before = len(server.sessions)
    proxy.faults.append(fault)
    caller = Caller(proxy=proxy)
    assert caller(Reset("door/train/1")).error is None
    assert len(server.sessions) == before + 1
    caller.close()
    assert len(server.sessions) == before


def test_retried_reset_draws_the_same_task(caller: Caller, proxy: FaultyProxy) -> None:
    task_ids = [caller(Reset(seed=seed)).info["task_id"] for seed in (7, None, None)]
    caller(Reset(seed=7))
    proxy.faults[:] = ["drop", "cut"]
    assert [caller(Reset()).info["task_id"] for _ in range(2)] == task_ids[1:]


def test_unreachable_server_is_a_fault_until_the_next_reset(caller: Caller, proxy: FaultyProxy) -> None:
    proxy.faults[:] = ["drop"] * (len(PAUSES) + 1)
    fault = caller(Step("knock")).error
    assert isinstance(fault, EnvFault)
    assert "can't be reached" in str(fault)
    assert isinstance(caller(Step("knock")).error, EnvFault)
    assert caller(Reset("door/train/2")).observation == "Knock 2 times."


def test_expired_lease_is_a_fault_only_during_an_episode(caller: Caller, server: RemoteServer) -> None:
    server.close_sessions()
    assert caller(Reset("door/train/1")).observation == "Knock 1 times."
    server.close_sessions()
    fault = caller(Step("knock")).error
    assert isinstance(fault, EnvFault)
    assert "no session" in str(fault)
    assert caller(Reset("door/train/1")).observation == "Knock 1 times."


@pytest.mark.parametrize("seconds", [0, 1])
def test_full_server_is_retried_after_the_requested_delay(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    monkeypatch.setattr("agentgym_envs.server.errors.RETRY_SECONDS", seconds)
    delays: list[float] = []
    monkeypatch.setattr(Client, "jittered", lambda _, pause, least=0.0: delays.append(least) or 0.0)
    with remote_server(max_sessions=1) as server:
        first, second = Caller(server.url), Caller(server.url)
        assert first(Reset("door/train/1")).error is None
        first.close()
        assert second(Reset("door/train/1")).error is None
        third = Caller(server.url)
        fault = third(Reset("door/train/1")).error
        assert isinstance(fault, EnvFault)
        assert "1 sessions" in str(fault)
        assert delays == [seconds] * len(PAUSES)
        second.close()
        third.close()


def test_sessions_are_balanced_and_move_when_a_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    with remote_server() as one, remote_server() as other:
        caller = Caller(one.url, other.url)
        for slot in range(6):
            assert caller(Reset("door/train/2"), slot).error is None
        assert (len(one.sessions), len(other.sessions)) == (3, 3)
        one.stop()
        results = [caller(Step("knock"), slot) for slot in range(6)]
        assert sum(isinstance(result.error, EnvFault) for result in results) == 3
        assert sum(result.observation == "You knocked 1 times." for result in results) == 3
        for slot in range(6):
            assert caller(Reset("door/train/2"), slot).observation == "Knock 2 times."
        assert len(other.sessions) == 6
        monkeypatch.setattr("agentgym_envs.remote.servers._LOAD_TTL", 0.0)
        with remote_server(one.port) as restarted:
            assert [caller(Reset("door/train/2"), slot).error for slot in (6, 7)] == [None, None]
            assert (len(restarted.sessions), len(other.sessions)) == (2, 6)
        caller.close()
        assert len(other.sessions) == 0


def test_server_with_fewer_sessions_is_preferred(server: RemoteServer) -> None:
    with remote_server() as busy:
        others = Caller(busy.url)
        for slot in range(3):
            others(Reset("door/train/2"), slot)
        before = len(server.sessions)
        caller = Caller(f"{busy.url},{server.url}")
        caller(Reset("door/train/2"))
        assert len(server.sessions) == before + 1
        caller.close()
        others.close()


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    """A server of something else: its answers are JSON for a GET request and a page for any other."""
    response = JSONResponse({"health": "fine"}) if scope["method"] == "GET" else HTMLResponse("<h1>Sign in</h1>")
    await response(scope, receive, send)


def test_a_server_of_something_else_is_named_and_does_not_stop_the_others(server: RemoteServer) -> None:
    with served(elsewhere) as url:
        alone, both = Caller(url), Caller(f"{url},{server.url}")
        fault = alone(Reset("door/train/1")).error
        assert isinstance(fault, EnvFault)
        assert f"{url} does not respond like an agentgym-envs server" in str(fault)
        assert "Sign in" in str(fault)
        assert both(Reset("door/train/1")).observation == "Knock 1 times."
        alone.close()
        both.close()


@pytest.mark.parametrize(
    "answer",
    [
        HTMLResponse("<h1>Sign in</h1>"),
        JSONResponse(["Sign in"]),
        JSONResponse({"error": "Sign in"}),
        JSONResponse({"functions": "Sign in", "tasks": [{"url": "login"}], "name": "", "total": 1}),
    ],
    ids=["page", "list", "object", "values"],
)
@pytest.mark.parametrize("name", ["oracle", "tasks", "functions"])
def test_a_foreign_answer_within_a_session_is_a_fault(name: str, answer: Response) -> None:
    async def behind_a_login(scope: Any, receive: Any, send: Any) -> None:
        made = JSONResponse({"id": "s", "instructions": ""}, 201)
        await (made if scope["method"] == "POST" else answer)(scope, receive, send)

    with served(behind_a_login) as url:
        caller = Caller(url)
        fault = caller(Ask(name)).error
        assert isinstance(fault, EnvFault)
        assert f"{url} does not respond like an agentgym-envs server" in str(fault)
        assert "Sign in" in str(fault)
        caller.close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (207, b'{"index":0,"status":200,"outcome":{"info":null}}\n'),
        (207, b'{"index":0,"status":200,"outcome":' + b"[" * 5_000 + b"\n"),
        (200, b'{"index":0,"status":409,"error":{"type":"busy","message":null}}\n'),
        (400, b"[" * 5_000),
    ],
    ids=["null", "deep", "busy", "deep-error"],
)
def test_a_broken_answer_to_a_batch_is_a_fault(status: int, body: bytes) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        made = JSONResponse({"id": "s", "instructions": ""}, 201)
        await (made if scope["path"] == "/v1/sessions" else Response(body, status))(scope, receive, send)

    with served(broken) as url:
        caller = Caller(url)
        assert isinstance(caller(Reset("door/train/1")).error, EnvFault)
        caller.close()


def test_an_action_that_is_no_text_is_an_error_and_keeps_the_episode(caller: Caller) -> None:
    action: Any = 5
    error = caller(Step(action)).error
    assert isinstance(error, TypeError)
    assert "must be text (str), not int" in str(error)
    assert caller(Step("knock")).observation == "You knocked 1 times."


def test_urls_are_given_as_a_list_or_separated_by_commas() -> None:
    assert split_urls("http://a, http://b ,") == ["http://a", "http://b"]
    assert split_urls(["http://a", "http://b,http://a"]) == ["http://a", "http://b"]


def test_last_user_can_close_on_the_loop_thread(server: RemoteServer) -> None:
    """Garbage collection may close the client there."""
    before = len(server.sessions)
    caller = Caller(server.url)
    caller(Reset("door/train/1"))
    caller.servers.loop.call_soon(caller.servers.close)
    eventually(lambda: not caller.servers.loop.alive)
    assert len(server.sessions) == before
