"""Tests of the life cycle of calls and sessions: idempotency keys, leases, disconnects and shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
import strange_worlds
from agentgym_envs.pool import Ask, Reset, Step
from agentgym_envs.server.app import build_app
from agentgym_envs.server.auth import Guard
from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.sessions import Session, Sessions
from agentgym_envs.server.settings import Settings
from allocations import memory_growth
from app_client import TASK, Client, expect_error, expect_ok
from patience import eventually_async
from strange_worlds import QUICK, WAITING


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def open_sessions(**settings: Any) -> AsyncIterator[tuple[Sessions, Clock]]:
    strange_worlds.clear_state()
    clock = Clock()
    sessions = Sessions(Settings(world=strange_worlds.WORLDS, **settings), clock=clock)
    await sessions.open()
    yield sessions, clock
    await sessions.shut(5.0)
    assert strange_worlds.all_closed()


async def start_episode(sessions: Sessions, world: str = QUICK) -> Session:
    session = await sessions.create(world, {})
    await sessions.call(session, Reset(TASK))
    return session


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def wait_until_blocked(name: str) -> None:
    await asyncio.to_thread(strange_worlds.wait_until_blocked, name)


# Idempotency keys.


@pytest.mark.parametrize("world", [QUICK, WAITING])
def test_repeated_step_is_executed_once(client: Client, world: str) -> None:
    session = client.start_episode(world)
    outcomes = [expect_ok(client.step(session, "knock", key="k")) for _ in range(3)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[0]["info"]["raw"]["acted"] == 1
    assert expect_ok(client.step(session, "knock", key="l"))["info"]["raw"]["acted"] == 2
    assert expect_ok(client.step(session, "knock"))["info"]["raw"]["acted"] == 3


def test_repeated_reset_or_fault_returns_the_same_response(client: Client) -> None:
    session = client.start_episode()
    task_ids = {expect_ok(client.reset(session, split="train", key="r"))["info"]["task_id"] for _ in range(8)}
    assert len(task_ids) == 1
    assert [expect_error(client.step(session, "fault", key="f"), 502, "world_fault") for _ in range(2)]
    assert expect_ok(client.step(session, "knock"))["info"]["raw"]["acted"] == 2


def test_key_is_refused_for_another_call(client: Client) -> None:
    session = client.start_episode()
    expect_ok(client.step(session, "knock", key="k"))
    expect_error(client.step(session, "open", key="k"), 422, "invalid")
    expect_error(client.step(session, "knock", key="k", hint="Say an action."), 422, "invalid")
    expect_error(client.reset(session, key="k"), 422, "invalid")
    assert expect_ok(client.step(session, "knock", key="k"))["info"]["raw"]["acted"] == 1


def test_repeated_step_waits_for_the_pending_call(client: Client) -> None:
    session = client.start_episode(WAITING)
    with ThreadPoolExecutor(4) as threads:
        responses = [threads.submit(client.step, session, "wait a", key="k") for _ in range(4)]
        strange_worlds.wait_until_blocked("a")
        expect_error(client.step(session, "knock", key="l"), 409, "busy")
        strange_worlds.release("a")
        outcomes = [expect_ok(response.result()) for response in responses]
    assert outcomes == [outcomes[0]] * 4
    assert outcomes[0]["info"]["raw"]["acted"] == 1


def test_repeated_creation_returns_the_same_session(client: Client) -> None:
    request = {"world": WAITING, "options": {"mood": "fine"}, "key": "k"}
    with ThreadPoolExecutor(4) as threads:
        responses = [threads.submit(client.post, "/v1/sessions", json=request) for _ in range(4)]
        ids = {expect_ok(response.result(), 201)["id"] for response in responses}
    assert len(ids) == 1
    assert expect_ok(client.get("/healthz"))["sessions"] == 1
    expect_error(client.post("/v1/sessions", json=request | {"options": {}}), 422, "invalid")


def test_key_of_a_creation_is_freed_when_the_session_closes(client: Client) -> None:
    request = {"world": QUICK, "key": "k"}
    first = expect_ok(client.post("/v1/sessions", json=request), 201)["id"]
    assert expect_ok(client.post("/v1/sessions", json=request), 201)["id"] == first
    assert client.delete(f"/v1/sessions/{first}").status_code == 204
    second = expect_ok(client.post("/v1/sessions", json=request), 201)["id"]
    assert second != first
    expect_ok(client.reset(second, task=TASK))
    assert client.delete(f"/v1/sessions/{second}").status_code == 204
    expect_ok(client.post("/v1/sessions", json=request | {"options": {"max_episode_steps": 3}}), 201)


def test_key_of_a_creation_is_freed_when_the_lease_expires() -> None:
    async def scenario() -> None:
        async with open_sessions(lease=60) as (sessions, clock):
            first = await sessions.create(QUICK, {}, "k")
            for _ in range(3):
                clock.now += 50
                assert await sessions.create(QUICK, {}, "k") is first
            clock.now += 60
            second = await sessions.create(QUICK, {}, "k")
            assert second is not first
            sessions.sweep()
            assert (first.closed, await sessions.create(QUICK, {}, "k")) == (True, second)

    run(scenario)


def test_keys_of_different_tokens_are_independent() -> None:
    tokens, request = ("token-of-the-first-client", "token-of-the-second-client"), {"world": QUICK, "key": "k"}
    with Client(Guard(build_app(Settings(world=strange_worlds.WORLDS)), *tokens)) as client:
        headers = [{"Authorization": f"Bearer {token}"} for token in (*tokens, *tokens)]
        responses = [client.post("/v1/sessions", json=request, headers=header) for header in headers]
        ids = [expect_ok(response, 201)["id"] for response in responses]
        assert ids[:2] == ids[2:]
        assert ids[0] != ids[1]
        expect_error(client.post("/v1/sessions", json=request), 401, "unauthorized")


def test_key_of_a_creation_expires() -> None:
    async def scenario() -> None:
        async with open_sessions(lease=10_000) as (sessions, clock):
            first = await sessions.create(QUICK, {}, "k")
            assert await sessions.create(QUICK, {}, "k") is first
            clock.now += 3_600
            sessions.sweep()
            assert await sessions.create(QUICK, {}, "k") is not first

    run(scenario)


# Leases.


def test_session_is_closed_when_its_lease_expires() -> None:
    async def scenario() -> None:
        async with open_sessions(lease=60) as (sessions, clock):
            idle, used = await start_episode(sessions), await start_episode(sessions)
            for _ in range(3):
                clock.now += 50
                await sessions.call(sessions.get(used.id), Step("knock"))
                sessions.sweep()
            assert len(sessions) == 1
            assert "60 s" in refusal_message(lambda: sessions.get(idle.id), "unknown_session")
            clock.now += 61
            refusal_message(lambda: sessions.get(used.id), "unknown_session")  # even before the next sweep
            assert len(sessions) == 0
            assert not strange_worlds.open_envs
            assert b"agentgym_expired_sessions_total 2.0" in sessions.metrics.exposition()

    run(scenario)


def test_lease_does_not_expire_during_a_call() -> None:
    async def scenario() -> None:
        async with open_sessions(lease=60) as (sessions, clock):
            session = await start_episode(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a")))
            await wait_until_blocked("a")
            clock.now += 3_600
            sessions.sweep()
            assert sessions.get(session.id) is session
            clock.now += 3_600
            strange_worlds.release("a")
            assert (await call).observation == "You waited for a."
            clock.now += 50
            assert sessions.get(session.id) is session

    run(scenario)


def refusal_message(call: Callable[[], Any], kind: str) -> str:
    with pytest.raises(Refusal) as raised:
        call()
    assert raised.value.kind == kind
    return raised.value.message


# Disconnected clients.


def test_call_continues_after_its_client_disconnects() -> None:
    async def scenario() -> None:
        async with open_sessions() as (sessions, _):
            session = await start_episode(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a"), "k"))
            await wait_until_blocked("a")
            call.cancel()
            await asyncio.wait([call])
            strange_worlds.release("a")
            result = await sessions.call(session, Step("wait a"), "k")
            assert result.observation == "You waited for a."
            assert result.info["raw"]["acted"] == 1

    run(scenario)


def test_creation_with_a_key_continues_after_a_disconnect() -> None:
    async def scenario() -> None:
        async with open_sessions() as (sessions, _):
            creation = asyncio.create_task(sessions.create(WAITING, {}, "k"))
            await asyncio.sleep(0)
            creation.cancel()
            await asyncio.wait([creation])
            session = await sessions.create(WAITING, {}, "k")
            assert len(sessions) == 1
            assert sessions.get(session.id) is session

    run(scenario)


def test_creation_without_a_key_is_undone_after_a_disconnect() -> None:
    async def scenario() -> None:
        async with open_sessions() as (sessions, _):
            creation = asyncio.create_task(sessions.create(WAITING, {}))
            await asyncio.sleep(0)
            creation.cancel()
            await asyncio.wait([creation])
            assert len(sessions) == 0

    run(scenario)


def test_session_can_be_closed_during_a_call(client: Client) -> None:
    session = client.start_episode(WAITING)
    with ThreadPoolExecutor(1) as threads:
        response = threads.submit(client.step, session, "wait a")
        strange_worlds.wait_until_blocked("a")
        assert client.delete(f"/v1/sessions/{session}").status_code == 204
        expect_error(client.delete(f"/v1/sessions/{session}"), 404, "unknown_session")
        strange_worlds.release("a")
        assert expect_ok(response.result())["observation"] == "You waited for a."


def test_deadline_applies_to_a_closed_session(client: Client) -> None:
    session = client.start_episode(WAITING)
    with client.short_deadline(), ThreadPoolExecutor(1) as threads:
        response = threads.submit(client.step, session, "wait a")
        strange_worlds.wait_until_blocked("a")
        client.delete(f"/v1/sessions/{session}")
        expect_error(response.result(), 504, "deadline")


# Shutdown.


def test_shutdown_waits_for_pending_calls() -> None:
    async def scenario() -> None:
        async with open_sessions() as (sessions, _):
            session = await start_episode(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a")))
            await wait_until_blocked("a")
            threading.Timer(0.05, strange_worlds.release, ["a"]).start()
            await sessions.shut(60.0)
            assert (await call).observation == "You waited for a."
            assert len(sessions) == 0

    run(scenario)


def test_pending_calls_are_refused_after_the_grace_period() -> None:
    async def scenario() -> None:
        async with open_sessions() as (sessions, _):
            session = await start_episode(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a")))
            await wait_until_blocked("a")
            await sessions.shut(0.0)
            with pytest.raises(Refusal) as raised:
                await call
            assert (raised.value.status, raised.value.kind) == (503, "closing")
            strange_worlds.release("a")

            await eventually_async(lambda: not strange_worlds.open_envs)

    run(scenario)


def test_closing_server_refuses_calls(client: Client) -> None:
    session = client.start_episode()
    client.app.state.sessions.refuse_calls()  # pyright: ignore[reportAttributeAccessIssue]
    for response in (client.step(session, "knock"), client.post("/v1/sessions", json={"world": QUICK})):
        expect_error(response, 503, "closing")
        assert int(response.headers["retry-after"]) > 0
    assert expect_ok(client.get("/healthz"))["status"] == "closing"
    assert client.get("/metrics").status_code == 200


def test_shutdown_of_an_app_closes_its_environments() -> None:
    strange_worlds.clear_state()
    with Client(build_app(Settings(world=strange_worlds.WORLDS))) as client:
        for world in (QUICK, WAITING):
            client.start_episode(world)
        assert len(strange_worlds.open_envs) == 2
    assert not strange_worlds.open_envs


def test_query_does_not_replace_the_last_outcome() -> None:
    async def scenario() -> None:
        async with open_sessions() as (sessions, _):
            session = await start_episode(sessions)
            last = session.last
            assert (await sessions.call(session, Ask("oracle"))).value == "knock"
            assert session.last is last

    run(scenario)


@pytest.mark.long
def test_closed_sessions_leave_no_memory_allocated(client: Client) -> None:
    def play() -> None:
        for _ in range(50):
            session = client.start_episode()
            for number in range(5):
                expect_ok(client.step(session, "knock", key=str(number)))
            assert client.delete(f"/v1/sessions/{session}").status_code == 204

    assert memory_growth(play) < 50 * 1_000  # bytes; a leaked session takes thousands
