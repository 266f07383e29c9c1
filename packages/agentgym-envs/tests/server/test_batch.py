"""Many calls in one: every call has its own status, and whoever is ready first is told of first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import strange_worlds
from agentgym_envs.server import models, streaming
from agentgym_envs.server.app import build_app
from agentgym_envs.server.models import StepOf
from agentgym_envs.server.settings import Settings
from app_client import TASK, Client, impatient, refused, told
from patience import PATIENCE
from pydantic import TypeAdapter
from strange_worlds import QUICK, WAITING


def lines_of(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 207, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    for line in lines:
        TypeAdapter(models.Line).validate_python(line, strict=True)
    return lines


def steps(client: Client, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return lines_of(client.post("/v1/step", json={"calls": calls}))


def test_a_batch_is_played_as_single_calls_are(client: Client) -> None:
    worlds = [QUICK, WAITING, QUICK, WAITING]
    alone, together = ([client.made(world) for world in worlds] for _ in range(2))
    for session in alone:
        client.reset(session, task=TASK)
    resets = lines_of(client.post("/v1/reset", json={"calls": [{"session": s, "task": TASK} for s in together]}))
    assert [line["status"] for line in resets] == [200] * 4
    for action in ("knock", "hello", "knock", "open", "open"):
        expected = [told(client.step(session, action)) for session in alone]
        lines = steps(client, [{"session": session, "action": action} for session in together])
        assert {line["index"]: line["outcome"] for line in lines} == dict(enumerate(expected))
        assert all(together[line["index"]] == line["session"] for line in lines)


def test_every_call_has_its_own_status(client: Client) -> None:
    good, fault, fresh = client.playing(), client.playing(), client.made()
    calls = [
        {"session": good, "action": "knock", "key": "k"},
        {"session": fault, "action": "fault"},
        {"session": fresh, "action": "knock"},
        {"session": "nobody", "action": "knock"},
        {"session": good, "action": "open"},
    ]
    lines = sorted(steps(client, calls), key=lambda line: line["index"])
    assert [line["status"] for line in lines] == [200, 502, 409, 404, 409]
    kinds = ["world_fault", "reset_needed", "unknown_session", "busy"]
    assert [line["error"]["type"] for line in lines[1:]] == kinds
    assert steps(client, calls[:1])[0]["outcome"] == lines[0]["outcome"]


def test_an_answer_that_cant_be_written_harms_no_other(client: Client) -> None:
    good, knotted = client.playing(), client.made(mood="knotted")
    refused(client.reset(knotted), 500, "internal")
    lines = steps(client, [{"session": session, "action": "knock"} for session in (knotted, good)])
    assert [line["status"] for line in lines] == [500, 200]
    assert lines[0]["error"]["type"] == "internal"


def test_an_empty_batch_has_an_empty_answer(client: Client) -> None:
    assert steps(client, []) == []


def test_a_closing_server_refuses_each_call(client: Client) -> None:
    session = client.playing()
    client.app.state.sessions.refuse_calls()  # pyright: ignore[reportAttributeAccessIssue]
    (line,) = steps(client, [{"session": session, "action": "knock"}])
    assert (line["status"], line["error"]["type"]) == (503, "closing")


class Caller:
    """Speaks ASGI to an app, and hears each chunk as it comes."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def post(self, path: str, body: Any, *, leaves: bool = False) -> AsyncIterator[bytes]:
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        sent = json.dumps(body).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await chunks.put(message["body"])
                if leaves:
                    raise OSError("the client has left")

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

    async def told(self, path: str, body: Any) -> Any:
        return json.loads(b"".join([chunk async for chunk in self.post(path, body)]))


def in_loop(scenario: Callable[[Caller], Any]) -> None:
    async def run() -> None:
        strange_worlds.forget()
        app = build_app(Settings(world=strange_worlds.WORLDS))
        async with app.router.lifespan_context(app):
            await scenario(Caller(app))
            strange_worlds.let_go()
        assert strange_worlds.all_closed()

    asyncio.run(run())


async def playing(caller: Caller, worlds: list[str]) -> list[str]:
    made = [(await caller.told("/v1/sessions", {"world": world}))["id"] for world in worlds]
    for session in made:
        await caller.told(f"/v1/sessions/{session}/reset", {"task": TASK})
    return made


def test_lines_come_as_calls_end() -> None:
    async def scenario(caller: Caller) -> None:
        sessions = await playing(caller, [WAITING, QUICK, WAITING, QUICK])
        actions = ["wait a", "knock", "wait b", "knock"]
        calls = [{"session": s, "action": action} for s, action in zip(sessions, actions, strict=True)]
        order: list[int] = []
        async for chunk in caller.post("/v1/step", {"calls": calls}):
            order += [json.loads(line)["index"] for line in chunk.splitlines()]
            for name, after in (("b", [1, 3]), ("a", [1, 3, 2])):
                if order == after:
                    await asyncio.to_thread(strange_worlds.wait_for, name)
                    strange_worlds.let_go_on(name)
        assert order == [1, 3, 2, 0]

    in_loop(scenario)


def test_no_line_is_lost_that_comes_while_others_are_sent() -> None:
    async def scenario(caller: Caller) -> None:
        made = await playing(caller, [WAITING, QUICK, QUICK])
        actions = ["wait a", "dawdle", "knock"]
        calls = [StepOf(session=s, action=action) for s, action in zip(made, actions, strict=True)]
        sessions = caller.app.state.sessions
        chunks = streaming.lines(sessions, calls)
        sent = [await anext(chunks)]
        strange_worlds.let_go_on("a")
        while sessions.get(made[0]).pending is not None:
            await asyncio.sleep(0)
        sent += [chunk async for chunk in chunks]
        assert [json.loads(line)["index"] for line in b"".join(sent).splitlines()] == [1, 0, 2]

    in_loop(scenario)


def test_a_call_that_is_overdue_has_its_line() -> None:
    async def scenario(caller: Caller) -> None:
        sessions = await playing(caller, [WAITING, QUICK])
        calls = [{"session": sessions[0], "action": "wait a"}, {"session": sessions[1], "action": "knock"}]
        with impatient(caller.app.state.sessions):
            text = b"".join([chunk async for chunk in caller.post("/v1/step", {"calls": calls})])
        assert [json.loads(line)["status"] for line in text.splitlines()] == [200, 504]

    in_loop(scenario)


@pytest.mark.parametrize("turn", [0.0, PATIENCE], ids=["before all calls begin", "when all have begun"])
def test_calls_go_on_when_the_client_leaves(turn: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_SLICE", turn)

    async def scenario(caller: Caller) -> None:
        sessions = await playing(caller, [QUICK, WAITING])
        actions = ["knock", "wait a"]
        calls = [{"session": s, "action": action, "key": "k"} for s, action in zip(sessions, actions, strict=True)]
        heard = caller.post("/v1/step", {"calls": calls}, leaves=True)
        assert await anext(heard)
        await asyncio.to_thread(strange_worlds.wait_for, "a")
        strange_worlds.let_go_on("a")
        assert [chunk async for chunk in heard] == []
        text = b"".join([chunk async for chunk in caller.post("/v1/step", {"calls": calls})])
        outcomes = [json.loads(line)["outcome"] for line in text.splitlines()]
        assert [outcome["info"]["raw"]["acted"] for outcome in outcomes] == [1, 1]

    in_loop(scenario)


def test_a_long_batch_lets_others_be_heard() -> None:
    async def scenario(caller: Caller) -> None:
        sessions = await playing(caller, [QUICK] * 8)
        calls = [{"session": session, "action": "dawdle"} for session in sessions[1:]]
        heard: list[str] = []

        async def many() -> None:
            async for chunk in caller.post("/v1/step", {"calls": calls}):
                heard.extend("batch" for _ in chunk.splitlines())

        async def one() -> None:
            await caller.told(f"/v1/sessions/{sessions[0]}/step", {"action": "knock"})
            heard.append("single")

        await asyncio.gather(many(), one())
        assert len(heard) == 8
        assert heard[-1] == "batch"

    in_loop(scenario)


def test_what_is_wrong_with_a_batch_as_a_whole(client: Client) -> None:
    refused(client.raw("/v1/step", b"["), 400, "bad_request")
    refused(client.post("/v1/step", json={"calls": [{"session": "x", "actions": "y"}]}), 422, "invalid")
