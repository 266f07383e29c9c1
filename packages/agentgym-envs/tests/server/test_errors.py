"""What a client is told when something isn't as it should be: each type of error, and never anything else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import strange_worlds
from agentgym_envs.pool import Result
from agentgym_envs.server.app import MAX_PAGE
from agentgym_envs.server.models import StepWanted
from agentgym_envs.server.wire import OutcomeWriter, parsed, written
from app_client import TASK, Client, refused, told
from hypothesis import given
from hypothesis import strategies as st

GONE = "0" * 32


def test_what_is_not_there(asked: Client) -> None:
    assert "/nope" in refused(asked.get("/nope"), 404, "not_found")
    answer = asked.get("/v1/step")
    assert "GET" in refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    refused(asked.put("/v1/sessions", json={}), 405, "method_not_allowed")
    refused(asked.post("/v1/sessions/", json={}, follow_redirects=False), 404, "not_found")


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
def test_an_unknown_session(asked: Client, method: str, path: str) -> None:
    body = {"json": {"action": ""} if path == "/step" else {}} if method == "POST" else {}
    said = refused(asked.request(method, f"/v1/sessions/{GONE}{path}", **body), 404, "unknown_session")
    assert GONE in said and "POST /v1/sessions" in said


def test_an_unknown_world(asked: Client) -> None:
    wanted = {"world": "agentgym/TextCraft"}
    assert "Did you mean agentgym/TextCraft-v0?" in refused(
        asked.post("/v1/sessions", json=wanted), 404, "unknown_world"
    )
    for world in ("os:agentgym/TextCraft-v0", "CartPole-v1", "", "../x", "strange_worlds:"):
        refused(asked.post("/v1/sessions", json={"world": world}), 404, "unknown_world")


def test_an_unknown_task(client: Client) -> None:
    session = client.made()
    assert "door/train/9" in refused(client.reset(session, task="door/train/9"), 404, "unknown_task")
    assert "no/such/task" in refused(client.ask(session, "tasks/no/such/task"), 404, "unknown_task")


def test_nothing_is_played_before_a_reset(client: Client) -> None:
    session = client.made(render_mode="ansi")
    refused(client.step(session, "knock"), 409, "reset_needed")
    for what in ("observation", "render", "oracle", "oracle_thought", "oracle_plan", "scene"):
        refused(client.ask(session, what), 409, "reset_needed")


def test_nothing_is_shown_without_a_render_mode(client: Client) -> None:
    refused(client.ask(client.playing(), "render"), 409, "no_render_mode")


def test_a_world_that_breaks(client: Client) -> None:
    session = client.playing()
    assert refused(client.step(session, "fault"), 502, "world_fault") == "The door fell off."
    told(client.reset(session, task=TASK))
    assert told(client.step(session, "knock"))["info"]["raw"]["acted"] == 1


def test_a_world_that_breaks_as_it_is_made(client: Client) -> None:
    asked = {"world": strange_worlds.WAITING, "options": {"mood": "broken"}, "key": "k"}
    for _ in range(2):
        assert "no mood" in refused(client.post("/v1/sessions", json=asked), 502, "world_fault")
    assert told(client.get("/healthz"))["sessions"] == 0


def test_a_world_with_a_bug(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    said = refused(client.step(client.playing(), "bug"), 500, "internal")
    assert "KeyError" in said and "mistake" not in said
    assert "a mistake of the world's" in caplog.text


def test_a_server_with_a_bug(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.server.sessions.Sessions.get", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in refused(client.get(f"/v1/sessions/{GONE}"), 500, "internal")


def test_another_call_is_on_its_way(client: Client) -> None:
    session = client.playing(strange_worlds.WAITING)
    waiting = threading.Thread(target=client.step, args=(session, "wait a"))
    waiting.start()
    strange_worlds.wait_for("a")
    refused(client.step(session, "knock"), 409, "busy")
    refused(client.ask(session, "oracle"), 409, "busy")
    strange_worlds.let_go_on("a")
    waiting.join()
    told(client.step(session, "knock"))


def test_a_world_that_hangs_is_replaced(client: Client) -> None:
    session = client.playing(strange_worlds.WAITING)
    with client.impatient():
        assert "0.1 seconds" in refused(client.step(session, "wait a"), 504, "deadline")
    refused(client.step(session, "knock"), 409, "reset_needed")
    told(client.reset(session, task=TASK))
    told(client.step(session, "knock"))


def test_there_are_only_so_many_sessions(serve: Callable[..., Client]) -> None:
    client = serve(max_sessions=2)
    sessions = [client.made() for _ in range(2)]
    answer = client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "key": "k"})
    refused(answer, 429, "too_many_sessions")
    assert int(answer.headers["retry-after"]) > 0
    client.delete(f"/v1/sessions/{sessions[0]}")
    told(client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "key": "k"}), 201)


def test_a_failed_creation_takes_no_place(serve: Callable[..., Client]) -> None:
    client = serve(max_sessions=1)
    for _ in range(3):
        refused(
            client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "options": {"mood": "bad"}}),
            422,
            "invalid",
        )
    client.made()


def test_bodies_are_only_so_large(serve: Callable[..., Client]) -> None:
    client = serve(max_body=1_000)
    session = client.playing()
    path, headers = f"/v1/sessions/{session}/step", {"content-type": "application/json"}
    body = json.dumps({"action": "x" * 1_000}).encode()
    assert "1,000" in refused(client.raw(path, body), 413, "too_large")
    pieces = (body[i : i + 100] for i in range(0, len(body), 100))
    refused(client.post(path, content=pieces, headers=headers), 413, "too_large")
    assert told(client.raw(path, b'{"action":"knock"}' + b" " * 982))["info"]["valid"]
    refused(client.post(path, content=body, headers=headers | {"content-length": "0" * 5_000 + "1"}), 413, "too_large")


def test_actions_and_batches_are_only_so_long(serve: Callable[..., Client]) -> None:
    client = serve(max_action=10, max_batch=2)
    session = client.playing()
    told(client.step(session, "x" * 10))
    assert "10" in refused(client.step(session, "x" * 11), 422, "invalid")
    refused(client.step(session, "x", hint="x" * 11), 422, "invalid")
    calls = [{"session": session, "action": "knock"}] * 3
    assert "2" in refused(client.post("/v1/step", json={"calls": calls}), 422, "invalid")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[" * 100_000, b'{"action": \xff}', b'{"action": NaN}', b'{"action": "\xed\xa0\x80"}', b"nonsense"],
)
def test_what_is_no_json(asked: Client, body: bytes) -> None:
    for path in ("/v1/sessions", f"/v1/sessions/{GONE}/step", "/v1/step"):
        answer = asked.raw(path, body)
        assert refused(answer, answer.status_code, answer.json()["error"]["type"])
        assert answer.status_code == (422 if b"NaN" in body else 400)


def test_what_is_not_called_json(asked: Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = asked.post("/v1/sessions", content=b"{}", headers={"content-type": kind})
        assert "application/json" in refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("path", "body", "place"),
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
def test_what_is_not_what_was_wanted(asked: Client, path: str, body: Any, place: str) -> None:
    assert refused(asked.post(path, json=body), 422, "invalid").startswith(f"{place}: ")


@pytest.mark.parametrize(
    ("path", "body", "says"),
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
def test_of_many_mistakes_few_are_told(asked: Client, path: str, body: bytes, says: str) -> None:
    """To list two million of them, which a body has room for, took the server a minute."""
    assert says in refused(asked.raw(path, body), 422, "invalid")


@pytest.mark.parametrize("query", [{"split": "exam"}, {"offset": -1}, {"limit": MAX_PAGE + 1}, {"fields": "some"}])
def test_a_page_that_there_is_not(client: Client, query: dict[str, Any]) -> None:
    assert next(iter(query)) in refused(client.ask(client.made(), "tasks", **query), 422, "invalid")


def test_a_split_without_tasks(client: Client) -> None:
    assert "dev" in refused(client.reset(client.made(), split="dev"), 422, "invalid")


def test_half_an_emoji_comes_and_a_question_mark_goes(client: Client) -> None:
    session = client.playing(mood="raw")
    outcome = told(client.raw(f"/v1/sessions/{session}/step", b'{"action": "\\ud83e knock"}'))
    assert outcome["info"]["valid"] is False
    outcome = told(client.step(session, "half"))
    assert outcome["observation"] == "half a ?"
    refused(client.raw(f"/v1/sessions/{session}/reset", b'{"task": "\\ud83e"}'), 404, "unknown_task")


def test_what_json_has_no_word_for_is_written_all_the_same(client: Client) -> None:
    session = client.playing(mood="raw")
    raw = told(client.ask(session, "observation"))["info"]["raw"]
    assert raw == {"acted": 0, "nan": None, "half": "\ud83e", "seven": 7, "list": [0, 1], "set": "{1}"}
    assert json.loads(written({"x": float("inf"), "y": (1, {2: "z"})})) == {"x": None, "y": [1, {"2": "z"}]}
    assert written({"picture": strange_worlds.picture()}).startswith(b'{"picture":"data:image/png;base64,iVBOR')


@given(st.text(st.characters()))
def test_any_text_is_an_action(text: str) -> None:
    seen = parsed(StepWanted, json.dumps({"action": text}).encode()).action
    assert seen == text.encode(errors="replace").decode()


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
def test_outcomes_are_written_as_they_are(infos: list[dict[str, Any]]) -> None:
    write = OutcomeWriter()
    for info in infos:
        written_info = json.loads(write(Result(0, "seen", 0.5, True, False, info)))["info"]
        assert written_info == {"available_actions": None} | info


def test_actions_that_a_world_changes_in_place_are_written_anew() -> None:
    write, actions = OutcomeWriter(), ["knock"]
    for action in ("open", "leave"):
        actions.append(action)
        assert json.loads(write(Result(0, info={"available_actions": actions})))["info"]["available_actions"] == actions


def test_a_server_that_can_start_no_worker_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("agentgym_envs.server.workers.Workers.open_slot", fail)
    answer = client.post("/v1/sessions", json={"world": strange_worlds.QUICK})
    assert "no more processes" in refused(answer, 502, "world_fault")


def test_no_sentence_is_endless(asked: Client) -> None:
    answer = asked.post("/v1/sessions", json={"world": strange_worlds.QUICK, "options": {"mood": "x" * 10_000}})
    assert len(refused(answer, 422, "invalid")) < 3_000


def test_a_client_that_leaves_before_its_body_is_read(asked: Client, caplog: pytest.LogCaptureFixture) -> None:
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
    asyncio.run(asked.app(scope, receive, send))  # pyright: ignore[reportArgumentType]
    assert sent[0]["status"] == 400
    assert not caplog.records
