"""Tests of the successful responses of each route."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import strange_worlds
from agentgym_envs.core.action_schema import ACT, Function
from agentgym_envs.core.registration import WORLDS
from agentgym_envs.server import models
from app_client import TASK, Client, expect_ok
from PIL import Image


def test_episode_is_played_over_http(client: Client) -> None:
    created = expect_ok(client.post("/v1/sessions", json={"world": strange_worlds.QUICK}), 201, models.SessionCreated)
    assert created["world"] == strange_worlds.QUICK
    assert created["lease"] == 600
    assert created["instructions"] == "Knock as often as you are told to, then open."
    session = created["id"]
    first = expect_ok(client.reset(session, task=TASK), model=models.Outcome)
    assert first["observation"] == "Knock 2 times."
    assert first["reward"] == 0
    assert first["info"]["task_id"] == TASK
    outcomes = [expect_ok(client.step(session, action), model=models.Outcome) for action in ("knock", "knock", "open")]
    assert [outcome["reward"] for outcome in outcomes] == [0.0, 0.5, 0.5]
    assert [outcome["terminated"] for outcome in outcomes] == [False, False, True]
    assert outcomes[-1]["info"]["success"] is True
    assert client.query(session, "observation").json() == outcomes[-1]
    assert client.delete(f"/v1/sessions/{session}").status_code == 204


def test_short_names_are_environments(client: Client) -> None:
    session = client.create_session("textcraft")
    assert expect_ok(client.reset(session, task="textcraft/test/map"))["info"]["task_id"] == "textcraft/test/map"


def test_session_shows_its_environment_and_task(client: Client) -> None:
    session = client.create_session()
    path = f"/v1/sessions/{session}"
    assert expect_ok(client.get(path), model=models.SessionInfo)["task"] is None
    expect_ok(client.reset(session, task=TASK))
    assert expect_ok(client.get(path)) == {"id": session, "world": strange_worlds.QUICK, "task": TASK, "lease": 600}


def test_equal_seeds_draw_the_same_task(client: Client) -> None:
    sessions = [client.create_session() for _ in range(2)]
    task_ids = [expect_ok(client.reset(session, split="test", seed=5))["info"]["task_id"] for session in sessions]
    assert task_ids[0] == task_ids[1]
    assert task_ids[0].startswith("door/test/")


def test_malformed_action_returns_its_hint(client: Client) -> None:
    outcome = expect_ok(client.step(client.start_episode(), "I think I'll", hint="Say an action."))
    assert outcome["observation"] == "Say an action."
    assert outcome["info"]["valid"] is False


def test_client_can_set_the_horizon(client: Client) -> None:
    session = client.start_episode(max_episode_steps=2)
    assert [expect_ok(client.step(session, "knock"))["truncated"] for _ in range(2)] == [False, True]


def test_oracle_routes(client: Client) -> None:
    session = client.start_episode()
    assert expect_ok(client.query(session, "oracle"), model=models.OracleAction) == {"action": "knock"}
    thought = expect_ok(client.query(session, "oracle_thought"), model=models.OracleThought)
    assert thought == {"thought": "I have knocked 0 of 2 times."}
    assert expect_ok(client.query(session, "oracle_plan"), model=models.OraclePlan) == {
        "plan": "Knock until I have knocked 2 times, then open."
    }


def test_scene_route(client: Client) -> None:
    session = client.start_episode()
    assert expect_ok(client.query(session, "scene"), model=models.SceneInfo) == {
        "scene": {"kind": "door", "open": False}
    }


def test_functions_route(client: Client) -> None:
    (function,) = expect_ok(client.query(client.create_session(), "functions"), model=models.FunctionList)["functions"]
    assert Function(**function) == ACT


def test_render_returns_text(client: Client) -> None:
    response = client.query(client.start_episode(render_mode="ansi"), "render")
    assert (response.status_code, response.text) == (200, "Knock 2 times.")
    assert response.headers["content-type"].startswith("text/plain")


def test_render_returns_an_image(client: Client) -> None:
    response = client.query(client.start_episode(render_mode="rgb_array"), "render")
    assert response.headers["content-type"] == "image/png"
    pixels = np.asarray(Image.open(io.BytesIO(response.content)))
    assert np.array_equal(pixels, strange_worlds.image())


def test_tasks_are_returned_in_pages(client: Client) -> None:
    session = client.create_session()
    page = expect_ok(client.query(session, "tasks", split="train", offset=2, limit=3), model=models.TaskPage)
    ids = ["door/train/2", "door/train/3", "door/train/4"]
    assert page == {"name": "", "split": "train", "total": 6, "offset": 2, "tasks": ids}
    assert expect_ok(client.query(session, "tasks"))["tasks"] == ["door/test/0", "door/test/1", "door/test/2"]
    assert expect_ok(client.query(session, "tasks", offset=99))["tasks"] == []
    response = client.query(session, "tasks", split="train", offset=2, limit=1, fields="all")
    full = expect_ok(response, model=models.TaskPage)
    assert full["tasks"] == [expect_ok(client.query(session, f"tasks/{TASK}"), model=models.TaskInfo)]
    assert full["tasks"][0]["payload"] == {"knocks": 2}
    assert expect_ok(client.query(session, "tasks", split="dev"))["total"] == 0


def test_thread_bound_environment_is_used_in_one_thread(client: Client) -> None:
    session = client.start_episode(strange_worlds.BOUND)
    assert expect_ok(client.step(session, "knock"))["info"]["valid"]
    assert expect_ok(client.query(session, "oracle"))["action"] == "knock"
    assert expect_ok(client.query(session, f"tasks/{TASK}"))["id"] == TASK


def test_environments_are_listed(client: Client) -> None:
    listed = expect_ok(client.get("/v1/worlds"), model=models.EnvironmentList)["worlds"]
    assert [world["id"] for world in listed][: len(WORLDS)] == [world.id for world in WORLDS]
    quick = next(world for world in listed if world["id"] == strange_worlds.QUICK)
    assert quick == {"id": strange_worlds.QUICK, "max_episode_steps": 50, "installed": True, "missing": None}


def test_custom_environment_is_found_by_its_module(client: Client) -> None:
    assert client.create_session(f"strange_worlds:{strange_worlds.QUICK}")


def test_health_and_metrics_routes(client: Client) -> None:
    session = client.start_episode()
    client.step(session, "fault")
    client.step("nobody", "knock")
    health = expect_ok(client.get("/healthz"), model=models.Health)
    assert health["status"] == "ok"
    assert health["sessions"] == 1
    assert [(worker["alive"], worker["sessions"]) for worker in health["workers"]] == [(True, 1)]
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    metrics = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    assert metrics['agentgym_calls_total{kind="create",status="200"}'] == "1.0"
    assert metrics['agentgym_calls_total{kind="reset",status="200"}'] == "1.0"
    assert metrics['agentgym_calls_total{kind="step",status="502"}'] == "1.0"
    assert metrics['agentgym_call_seconds_count{kind="step"}'] == "1.0"
    assert metrics["agentgym_sessions"] == "1.0"
    assert metrics["agentgym_workers"] == "1.0"


def test_metrics_of_two_apps_are_separate(serve: Any) -> None:
    first, second = serve(), serve()
    first.create_session()
    assert "agentgym_sessions 1.0" in first.get("/metrics").text
    assert "agentgym_sessions 0.0" in second.get("/metrics").text


def references(node: Any) -> Iterator[str]:
    match node:
        case {"$ref": str(target)}:
            yield target
        case dict():
            for value in node.values():
                yield from references(value)
        case list():
            for value in node:
                yield from references(value)


def test_openapi_description_is_complete(client: Client) -> None:
    description = expect_ok(client.get("/openapi.json"))
    schemas = description["components"]["schemas"]
    assert {target.removeprefix("#/components/schemas/") for target in references(description)} <= schemas.keys()
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            assert method == "get" or method == "delete" or "requestBody" in route, path
            assert route["responses"].keys() >= {"422", "500", "503"}, path
    assert schemas["StepRequest"]["additionalProperties"] is False
    assert "HTTPValidationError" not in json.dumps(description)


def test_server_package_loads_no_heavy_packages() -> None:
    code = "import agentgym_envs.server, agentgym_envs.server.settings, sys; print(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"}.isdisjoint(completed.stdout.split())
