"""What each route answers when all is well."""

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
from agentgym_envs.core.registry import WORLDS
from agentgym_envs.server import models
from app_client import TASK, Client, told
from PIL import Image


def test_an_episode_is_played_as_in_process(client: Client) -> None:
    made = told(client.post("/v1/sessions", json={"world": strange_worlds.QUICK}), 201, models.SessionMade)
    assert made["world"] == strange_worlds.QUICK
    assert made["lease"] == 600
    assert made["instructions"] == "Knock as often as you are told to, then open."
    session = made["id"]
    began = told(client.reset(session, task=TASK), model=models.Outcome)
    assert began["observation"] == "Knock 2 times."
    assert began["reward"] == 0
    assert began["info"]["task_id"] == TASK
    outcomes = [told(client.step(session, action), model=models.Outcome) for action in ("knock", "knock", "open")]
    assert [outcome["reward"] for outcome in outcomes] == [0.0, 0.5, 0.5]
    assert [outcome["terminated"] for outcome in outcomes] == [False, False, True]
    assert outcomes[-1]["info"]["success"] is True
    assert client.ask(session, "observation").json() == outcomes[-1]
    assert client.delete(f"/v1/sessions/{session}").status_code == 204


def test_a_session_says_what_is_played_in_it(client: Client) -> None:
    session = client.made()
    asked = f"/v1/sessions/{session}"
    assert told(client.get(asked), model=models.SessionSeen)["task"] is None
    told(client.reset(session, task=TASK))
    assert told(client.get(asked)) == {"id": session, "world": strange_worlds.QUICK, "task": TASK, "lease": 600}


def test_a_seed_draws_the_same_task_again(client: Client) -> None:
    drawn = [told(client.reset(client.made(), split="test", seed=5))["info"]["task_id"] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith("door/test/")


def test_a_reply_without_an_action_is_answered_with_its_hint(client: Client) -> None:
    outcome = told(client.step(client.playing(), "I think I'll", hint="Say an action."))
    assert outcome["observation"] == "Say an action."
    assert outcome["info"]["valid"] is False


def test_the_limit_on_turns_is_the_clients(client: Client) -> None:
    session = client.playing(max_episode_steps=2)
    assert [told(client.step(session, "knock"))["truncated"] for _ in range(2)] == [False, True]


def test_the_expert_speaks(client: Client) -> None:
    session = client.playing()
    assert told(client.ask(session, "oracle"), model=models.ActionSeen) == {"action": "knock"}
    thought = told(client.ask(session, "oracle_thought"), model=models.ThoughtSeen)
    assert thought == {"thought": "I have knocked 0 of 2 times."}
    assert told(client.ask(session, "oracle_plan"), model=models.PlanSeen) == {
        "plan": "Knock until I have knocked 2 times, then open."
    }


def test_a_scene_is_drawn(client: Client) -> None:
    session = client.playing()
    assert told(client.ask(session, "scene"), model=models.SceneSeen) == {"scene": {"kind": "door", "open": False}}


def test_the_functions_are_those_of_the_world(client: Client) -> None:
    (function,) = told(client.ask(client.made(), "functions"), model=models.FunctionsSeen)["functions"]
    assert Function(**function) == ACT


def test_a_world_is_shown_as_text(client: Client) -> None:
    answer = client.ask(client.playing(render_mode="ansi"), "render")
    assert (answer.status_code, answer.text) == (200, "Knock 2 times.")
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_world_is_shown_as_a_picture(client: Client) -> None:
    answer = client.ask(client.playing(render_mode="rgb_array"), "render")
    assert answer.headers["content-type"] == "image/png"
    seen = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert np.array_equal(seen, strange_worlds.picture())


def test_tasks_come_in_pages(client: Client) -> None:
    session = client.made()
    page = told(client.ask(session, "tasks", split="train", offset=2, limit=3), model=models.TasksSeen)
    ids = ["door/train/2", "door/train/3", "door/train/4"]
    assert page == {"name": "", "split": "train", "total": 6, "offset": 2, "tasks": ids}
    assert told(client.ask(session, "tasks"))["tasks"] == ["door/test/0", "door/test/1", "door/test/2"]
    assert told(client.ask(session, "tasks", offset=99))["tasks"] == []
    whole = told(client.ask(session, "tasks", split="train", offset=2, limit=1, fields="all"), model=models.TasksSeen)
    assert whole["tasks"] == [told(client.ask(session, f"tasks/{TASK}"), model=models.TaskSeen)]
    assert whole["tasks"][0]["payload"] == {"knocks": 2}
    assert told(client.ask(session, "tasks", split="dev"))["total"] == 0


def test_what_a_thread_may_not_share_stays_in_it(client: Client) -> None:
    session = client.playing(strange_worlds.BOUND)
    assert told(client.step(session, "knock"))["info"]["valid"]
    assert told(client.ask(session, "oracle"))["action"] == "knock"
    assert told(client.ask(session, f"tasks/{TASK}"))["id"] == TASK


def test_the_worlds_are_listed(client: Client) -> None:
    listed = told(client.get("/v1/worlds"), model=models.WorldsSeen)["worlds"]
    assert [world["id"] for world in listed][: len(WORLDS)] == [world.id for world in WORLDS]
    quick = next(world for world in listed if world["id"] == strange_worlds.QUICK)
    assert quick == {"id": strange_worlds.QUICK, "max_episode_steps": 50, "installed": True, "missing": None}


def test_a_world_of_ones_own_is_found_with_its_module(client: Client) -> None:
    assert client.made(f"strange_worlds:{strange_worlds.QUICK}")


def test_health_and_metrics(client: Client) -> None:
    session = client.playing()
    client.step(session, "fault")
    client.step("nobody", "knock")
    health = told(client.get("/healthz"), model=models.Health)
    assert health["status"] == "ok"
    assert health["sessions"] == 1
    assert [(worker["alive"], worker["sessions"]) for worker in health["workers"]] == [(True, 1)]
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    figures = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert figures['agentgym_calls_total{kind="create",status="200"}'] == "1.0"
    assert figures['agentgym_calls_total{kind="reset",status="200"}'] == "1.0"
    assert figures['agentgym_calls_total{kind="step",status="502"}'] == "1.0"
    assert figures['agentgym_call_seconds_count{kind="step"}'] == "1.0"
    assert figures["agentgym_sessions"] == "1.0"
    assert figures["agentgym_workers"] == "1.0"


def test_two_apps_count_for_themselves(serve: Any) -> None:
    one, other = serve(), serve()
    one.made()
    assert "agentgym_sessions 1.0" in one.get("/metrics").text
    assert "agentgym_sessions 0.0" in other.get("/metrics").text


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


def test_the_description_is_whole(client: Client) -> None:
    description = told(client.get("/openapi.json"))
    schemas = description["components"]["schemas"]
    assert {target.removeprefix("#/components/schemas/") for target in references(description)} <= schemas.keys()
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            assert method == "get" or method == "delete" or "requestBody" in route, path
            assert route["responses"].keys() >= {"422", "500", "503"}, path
    assert schemas["StepWanted"]["additionalProperties"] is False
    assert "HTTPValidationError" not in json.dumps(description)


def test_the_package_loads_nothing_heavy() -> None:
    code = "import agentgym_envs.server, agentgym_envs.server.settings, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"}.isdisjoint(done.stdout.split())
