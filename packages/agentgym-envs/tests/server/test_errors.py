"""Tests of error responses: the status, type and message of each kind of error, and the handling of unusual values."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import strange_worlds
from agentgym_envs import EnvFault
from agentgym_envs.pool import Result
from agentgym_envs.server.app import MAX_PAGE
from agentgym_envs.server.models import StepRequest
from agentgym_envs.server.wire import OutcomeWriter, parsed, written
from app_client import TASK, Client, expect_error, expect_ok
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE, eventually

UNKNOWN_SESSION = "0" * 32


def test_unknown_route_or_method_is_refused(shared_client: Client) -> None:
    assert "/nope" in expect_error(shared_client.get("/nope"), 404, "not_found")
    response = shared_client.get("/v1/step")
    assert "GET" in expect_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    expect_error(shared_client.put("/v1/sessions", json={}), 405, "method_not_allowed")
    expect_error(shared_client.post("/v1/sessions/", json={}, follow_redirects=False), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/reset"),
        ("POST", "/step"),
        ("GET", "/observation"),
        ("GET", "/render"),
        ("GET", "/oracle"),
        ("GET", "/oracle_thought"),
        ("GET", "/oracle_plan"),
        ("GET", "/scene"),
        ("GET", "/functions"),
        ("GET", "/tasks"),
        ("GET", f"/tasks/{TASK}"),
    ],
)
def test_unknown_session_is_refused(shared_client: Client, method: str, path: str) -> None:
    body = {"json": {"action": ""} if path == "/step" else {}} if method == "POST" else {}
    response = shared_client.request(method, f"/v1/sessions/{UNKNOWN_SESSION}{path}", **body)
    message = expect_error(response, 404, "unknown_session")
    assert UNKNOWN_SESSION in message and "POST /v1/sessions" in message


def test_unknown_environment_is_refused(shared_client: Client) -> None:
    response = shared_client.post("/v1/sessions", json={"world": "agentgym/TextCraft"})
    assert "Did you mean agentgym/TextCraft-v0?" in expect_error(response, 404, "unknown_world")
    for world in ("os:agentgym/TextCraft-v0", "CartPole-v1", "", "../x", "strange_worlds:"):
        expect_error(shared_client.post("/v1/sessions", json={"world": world}), 404, "unknown_world")


def test_unknown_task_is_refused(client: Client) -> None:
    session = client.create_session()
    assert "door/train/9" in expect_error(client.reset(session, task="door/train/9"), 404, "unknown_task")
    assert "no/such/task" in expect_error(client.query(session, "tasks/no/such/task"), 404, "unknown_task")


def test_a_refused_reset_leaves_the_episode_and_a_broken_one_ends_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = client.start_episode()
    knocked = expect_ok(client.step(session, "knock"))
    expect_error(client.reset(session, task="door/train/9"), 404, "unknown_task")
    assert expect_ok(client.query(session, "observation"))["observation"] == knocked["observation"]

    def fail(self: object, task: object) -> str:
        raise EnvFault("The door is gone.")

    with monkeypatch.context() as patch:
        patch.setattr(strange_worlds.Door, "_start", fail)
        expect_error(client.reset(session, task=TASK), 502, "world_fault")
    for response in (client.query(session, "observation"), client.step(session, "knock")):
        expect_error(response, 409, "reset_needed")


def test_calls_before_the_first_reset_are_refused(client: Client) -> None:
    session = client.create_session(render_mode="ansi")
    expect_error(client.step(session, "knock"), 409, "reset_needed")
    for route in ("observation", "render", "oracle", "oracle_thought", "oracle_plan", "scene"):
        expect_error(client.query(session, route), 409, "reset_needed")


def test_rendering_needs_a_render_mode(client: Client) -> None:
    expect_error(client.query(client.start_episode(), "render"), 409, "no_render_mode")


def test_environment_fault_is_reported_and_reset_recovers(client: Client) -> None:
    session = client.start_episode()
    assert expect_error(client.step(session, "fault"), 502, "world_fault") == "The door fell off."
    expect_ok(client.reset(session, task=TASK))
    assert expect_ok(client.step(session, "knock"))["info"]["raw"]["acted"] == 1


@pytest.mark.parametrize("world", [strange_worlds.QUICK, strange_worlds.WAITING])
def test_a_panic_in_an_environment_is_a_fault(client: Client, world: str) -> None:
    session = client.start_episode(world)
    assert "PanicException" in expect_error(client.step(session, "panic"), 502, "world_fault")
    expect_ok(client.reset(session, task=TASK))
    assert expect_ok(client.step(session, "knock"))["info"]["raw"]["acted"] == 1


def test_fault_at_creation_leaves_no_session(client: Client) -> None:
    body = {"world": strange_worlds.WAITING, "options": {"mood": "broken"}, "key": "k"}
    for _ in range(2):
        assert "no mood" in expect_error(client.post("/v1/sessions", json=body), 502, "world_fault")
    assert expect_ok(client.get("/healthz"))["sessions"] == 0


def test_bug_in_an_environment_is_an_internal_error(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    message = expect_error(client.step(client.start_episode(), "bug"), 500, "internal")
    assert "KeyError" in message and "mistake" not in message
    assert "a mistake of the world's" in caplog.text


def test_bug_in_the_server_is_an_internal_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.server.sessions.Sessions.get", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in expect_error(client.get(f"/v1/sessions/{UNKNOWN_SESSION}"), 500, "internal")


def test_second_call_during_a_pending_call_is_refused(client: Client) -> None:
    session = client.start_episode(strange_worlds.WAITING)
    pending = threading.Thread(target=client.step, args=(session, "wait a"))
    pending.start()
    strange_worlds.wait_until_blocked("a")
    expect_error(client.step(session, "knock"), 409, "busy")
    expect_error(client.query(session, "oracle"), 409, "busy")
    strange_worlds.release("a")
    pending.join()
    expect_ok(client.step(session, "knock"))


def test_blocked_environment_is_replaced(client: Client) -> None:
    session = client.start_episode(strange_worlds.WAITING)
    with client.short_deadline():
        assert "0.1 seconds" in expect_error(client.step(session, "wait a"), 504, "deadline")
    expect_error(client.step(session, "knock"), 409, "reset_needed")
    expect_ok(client.reset(session, task=TASK))
    expect_ok(client.step(session, "knock"))


def test_number_of_sessions_is_limited(serve: Callable[..., Client]) -> None:
    client = serve(max_sessions=2)
    sessions = [client.create_session() for _ in range(2)]
    response = client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "key": "k"})
    expect_error(response, 429, "too_many_sessions")
    assert int(response.headers["retry-after"]) > 0
    client.delete(f"/v1/sessions/{sessions[0]}")
    expect_ok(client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "key": "k"}), 201)


def test_closed_sessions_count_while_their_environments_are_at_work(serve: Callable[..., Client]) -> None:
    client = serve(max_sessions=1)
    session = client.start_episode(strange_worlds.WAITING)
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(client.step, session, "wait a")
        strange_worlds.wait_until_blocked("a")
        client.delete(f"/v1/sessions/{session}")
        response = client.post("/v1/sessions", json={"world": strange_worlds.QUICK})
        assert "1 closed ones whose environments are still at work" in expect_error(response, 429, "too_many_sessions")
        strange_worlds.release("a")
        step.result(PATIENCE)
    eventually(lambda: client.post("/v1/sessions", json={"world": strange_worlds.QUICK}).status_code == 201)


def test_nothing_is_paid_after_a_limit_of_turns(serve: Callable[..., Client]) -> None:
    client = serve()
    session = client.start_episode(max_episode_steps=1)
    end = expect_ok(client.step(session, "look"))
    assert end["truncated"] and not end["terminated"]
    for _ in range(3):
        assert expect_ok(client.step(session, "knock")) == end | {"reward": 0.0}
    expect_ok(client.reset(session, task=TASK))
    assert not expect_ok(client.query(session, "observation"))["truncated"]


def test_the_size_of_options_is_limited(shared_client: Client) -> None:
    options = {"levels": "a" * 300_000}
    response = shared_client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "options": options})
    assert "at most 262,144 bytes" in expect_error(response, 413, "too_large")


def test_failed_creation_does_not_count_as_a_session(serve: Callable[..., Client]) -> None:
    client = serve(max_sessions=1)
    for _ in range(3):
        response = client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "options": {"mood": "bad"}})
        expect_error(response, 422, "invalid")
    client.create_session()


def test_size_of_bodies_is_limited(serve: Callable[..., Client]) -> None:
    client = serve(max_body=1_000)
    session = client.start_episode()
    path, headers = f"/v1/sessions/{session}/step", {"content-type": "application/json"}
    body = json.dumps({"action": "x" * 1_000}).encode()
    assert "1,000" in expect_error(client.post_bytes(path, body), 413, "too_large")
    pieces = (body[i : i + 100] for i in range(0, len(body), 100))
    expect_error(client.post(path, content=pieces, headers=headers), 413, "too_large")
    assert expect_ok(client.post_bytes(path, b'{"action":"knock"}' + b" " * 982))["info"]["valid"]
    headers |= {"content-length": "0" * 5_000 + "1"}
    expect_error(client.post(path, content=body, headers=headers), 413, "too_large")


def test_size_of_bodies_in_pieces_is_limited_on_routes_of_other_protocols(serve: Callable[..., Client]) -> None:
    client, headers = serve(max_body=1_000), {"content-type": "application/json"}
    pieces = (b" " * 100 for _ in range(20))
    expect_error(client.post("/compat/babyai/step", content=pieces, headers=headers), 413, "too_large")


def test_length_of_actions_and_batches_is_limited(serve: Callable[..., Client]) -> None:
    client = serve(max_action=10, max_batch=2)
    session = client.start_episode()
    expect_ok(client.step(session, "x" * 10))
    assert "10" in expect_error(client.step(session, "x" * 11), 422, "invalid")
    expect_error(client.step(session, "x", hint="x" * 11), 422, "invalid")
    calls = [{"session": session, "action": "knock"}] * 3
    assert "2" in expect_error(client.post("/v1/step", json={"calls": calls}), 422, "invalid")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[" * 100_000, b'{"action": \xff}', b'{"action": NaN}', b'{"action": "\xed\xa0\x80"}', b"nonsense"],
)
def test_invalid_json_is_refused(shared_client: Client, body: bytes) -> None:
    for path in ("/v1/sessions", f"/v1/sessions/{UNKNOWN_SESSION}/step", "/v1/step"):
        response = shared_client.post_bytes(path, body)
        assert expect_error(response, response.status_code, response.json()["error"]["type"])
        assert response.status_code == (422 if b"NaN" in body else 400)


def test_other_content_types_are_refused(shared_client: Client) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = shared_client.post("/v1/sessions", content=b"{}", headers={"content-type": content_type})
        assert "application/json" in expect_error(response, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/sessions", {}, "world"),
        ("/v1/sessions", {"world": 3}, "world"),
        ("/v1/sessions", {"world": "x", "more": 1}, "more"),
        ("/v1/sessions", {"world": "x", "options": []}, "options"),
        ("/v1/sessions", {"world": "x", "key": "k" * 65}, "key"),
        ("/v1/sessions", [], "body"),
        ("/v1/sessions/0/reset", {"seed": -1}, "seed"),
        ("/v1/sessions/0/reset", {"seed": 1.5}, "seed"),
        ("/v1/sessions/0/reset", {"seed": True}, "seed"),
        ("/v1/sessions/0/reset", {"split": "exam"}, "split"),
        ("/v1/sessions/0/step", {}, "action"),
        ("/v1/sessions/0/step", {"action": None}, "action"),
        ("/v1/step", {"calls": [{"session": "0"}]}, "calls.0.action"),
        ("/v1/reset", {"calls": {}}, "calls"),
    ],
)
def test_invalid_field_is_named(shared_client: Client, path: str, body: Any, field: str) -> None:
    assert expect_error(shared_client.post(path, json=body), 422, "invalid").startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/step", b'{"calls":[' + b"0," * 100_000 + b"0]}", "calls.0: "),
        ("/v1/step", b'{"half":"\\ud83e","calls":[' + b"0," * 100_000 + b"0]}", "calls.0: "),
        (
            "/v1/sessions/0/step",
            b"{" + b",".join(b'"%d":0' % key for key in range(10_000)) + b"}",
            "10,001 invalid fields",
        ),
    ],
)
def test_many_invalid_fields_are_summarized(shared_client: Client, path: str, body: bytes, message: str) -> None:
    """Listing the two million errors that fit in one body took the server a minute."""
    assert message in expect_error(shared_client.post_bytes(path, body), 422, "invalid")


@pytest.mark.parametrize("query", [{"split": "exam"}, {"offset": -1}, {"limit": MAX_PAGE + 1}, {"fields": "some"}])
def test_invalid_page_is_refused(client: Client, query: dict[str, Any]) -> None:
    assert next(iter(query)) in expect_error(client.query(client.create_session(), "tasks", **query), 422, "invalid")


def test_split_without_tasks_is_refused(client: Client) -> None:
    assert "dev" in expect_error(client.reset(client.create_session(), split="dev"), 422, "invalid")


def test_lone_surrogates_become_question_marks(client: Client) -> None:
    session = client.start_episode(mood="raw")
    outcome = expect_ok(client.post_bytes(f"/v1/sessions/{session}/step", b'{"action": "\\ud83e knock"}'))
    assert outcome["info"]["valid"] is False
    outcome = expect_ok(client.step(session, "half"))
    assert outcome["observation"] == "half a ?"
    expect_error(client.post_bytes(f"/v1/sessions/{session}/reset", b'{"task": "\\ud83e"}'), 404, "unknown_task")


def test_values_that_json_lacks_are_written(client: Client) -> None:
    session = client.start_episode(mood="raw")
    raw = expect_ok(client.query(session, "observation"))["info"]["raw"]
    assert raw == {"acted": 0, "nan": None, "half": "\ud83e", "seven": 7, "list": [0, 1], "set": "{1}"}
    assert json.loads(written({"x": float("inf"), "y": (1, {2: "z"})})) == {"x": None, "y": [1, {"2": "z"}]}
    assert written({"picture": strange_worlds.image()}).startswith(b'{"picture":"data:image/png;base64,iVBOR')


@given(st.text(st.characters()))
def test_any_text_is_a_valid_action(text: str) -> None:
    action = parsed(StepRequest, json.dumps({"action": text}).encode()).action
    assert action == text.encode(errors="replace").decode()


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(st.characters()), st.lists, max_leaves=5))
def test_any_value_is_written_as_json(value: Any) -> None:
    json.loads(written({"value": value}), parse_constant=pytest.fail)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"score": st.floats(0, 1)},
            optional={
                "available_actions": st.none() | st.lists(st.text(), max_size=2),
                "raw": st.text(st.characters()),
            },
        ),
        max_size=4,
    )
)
def test_written_outcomes_keep_their_info(infos: list[dict[str, Any]]) -> None:
    write = OutcomeWriter()
    for info in infos:
        written_info = json.loads(write(Result(0, "seen", 0.5, True, False, info)))["info"]
        assert written_info == {"available_actions": None} | info


def test_actions_changed_in_place_are_written_again() -> None:
    write, actions = OutcomeWriter(), ["knock"]
    for action in ("open", "leave"):
        actions.append(action)
        assert json.loads(write(Result(0, info={"available_actions": actions})))["info"]["available_actions"] == actions


def test_failure_to_start_a_worker_is_reported(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("agentgym_envs.server.workers.Workers.open_slot", fail)
    response = client.post("/v1/sessions", json={"world": strange_worlds.QUICK})
    assert "no more processes" in expect_error(response, 502, "world_fault")


def test_length_of_error_messages_is_limited(shared_client: Client) -> None:
    body = {"world": strange_worlds.QUICK, "options": {"mood": "x" * 10_000}}
    response = shared_client.post("/v1/sessions", json=body)
    assert len(expect_error(response, 422, "invalid")) < 3_000


def test_disconnect_before_the_body_is_not_logged(shared_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/step",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(shared_client.app(scope, receive, send))  # pyright: ignore[reportArgumentType]
    assert sent[0]["status"] == 400
    assert not caplog.records
