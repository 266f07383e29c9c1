"""Tests that responses to any request match `/openapi.json`, with requests that schemathesis generates from it."""

from __future__ import annotations

from typing import Any

import pytest
from agentgym_envs.server.app import build_app
from agentgym_envs.server.auth import Guard
from agentgym_envs.server.settings import Settings
from dev_packages import require_packages
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

require_packages("schemathesis")

import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.python import asgi
from schemathesis.specs.openapi import checks

TOKEN = "correct-horse-battery-staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WORLD = "agentgym/TextCraft-v0"
TASK = "textcraft/test/leather_boots"
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
# Schemathesis must not parse the sources of all loaded modules while the server's thread imports environments: Python
# 3.11's parser may fail with a SystemError when two threads use it.
CONFIG = SchemathesisConfig.from_dict({"analysis": {"constants": {"enabled": False}}})
HYPOTHESIS_SETTINGS: Any = {
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


class Api:
    """An app without a socket, and a session with a running episode."""

    def __init__(self) -> None:
        self.app = Guard(build_app(Settings(max_sessions=10_000, max_batch=20, max_action=200)), TOKEN)
        with asgi.get_client(self.app) as client:
            self.description = client.get("/openapi.json", headers=BEARER).json()
        self.session_id = self.start_session()
        self.statuses: dict[str, set[int]] = {}

    def schema(self, description: dict[str, Any]) -> Any:
        schema = schemathesis.openapi.from_dict(description, config=CONFIG)
        schema.app = self.app
        return schema

    def start_session(self) -> str:
        with asgi.get_client(self.app) as client:
            body = {"world": WORLD, "options": {"render_mode": "ansi"}}
            created = client.post("/v1/sessions", json=body, headers=BEARER)
            assert created.status_code == 201
            started = client.post(f"/v1/sessions/{created.json()['id']}/reset", json={}, headers=BEARER)
            assert started.status_code == 200
        return created.json()["id"]

    def check_operation(self, operation: Any, examples: int, *, existing: bool) -> None:
        """Send requests that match the description and requests that don't. If `existing`, insert existing ids."""
        ids = {"session_id": self.session_id, "task_id": TASK}
        fixed = {name: value for name, value in ids.items() if existing and f"{{{name}" in operation.path}
        kinds = [operation.as_strategy(generation_mode=mode, path_parameters=fixed) for mode in GenerationMode]

        @settings(max_examples=examples, **HYPOTHESIS_SETTINGS)
        @given(st.one_of(kinds))
        def check_case(case: Any) -> None:
            if "session_id" in fixed:
                case.path_parameters["session_id"] = self.session_id
            if existing and case.meta.generation.mode.is_positive:
                self.insert_existing(case.body)
            response = case.call_and_validate(headers=BEARER, checks=[*CHECKS, checks.negative_data_rejection])
            self.statuses.setdefault(operation.label, set()).add(response.status_code)
            if response.status_code == 204:
                self.session_id = self.start_session()

        check_case()

    def insert_existing(self, body: Any) -> None:
        """Replace the values of known fields by ids of existing objects, in place."""
        if not isinstance(body, dict):
            return
        values = {"world": WORLD, "task": TASK, "session": self.session_id, "options": {"max_episode_steps": 3}}
        body.update({name: value for name, value in values.items() if name in body})
        for call in body.get("calls", ()):
            self.insert_existing(call)


@pytest.fixture
def api() -> Api:
    return Api()  # schemathesis' plugin shuts it down after the test


def check_all_operations(api: Api, examples: int) -> None:
    for operation in api.schema(api.description).get_all_operations():
        for existing in (False, True):
            api.check_operation(operation.ok(), examples, existing=existing)
    assert len(api.statuses) == 19
    assert [label for label, statuses in api.statuses.items() if not statuses & {200, 201, 204, 207}] == []
    refusals = {status for statuses in api.statuses.values() for status in statuses if status >= 400}
    assert refusals >= {404, 422}


def test_every_response_matches_the_description(api: Api) -> None:
    check_all_operations(api, 4)


def test_malformed_json_is_refused_as_described(api: Api) -> None:
    operations = [operation.ok() for operation in api.schema(api.description).get_all_operations()]
    operations = [operation for operation in operations if operation.body]
    assert operations
    with asgi.get_client(api.app) as client:
        for operation in operations:
            path = operation.path.replace("{session_id}", api.session_id)
            headers = BEARER | {"Content-Type": "application/json"}
            response = client.request(operation.method, path, data=b"{", headers=headers)
            assert response.status_code == 400
            operation.validate_response(response)


@pytest.mark.long
def test_every_response_matches_with_more_examples(api: Api) -> None:
    check_all_operations(api, 40)


def add_links(description: dict[str, Any]) -> dict[str, Any]:
    """Add OpenAPI links that pass created, reset and stepped sessions to all routes below a session, in place."""
    below_session = {
        f"{method}{path}".replace("/", "-"): operation
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if "{session_id}" in path
    }

    def links(session: str) -> dict[str, Any]:
        return {
            name: {"operationId": operation["operationId"], "parameters": {"path.session_id": session}}
            for name, operation in below_session.items()
        }

    description["paths"]["/v1/sessions"]["post"]["responses"]["201"]["links"] = links("$response.body#/id")
    for name, operation in below_session.items():
        if name.startswith("post"):
            operation["responses"]["200"]["links"] = links("$request.path.session_id")
    return description


@pytest.mark.long
def test_responses_in_sequences_of_calls_match(api: Api) -> None:
    statuses: set[tuple[str, int]] = set()
    known = {api.session_id}

    class Workflow(api.schema(add_links(api.description)).as_state_machine()):  # type: ignore[misc]
        def before_call(self, case: Any) -> None:
            if isinstance(case.body, dict):
                case.body.pop("key", None)  # it would make the results of an earlier sequence reappear
            if not case.meta.generation.mode.is_positive:
                return
            api.insert_existing(case.body)
            # Hardly any sequence creates a session, resets it and then makes a step, so one that does is inserted.
            if "session_id" in case.path_parameters and case.path_parameters["session_id"] not in known:
                case.path_parameters["session_id"] = api.session_id

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": BEARER}

        def validate_response(self, response: Any, case: Any, *_: Any, **__: Any) -> None:
            case.validate_response(response, checks=[*CHECKS, checks.use_after_free], headers=BEARER)
            statuses.add((case.operation.label, response.status_code))
            if response.status_code == 201:
                known.add(response.json()["id"])
            if response.status_code == 204:
                api.session_id = api.start_session()
                known.add(api.session_id)

    Workflow.run(settings=settings(max_examples=80, stateful_step_count=20, **HYPOTHESIS_SETTINGS))
    assert {("POST /v1/sessions/{session_id}/step", 200), ("DELETE /v1/sessions/{session_id}", 204)} <= statuses
