"""What schemathesis makes of `/openapi.json`: no request, however odd, gets an answer that isn't described there."""

from __future__ import annotations

from typing import Any

import pytest
from agentgym_envs.server.app import build_app
from agentgym_envs.server.auth import Guard
from agentgym_envs.server.settings import Settings
from dev_packages import need
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

need("schemathesis")

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
# Else it would parse the sources of all that is loaded, while the server's thread imports worlds; with two at it,
# Python 3.11's parser may fail with a SystemError.
NO_SOURCES = SchemathesisConfig.from_dict({"analysis": {"constants": {"enabled": False}}})
UNHURRIED: Any = {
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


class Api:
    """A server without a socket, and a session in which an episode has begun."""

    def __init__(self) -> None:
        self.app = Guard(build_app(Settings(max_sessions=10_000, max_batch=20, max_action=200)), TOKEN)
        with asgi.get_client(self.app) as client:
            self.description = client.get("/openapi.json", headers=BEARER).json()
        self.alive = self.session()
        self.seen: dict[str, set[int]] = {}

    def schema(self, description: dict[str, Any]) -> Any:
        schema = schemathesis.openapi.from_dict(description, config=NO_SOURCES)
        schema.app = self.app
        return schema

    def session(self) -> str:
        with asgi.get_client(self.app) as client:
            wanted = {"world": WORLD, "options": {"render_mode": "ansi"}}
            made = client.post("/v1/sessions", json=wanted, headers=BEARER)
            assert made.status_code == 201
            begun = client.post(f"/v1/sessions/{made.json()['id']}/reset", json={}, headers=BEARER)
            assert begun.status_code == 200
        return made.json()["id"]

    def try_out(self, operation: Any, examples: int, *, lead: bool) -> None:
        """Send requests that fit the description and requests that don't; `lead` them to things that are there."""
        there = {"session_id": self.alive, "task_id": TASK}
        fixed = {name: value for name, value in there.items() if lead and f"{{{name}" in operation.path}
        kinds = [operation.as_strategy(generation_mode=mode, path_parameters=fixed) for mode in GenerationMode]

        @settings(max_examples=examples, **UNHURRIED)
        @given(st.one_of(kinds))
        def holds(case: Any) -> None:
            if "session_id" in fixed:
                case.path_parameters["session_id"] = self.alive
            if lead and case.meta.generation.mode.is_positive:
                self.lead(case.body)
            answer = case.call_and_validate(headers=BEARER, checks=[*CHECKS, checks.negative_data_rejection])
            self.seen.setdefault(operation.label, set()).add(answer.status_code)
            if answer.status_code == 204:
                self.alive = self.session()

        holds()

    def lead(self, body: Any) -> None:
        """Name things that are there."""
        if not isinstance(body, dict):
            return
        there = {"world": WORLD, "task": TASK, "session": self.alive, "options": {"max_episode_steps": 3}}
        body.update({name: thing for name, thing in there.items() if name in body})
        for call in body.get("calls", ()):
            self.lead(call)


@pytest.fixture
def api() -> Api:
    return Api()  # schemathesis' plugin ends it after the test


def try_all_out(api: Api, examples: int) -> None:
    for found in api.schema(api.description).get_all_operations():
        for lead in (False, True):
            api.try_out(found.ok(), examples, lead=lead)
    assert len(api.seen) == 19
    assert [label for label, statuses in api.seen.items() if not statuses & {200, 201, 204, 207}] == []
    refusals = {status for statuses in api.seen.values() for status in statuses if status >= 400}
    assert refusals >= {400, 404, 422}


def test_every_answer_is_as_described(api: Api) -> None:
    try_all_out(api, 4)


@pytest.mark.long
def test_every_answer_is_as_described_at_length(api: Api) -> None:
    try_all_out(api, 40)


def linked(description: dict[str, Any]) -> dict[str, Any]:
    """The description, which now says that a session that was made, reset or stepped can be used in every route."""
    deep = {
        f"{method}{path}".replace("/", "-"): operation
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if "{session_id}" in path
    }

    def links(session: str) -> dict[str, Any]:
        return {
            name: {"operationId": operation["operationId"], "parameters": {"path.session_id": session}}
            for name, operation in deep.items()
        }

    description["paths"]["/v1/sessions"]["post"]["responses"]["201"]["links"] = links("$response.body#/id")
    for name, operation in deep.items():
        if name.startswith("post"):
            operation["responses"]["200"]["links"] = links("$request.path.session_id")
    return description


@pytest.mark.long
def test_no_sequence_of_calls_is_answered_otherwise(api: Api) -> None:
    seen: set[tuple[str, int]] = set()

    class Workflow(api.schema(linked(api.description)).as_state_machine()):  # type: ignore[misc]
        def before_call(self, case: Any) -> None:
            if isinstance(case.body, dict):
                case.body.pop("key", None)  # by which an earlier sequence would show through
            api.lead(case.body if case.meta.generation.mode.is_positive else None)

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": BEARER}

        def validate_response(self, response: Any, case: Any, *_: Any, **__: Any) -> None:
            case.validate_response(response, checks=[*CHECKS, checks.use_after_free], headers=BEARER)
            seen.add((case.operation.label, response.status_code))

    Workflow.run(settings=settings(max_examples=40, stateful_step_count=20, **UNHURRIED))
    assert {("POST /v1/sessions/{session_id}/step", 200), ("DELETE /v1/sessions/{session_id}", 204)} <= seen
