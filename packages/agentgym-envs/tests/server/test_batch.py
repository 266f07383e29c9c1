"""Tests of batches of calls: every call has its own status, and results are sent in order of completion."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import strange_worlds
from agentgym_envs.server import models, streaming
from agentgym_envs.server.app import build_app
from agentgym_envs.server.models import SessionStep
from agentgym_envs.server.settings import Settings
from app_client import TASK, Client, expect_error, expect_ok, short_deadline
from patience import PATIENCE
from pydantic import TypeAdapter
from strange_worlds import QUICK, WAITING


def lines_of(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 207, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    for line in lines:
        TypeAdapter(models.BatchLine).validate_python(line, strict=True)
    return lines


def post_steps(client: Client, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return lines_of(client.post("/v1/step", json={"calls": calls}))


def test_batch_matches_single_calls(client: Client) -> None:
    worlds = [QUICK, WAITING, QUICK, WAITING]
    single, batched = ([client.create_session(world) for world in worlds] for _ in range(2))
    for session in single:
        client.reset(session, task=TASK)
    resets = lines_of(client.post("/v1/reset", json={"calls": [{"session": s, "task": TASK} for s in batched]}))
    assert [line["status"] for line in resets] == [200] * 4
    for action in ("knock", "hello", "knock", "open", "open"):
        expected = [expect_ok(client.step(session, action)) for session in single]
        lines = post_steps(client, [{"session": session, "action": action} for session in batched])
        assert {line["index"]: line["outcome"] for line in lines} == dict(enumerate(expected))
        assert all(batched[line["index"]] == line["session"] for line in lines)


def test_every_call_has_its_own_status(client: Client) -> None:
    good, fault, fresh = client.start_episode(), client.start_episode(), client.create_session()
    calls = [
        {"session": good, "action": "knock", "key": "k"},
        {"session": fault, "action": "fault"},
        {"session": fresh, "action": "knock"},
        {"session": "nobody", "action": "knock"},
        {"session": good, "action": "open"},
    ]
    lines = sorted(post_steps(client, calls), key=lambda line: line["index"])
    assert [line["status"] for line in lines] == [200, 502, 409, 404, 409]
    kinds = ["world_fault", "reset_needed", "unknown_session", "busy"]
    assert [line["error"]["type"] for line in lines[1:]] == kinds
    assert post_steps(client, calls[:1])[0]["outcome"] == lines[0]["outcome"]


def test_unwritable_outcome_does_not_fail_other_calls(client: Client) -> None:
    good, knotted = client.start_episode(), client.create_session(mood="knotted")
    expect_error(client.reset(knotted), 500, "internal")
    lines = post_steps(client, [{"session": session, "action": "knock"} for session in (knotted, good)])
    assert [line["status"] for line in lines] == [500, 200]
    assert lines[0]["error"]["type"] == "internal"


def test_empty_batch_has_an_empty_response(client: Client) -> None:
    assert post_steps(client, []) == []


def test_closing_server_refuses_each_call(client: Client) -> None:
    session = client.start_episode()
    client.app.state.sessions.refuse_calls()  # pyright: ignore[reportAttributeAccessIssue]
    (line,) = post_steps(client, [{"session": session, "action": "knock"}])
    assert (line["status"], line["error"]["type"]) == (503, "closing")


class AsgiClient:
    """An ASGI client that yields each chunk of a response as it is sent."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def post(self, path: str, body: Any, *, disconnect: bool = False) -> AsyncIterator[bytes]:
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        content = json.dumps(body).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await chunks.put(message["body"])
                if disconnect:
                    raise OSError("the client has disconnected")

        async def call() -> None:
            headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
            try:
                await self.app(scope, receive, send)
            finally:
                await chunks.put(None)

        task = asyncio.create_task(call())
        while (chunk := await chunks.get()) is not None:
            yield chunk
        await task

    async def post_json(self, path: str, body: Any) -> Any:
        return json.loads(b"".join([chunk async for chunk in self.post(path, body)]))


def run_scenario(scenario: Callable[[AsgiClient], Any]) -> None:
    async def run() -> None:
        strange_worlds.clear_state()
        app = build_app(Settings(world=strange_worlds.WORLDS))
        async with app.router.lifespan_context(app):
            await scenario(AsgiClient(app))
            strange_worlds.release_all()
        assert strange_worlds.all_closed()

    asyncio.run(run())


async def start_episodes(client: AsgiClient, worlds: list[str]) -> list[str]:
    sessions = [(await client.post_json("/v1/sessions", {"world": world}))["id"] for world in worlds]
    for session in sessions:
        await client.post_json(f"/v1/sessions/{session}/reset", {"task": TASK})
    return sessions


def test_lines_are_sent_as_calls_complete() -> None:
    async def scenario(client: AsgiClient) -> None:
        sessions = await start_episodes(client, [WAITING, QUICK, WAITING, QUICK])
        actions = ["wait a", "knock", "wait b", "knock"]
        calls = [{"session": s, "action": action} for s, action in zip(sessions, actions, strict=True)]
        order: list[int] = []
        async for chunk in client.post("/v1/step", {"calls": calls}):
            order += [json.loads(line)["index"] for line in chunk.splitlines()]
            for name, completed in (("b", [1, 3]), ("a", [1, 3, 2])):
                if order == completed:
                    await asyncio.to_thread(strange_worlds.wait_until_blocked, name)
                    strange_worlds.release(name)
        assert order == [1, 3, 2, 0]

    run_scenario(scenario)


def test_line_that_completes_during_sending_is_not_lost() -> None:
    async def scenario(client: AsgiClient) -> None:
        ids = await start_episodes(client, [WAITING, QUICK, QUICK])
        actions = ["wait a", "dawdle", "knock"]
        calls = [SessionStep(session=s, action=action) for s, action in zip(ids, actions, strict=True)]
        sessions = client.app.state.sessions
        chunks = streaming.lines(sessions, calls)
        sent = [await anext(chunks)]
        strange_worlds.release("a")
        while sessions.get(ids[0]).pending is not None:
            await asyncio.sleep(0)
        sent += [chunk async for chunk in chunks]
        assert [json.loads(line)["index"] for line in b"".join(sent).splitlines()] == [1, 0, 2]

    run_scenario(scenario)


def test_overdue_call_has_an_error_line() -> None:
    async def scenario(client: AsgiClient) -> None:
        sessions = await start_episodes(client, [WAITING, QUICK])
        calls = [{"session": sessions[0], "action": "wait a"}, {"session": sessions[1], "action": "knock"}]
        with short_deadline(client.app.state.sessions):
            text = b"".join([chunk async for chunk in client.post("/v1/step", {"calls": calls})])
        assert [json.loads(line)["status"] for line in text.splitlines()] == [200, 504]

    run_scenario(scenario)


@pytest.mark.parametrize("time_slice", [0.0, PATIENCE], ids=["before all calls start", "after all calls started"])
def test_calls_continue_after_a_disconnect(time_slice: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_SLICE", time_slice)

    async def scenario(client: AsgiClient) -> None:
        sessions = await start_episodes(client, [QUICK, WAITING])
        actions = ["knock", "wait a"]
        calls = [{"session": s, "action": action, "key": "k"} for s, action in zip(sessions, actions, strict=True)]
        chunks = client.post("/v1/step", {"calls": calls}, disconnect=True)
        assert await anext(chunks)
        await asyncio.to_thread(strange_worlds.wait_until_blocked, "a")
        strange_worlds.release("a")
        assert [chunk async for chunk in chunks] == []
        text = b"".join([chunk async for chunk in client.post("/v1/step", {"calls": calls})])
        outcomes = [json.loads(line)["outcome"] for line in text.splitlines()]
        assert [outcome["info"]["raw"]["acted"] for outcome in outcomes] == [1, 1]

    run_scenario(scenario)


def test_long_batch_does_not_block_other_requests() -> None:
    async def scenario(client: AsgiClient) -> None:
        sessions = await start_episodes(client, [QUICK] * 8)
        calls = [{"session": session, "action": "dawdle"} for session in sessions[1:]]
        responses: list[str] = []

        async def post_batch() -> None:
            async for chunk in client.post("/v1/step", {"calls": calls}):
                responses.extend("batch" for _ in chunk.splitlines())

        async def post_single() -> None:
            await client.post_json(f"/v1/sessions/{sessions[0]}/step", {"action": "knock"})
            responses.append("single")

        await asyncio.gather(post_batch(), post_single())
        assert len(responses) == 8
        assert responses[-1] == "batch"

    run_scenario(scenario)


def test_malformed_batch_is_refused_as_a_whole(client: Client) -> None:
    expect_error(client.post_bytes("/v1/step", b"["), 400, "bad_request")
    expect_error(client.post("/v1/step", json={"calls": [{"session": "x", "actions": "y"}]}), 422, "invalid")
