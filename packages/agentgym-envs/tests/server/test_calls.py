"""The life of calls and sessions: keys, leases, clients that leave, and the end."""

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
from app_client import TASK, Client, refused, told
from growth import growth
from patience import eventually_async
from strange_worlds import QUICK, WAITING


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[tuple[Sessions, Clock]]:
    strange_worlds.forget()
    clock = Clock()
    sessions = Sessions(Settings(world=strange_worlds.WORLDS, **settings), clock=clock)
    await sessions.open()
    yield sessions, clock
    await sessions.shut(5.0)
    assert strange_worlds.all_closed()


async def playing(sessions: Sessions, world: str = QUICK) -> Session:
    session = await sessions.create(world, {})
    await sessions.call(session, Reset(TASK))
    return session


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def until_begun(name: str) -> None:
    await asyncio.to_thread(strange_worlds.wait_for, name)


# Keys.


@pytest.mark.parametrize("world", [QUICK, WAITING])
def test_a_repeat_plays_nothing_and_gets_the_same_answer(client: Client, world: str) -> None:
    session = client.playing(world)
    answers = [told(client.step(session, "knock", key="k")) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["info"]["raw"]["acted"] == 1
    assert told(client.step(session, "knock", key="l"))["info"]["raw"]["acted"] == 2
    assert told(client.step(session, "knock"))["info"]["raw"]["acted"] == 3


def test_a_repeat_of_a_reset_or_a_fault_gets_the_same_answer(client: Client) -> None:
    session = client.playing()
    drawn = {told(client.reset(session, split="train", key="r"))["info"]["task_id"] for _ in range(8)}
    assert len(drawn) == 1
    assert [refused(client.step(session, "fault", key="f"), 502, "world_fault") for _ in range(2)]
    assert told(client.step(session, "knock"))["info"]["raw"]["acted"] == 2


def test_a_key_is_for_one_call(client: Client) -> None:
    session = client.playing()
    told(client.step(session, "knock", key="k"))
    refused(client.step(session, "open", key="k"), 422, "invalid")
    refused(client.step(session, "knock", key="k", hint="Say an action."), 422, "invalid")
    refused(client.reset(session, key="k"), 422, "invalid")
    assert told(client.step(session, "knock", key="k"))["info"]["raw"]["acted"] == 1


def test_a_repeat_waits_for_the_call_that_is_on_its_way(client: Client) -> None:
    session = client.playing(WAITING)
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(client.step, session, "wait a", key="k") for _ in range(4)]
        strange_worlds.wait_for("a")
        refused(client.step(session, "knock", key="l"), 409, "busy")
        strange_worlds.let_go_on("a")
        outcomes = [told(answer.result()) for answer in answers]
    assert outcomes == [outcomes[0]] * 4
    assert outcomes[0]["info"]["raw"]["acted"] == 1


def test_a_creation_is_repeated_under_its_key(client: Client) -> None:
    asked = {"world": WAITING, "options": {"mood": "fine"}, "key": "k"}
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(client.post, "/v1/sessions", json=asked) for _ in range(4)]
        ids = {told(answer.result(), 201)["id"] for answer in made}
    assert len(ids) == 1
    assert told(client.get("/healthz"))["sessions"] == 1
    refused(client.post("/v1/sessions", json=asked | {"options": {}}), 422, "invalid")


def test_the_key_of_a_creation_ends_with_its_session(client: Client) -> None:
    asked = {"world": QUICK, "key": "k"}
    first = told(client.post("/v1/sessions", json=asked), 201)["id"]
    assert told(client.post("/v1/sessions", json=asked), 201)["id"] == first
    assert client.delete(f"/v1/sessions/{first}").status_code == 204
    second = told(client.post("/v1/sessions", json=asked), 201)["id"]
    assert second != first
    told(client.reset(second, task=TASK))
    assert client.delete(f"/v1/sessions/{second}").status_code == 204
    told(client.post("/v1/sessions", json=asked | {"options": {"max_episode_steps": 3}}), 201)


def test_the_key_of_a_creation_ends_with_its_lease_which_a_repeat_renews() -> None:
    async def scenario() -> None:
        async with opened(lease=60) as (sessions, clock):
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


def test_keys_of_clients_with_different_tokens_are_different() -> None:
    tokens, asked = ("token-of-the-first-client", "token-of-the-second-client"), {"world": QUICK, "key": "k"}
    with Client(Guard(build_app(Settings(world=strange_worlds.WORLDS)), *tokens)) as client:
        headers = [{"Authorization": f"Bearer {token}"} for token in (*tokens, *tokens)]
        answers = [client.post("/v1/sessions", json=asked, headers=brought) for brought in headers]
        made = [told(answer, 201)["id"] for answer in answers]
        assert made[:2] == made[2:]
        assert made[0] != made[1]
        refused(client.post("/v1/sessions", json=asked), 401, "unauthorized")


def test_the_key_of_a_creation_is_forgotten_in_the_end() -> None:
    async def scenario() -> None:
        async with opened(lease=10_000) as (sessions, clock):
            first = await sessions.create(QUICK, {}, "k")
            assert await sessions.create(QUICK, {}, "k") is first
            clock.now += 3_600
            sessions.sweep()
            assert await sessions.create(QUICK, {}, "k") is not first

    run(scenario)


# Leases.


def test_a_session_ends_with_its_lease() -> None:
    async def scenario() -> None:
        async with opened(lease=60) as (sessions, clock):
            idle, used = await playing(sessions), await playing(sessions)
            for _ in range(3):
                clock.now += 50
                await sessions.call(sessions.get(used.id), Step("knock"))
                sessions.sweep()
            assert len(sessions) == 1
            assert "60 s" in refusal_of(lambda: sessions.get(idle.id), "unknown_session")
            clock.now += 61
            refusal_of(lambda: sessions.get(used.id), "unknown_session")  # also before anybody swept
            assert len(sessions) == 0
            assert not strange_worlds.living
            assert b"agentgym_expired_sessions_total 2.0" in sessions.metrics.exposition()

    run(scenario)


def test_no_lease_runs_out_during_a_call() -> None:
    async def scenario() -> None:
        async with opened(lease=60) as (sessions, clock):
            session = await playing(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a")))
            await until_begun("a")
            clock.now += 3_600
            sessions.sweep()
            assert sessions.get(session.id) is session
            clock.now += 3_600
            strange_worlds.let_go_on("a")
            assert (await call).observation == "You waited for a."
            clock.now += 50
            assert sessions.get(session.id) is session

    run(scenario)


def refusal_of(ask: Callable[[], Any], kind: str) -> str:
    with pytest.raises(Refusal) as raised:
        ask()
    assert raised.value.kind == kind
    return raised.value.message


# Clients that leave.


def test_a_call_goes_on_without_its_client() -> None:
    async def scenario() -> None:
        async with opened() as (sessions, _):
            session = await playing(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a"), "k"))
            await until_begun("a")
            call.cancel()
            await asyncio.wait([call])
            strange_worlds.let_go_on("a")
            result = await sessions.call(session, Step("wait a"), "k")
            assert result.observation == "You waited for a."
            assert result.info["raw"]["acted"] == 1

    run(scenario)


def test_a_creation_goes_on_without_its_client() -> None:
    async def scenario() -> None:
        async with opened() as (sessions, _):
            asked = asyncio.create_task(sessions.create(WAITING, {}, "k"))
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
            session = await sessions.create(WAITING, {}, "k")
            assert len(sessions) == 1
            assert sessions.get(session.id) is session

    run(scenario)


def test_a_creation_without_a_key_leaves_nothing_when_its_client_goes() -> None:
    async def scenario() -> None:
        async with opened() as (sessions, _):
            asked = asyncio.create_task(sessions.create(WAITING, {}))
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
            assert len(sessions) == 0

    run(scenario)


def test_a_session_may_be_closed_during_a_call(client: Client) -> None:
    session = client.playing(WAITING)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.step, session, "wait a")
        strange_worlds.wait_for("a")
        assert client.delete(f"/v1/sessions/{session}").status_code == 204
        refused(client.delete(f"/v1/sessions/{session}"), 404, "unknown_session")
        strange_worlds.let_go_on("a")
        assert told(answer.result())["observation"] == "You waited for a."


def test_a_closed_session_may_hang(client: Client) -> None:
    session = client.playing(WAITING)
    with client.impatient(), ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.step, session, "wait a")
        strange_worlds.wait_for("a")
        client.delete(f"/v1/sessions/{session}")
        refused(answer.result(), 504, "deadline")


# The end.


def test_calls_on_their_way_end_before_the_server_does() -> None:
    async def scenario() -> None:
        async with opened() as (sessions, _):
            session = await playing(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a")))
            await until_begun("a")
            threading.Timer(0.05, strange_worlds.let_go_on, ["a"]).start()
            await sessions.shut(60.0)
            assert (await call).observation == "You waited for a."
            assert len(sessions) == 0

    run(scenario)


def test_calls_that_take_longer_than_the_grace_are_given_up() -> None:
    async def scenario() -> None:
        async with opened() as (sessions, _):
            session = await playing(sessions, WAITING)
            call = asyncio.create_task(sessions.call(session, Step("wait a")))
            await until_begun("a")
            await sessions.shut(0.0)
            with pytest.raises(Refusal) as raised:
                await call
            assert (raised.value.status, raised.value.kind) == (503, "closing")
            strange_worlds.let_go_on("a")

            await eventually_async(lambda: not strange_worlds.living)

    run(scenario)


def test_a_closing_server_says_so(client: Client) -> None:
    session = client.playing()
    client.app.state.sessions.refuse_calls()  # pyright: ignore[reportAttributeAccessIssue]
    for answer in (client.step(session, "knock"), client.post("/v1/sessions", json={"world": QUICK})):
        refused(answer, 503, "closing")
        assert int(answer.headers["retry-after"]) > 0
    assert told(client.get("/healthz"))["status"] == "closing"
    assert client.get("/metrics").status_code == 200


def test_the_end_of_an_app_closes_its_worlds() -> None:
    strange_worlds.forget()
    with Client(build_app(Settings(world=strange_worlds.WORLDS))) as client:
        for world in (QUICK, WAITING):
            client.playing(world)
        assert len(strange_worlds.living) == 2
    assert not strange_worlds.living


def test_asking_is_no_turn() -> None:
    async def scenario() -> None:
        async with opened() as (sessions, _):
            session = await playing(sessions)
            last = session.last
            assert (await sessions.call(session, Ask("oracle"))).value == "knock"
            assert session.last is last

    run(scenario)


@pytest.mark.long
def test_sessions_that_are_over_leave_no_memory_behind(client: Client) -> None:
    def play() -> None:
        for _ in range(50):
            session = client.playing()
            for number in range(5):
                told(client.step(session, "knock", key=str(number)))
            assert client.delete(f"/v1/sessions/{session}").status_code == 204

    assert growth(play) < 50 * 1_000  # bytes; a session that is kept has thousands
