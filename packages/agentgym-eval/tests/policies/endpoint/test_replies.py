"""Tests of the responses of an endpoint and their effect on the episode and the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import TokenUsage
from agentgym_eval.policies.endpoint import client
from fake_endpoint import (
    KEY,
    Answer,
    completion_answer,
    count_to_goal,
    error_answer,
    read_run,
    run_evaluate,
    serve_endpoint,
)
from patience import PATIENCE

pytestmark = pytest.mark.usefixtures("api_key")


def test_refused_key_stops_the_run_and_a_valid_one_resumes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: dict[str, Any]) -> Answer:
        return count_to_goal(request) if len(fake.requests) <= 20 else error_answer(401, f"Incorrect key: {KEY}")

    with serve_endpoint(answer) as fake:
        assert run_evaluate(fake, tmp_path, "--slots", "1") == 1
    err = capsys.readouterr().err
    assert "refuses the key (401: Incorrect key: ***). Set OPENAI_API_KEY" in err
    assert "Resume with: uv run evaluate" in err
    assert (
        json.loads((tmp_path / "usage.json").read_text())["requests"] == 20
    )  # including those of an interrupted episode
    kept = len(read_run(tmp_path))
    assert 0 < kept < 10
    with serve_endpoint(count_to_goal) as fake:
        assert run_evaluate(fake, tmp_path, "--slots", "1") == 0
    assert json.loads((tmp_path / "report.json").read_text())["usage"]["requests"] == 20 + len(fake.requests)
    assert len(read_run(tmp_path)) == 10


def test_slots_are_the_number_of_concurrent_requests(tmp_path: Path) -> None:
    barrier = threading.Barrier(4, timeout=PATIENCE)

    def answer(request: dict[str, Any]) -> Answer:
        if len(request["messages"]) == 2:
            barrier.wait()
        return completion_answer("Action: stop")

    with serve_endpoint(answer) as fake:
        assert run_evaluate(fake, tmp_path, "--tasks", "4", "--slots", "4") == 0
    assert len(fake.requests) == 4


@pytest.mark.parametrize(
    "answer",
    [
        completion_answer("Action: ad", finish="length"),
        completion_answer(None, finish="length"),
        error_answer(400, code="context_length_exceeded"),
    ],
)
def test_truncated_replies_and_full_contexts_end_the_episode(answer: Answer, tmp_path: Path) -> None:
    with serve_endpoint(lambda request: answer) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/0") == 0
    (episode,) = read_run(tmp_path)
    assert (episode.stop, episode.success) == ("length", False)


def test_reply_cut_by_a_content_filter_fails_the_episode(tmp_path: Path) -> None:
    with serve_endpoint(lambda request: completion_answer("Action: stop", finish="content_filter")) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/0", "--max-failed", "1") == 0
    (episode,) = read_run(tmp_path)
    assert episode.failed
    assert "cut the reply with its content filter" in episode.error
    assert json.loads((tmp_path / "usage.json").read_text())["requests"] == len(fake.requests)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_usage_and_reasoning_are_recorded_with_the_turn(tmp_path: Path, name: str) -> None:
    with serve_endpoint(lambda request: completion_answer("Action: stop", **{name: "Nothing to \ud800 add."})) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/0") == 0
    reply = read_run(tmp_path)[0].turns[0].reply
    assert (reply.usage, reply.finish_reason) == (TokenUsage(10, 3, 4), "stop")
    assert reply.reasoning == "Nothing to ? add."
    assert reply.seconds >= 0
    assert "add" not in reply.text


def test_malformed_responses_fail_one_episode_but_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seventh response is broken and retried; one conversation never gets a valid response."""
    arguments = client.Client.__init__.__kwdefaults__ | {"pauses": (0.0,) * 3}
    monkeypatch.setattr(client.Client.__init__, "__kwdefaults__", arguments)
    malformed = [Answer("{"), Answer({"error": {"message": "upstream"}}), Answer({"choices": []})]

    def answer(request: dict[str, Any]) -> Answer:
        if "Goal: 3." in str(request["messages"]) and "Count: 2." in str(request["messages"]):
            return malformed[0]
        return malformed[len(fake.requests) % 3] if len(fake.requests) % 7 == 6 else count_to_goal(request)

    with serve_endpoint(answer) as fake:
        assert run_evaluate(fake, tmp_path, "--max-failed", "0.2", "--slots", "1") == 0
    assert [episode.task_id for episode in read_run(tmp_path) if episode.failed] == ["count/test/3"]
    (failed,) = [episode for episode in read_run(tmp_path) if episode.failed]
    assert "did not respond to a request in 4 attempts" in failed.error


def test_refusal_is_a_reply_without_an_action(tmp_path: Path) -> None:
    with serve_endpoint(lambda request: completion_answer(None, refusal="I can't help with that.")) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/0", "--horizon", "2") == 0
    turns = read_run(tmp_path)[0].turns
    assert [(turn.reply.text, turn.valid) for turn in turns] == [("I can't help with that.", False)] * 2


def test_filtered_conversation_is_a_failed_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: dict[str, Any]) -> Answer:
        filtered = "Goal: 3." in str(request["messages"])
        return (
            error_answer(400, "The prompt was filtered.", code="content_filter") if filtered else count_to_goal(request)
        )

    with serve_endpoint(answer) as fake:
        assert run_evaluate(fake, tmp_path, "--max-failed", "0.2") == 0
    failed = [episode for episode in read_run(tmp_path) if episode.failed]
    assert [episode.task_id for episode in failed] == ["count/test/3"]
    assert "refuses the conversation (400 content_filter: The prompt was filtered.)" in failed[0].error
    assert "refuses the conversation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (
            error_answer(404, "no such model"),
            2,
            "no model 'tiny-1' (404: no such model). Did you mean tiny-1? Its models",
        ),
        (error_answer(400, "temperature must be 1"), 1, "refuses the first request (400: temperature must be 1)"),
        (
            error_answer(400, "no tool parser"),
            1,
            "(400: no tool parser). If it doesn't support tools, use --no-native-tools",
        ),
        (error_answer(402, "no credit"), 1, "requires payment or more quota (402: no credit)"),
    ],
)
def test_rejected_first_request_is_a_one_sentence_error(
    answer: Answer, code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_endpoint(lambda request: answer) as fake:
        assert run_evaluate(fake, tmp_path, "--tasks", "3", "--slots", "1") == code
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err
    assert len(fake.requests) == 1


def test_token_limit_is_retried_as_max_completion_tokens(tmp_path: Path) -> None:
    def answer(request: dict[str, Any]) -> Answer:
        if "max_tokens" in request:
            return error_answer(400, "Unsupported parameter: use 'max_completion_tokens' instead.")
        return count_to_goal(request)

    with serve_endpoint(answer) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/1", "--max-tokens", "7") == 0
    assert [request.get("max_completion_tokens") for request in fake.requests] == [None, 7, 7]
