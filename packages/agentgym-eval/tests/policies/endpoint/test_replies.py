"""What an endpoint may answer, from whole replies to none, and what becomes of the episode and the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import TokenUsage
from agentgym_eval.policies.endpoint import client
from fake_endpoint import KEY, Answer, counting, play, played, said, serving, trouble
from patience import PATIENCE

pytestmark = pytest.mark.usefixtures("key")


def test_a_key_that_is_refused_stops_the_run_and_a_better_one_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fickle(request: dict[str, Any]) -> Answer:
        return counting(request) if len(fake.asked) <= 20 else trouble(401, f"Incorrect key: {KEY}")

    with serving(fickle) as fake:
        assert play(fake, tmp_path, "--slots", "1") == 1
    err = capsys.readouterr().err
    assert "refuses the key (401: Incorrect key: ***). Set OPENAI_API_KEY" in err
    assert "Resume with: uv run evaluate" in err
    assert json.loads((tmp_path / "usage.json").read_text())["requests"] == 20  # of a broken off episode as well
    kept = len(played(tmp_path))
    assert 0 < kept < 10
    with serving(counting) as fake:
        assert play(fake, tmp_path, "--slots", "1") == 0
    assert json.loads((tmp_path / "report.json").read_text())["usage"]["requests"] == 20 + len(fake.asked)
    assert len(played(tmp_path)) == 10


def test_as_many_requests_are_under_way_as_there_are_slots(tmp_path: Path) -> None:
    all_there = threading.Barrier(4, timeout=PATIENCE)

    def together(request: dict[str, Any]) -> Answer:
        if len(request["messages"]) == 2:
            all_there.wait()
        return said("Action: stop")

    with serving(together) as fake:
        assert play(fake, tmp_path, "--tasks", "4", "--slots", "4") == 0
    assert len(fake.asked) == 4


@pytest.mark.parametrize(
    "answer",
    [said("Action: ad", finish="length"), said(None, finish="length"), trouble(400, code="context_length_exceeded")],
)
def test_a_reply_that_is_cut_and_a_context_that_is_full_end_the_episode(answer: Answer, tmp_path: Path) -> None:
    with serving(lambda request: answer) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0") == 0
    (episode,) = played(tmp_path)
    assert (episode.stop, episode.success) == ("length", False)


def test_half_a_reply_that_a_filter_left_is_not_played(tmp_path: Path) -> None:
    with serving(lambda request: said("Action: stop", finish="content_filter")) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0", "--max-failed", "1") == 0
    (episode,) = played(tmp_path)
    assert episode.failed
    assert "cut the reply with its content filter" in episode.error
    assert json.loads((tmp_path / "usage.json").read_text())["requests"] == len(fake.asked)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_the_endpoint_tells_of_a_reply_is_kept_with_its_turn(tmp_path: Path, name: str) -> None:
    with serving(lambda request: said("Action: stop", **{name: "Nothing to \ud800 add."})) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0") == 0
    said_so = played(tmp_path)[0].turns[0].reply
    assert (said_so.usage, said_so.finish_reason) == (TokenUsage(10, 3, 4), "stop")
    assert said_so.reasoning == "Nothing to ? add."
    assert said_so.seconds >= 0
    assert "add" not in said_so.text


def test_bad_answers_fail_one_episode_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in seven is broken and asked for again; one conversation is never answered well."""
    patience = client.Client.__init__.__kwdefaults__ | {"pauses": (0.0,) * 3}
    monkeypatch.setattr(client.Client.__init__, "__kwdefaults__", patience)
    bad = [Answer("{"), Answer({"error": {"message": "upstream"}}), Answer({"choices": []})]

    def flaky(request: dict[str, Any]) -> Answer:
        if "Goal: 3." in str(request["messages"]) and "Count: 2." in str(request["messages"]):
            return bad[0]
        return bad[len(fake.asked) % 3] if len(fake.asked) % 7 == 6 else counting(request)

    with serving(flaky) as fake:
        assert play(fake, tmp_path, "--max-failed", "0.2", "--slots", "1") == 0
    assert [episode.task_id for episode in played(tmp_path) if episode.failed] == ["count/test/3"]
    (failed,) = [episode for episode in played(tmp_path) if episode.failed]
    assert "did not respond to a request in 4 attempts" in failed.error


def test_a_refusal_is_a_reply_without_an_action(tmp_path: Path) -> None:
    with serving(lambda request: said(None, refusal="I can't help with that.")) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0", "--horizon", "2") == 0
    turns = played(tmp_path)[0].turns
    assert [(turn.reply.text, turn.valid) for turn in turns] == [("I can't help with that.", False)] * 2


def test_a_conversation_that_is_filtered_is_a_failed_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def filtering(request: dict[str, Any]) -> Answer:
        bad = "Goal: 3." in str(request["messages"])
        return trouble(400, "The prompt was filtered.", code="content_filter") if bad else counting(request)

    with serving(filtering) as fake:
        assert play(fake, tmp_path, "--max-failed", "0.2") == 0
    failed = [episode for episode in played(tmp_path) if episode.failed]
    assert [episode.task_id for episode in failed] == ["count/test/3"]
    assert "refuses the conversation (400 content_filter: The prompt was filtered.)" in failed[0].error
    assert "refuses the conversation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (trouble(404, "no such model"), 2, "no model 'tiny-1' (404: no such model). Did you mean tiny-1? Its models"),
        (trouble(400, "temperature must be 1"), 1, "refuses the first request (400: temperature must be 1)"),
        (
            trouble(400, "no tool parser"),
            1,
            "(400: no tool parser). If it doesn't support tools, use --no-native-tools",
        ),
        (trouble(402, "no credit"), 1, "requires payment or more quota (402: no credit)"),
    ],
)
def test_what_can_not_be_asked_is_one_sentence(
    answer: Answer, code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda request: answer) as fake:
        assert play(fake, tmp_path, "--tasks", "3", "--slots", "1") == code
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err
    assert len(fake.asked) == 1


def test_models_that_call_the_limit_otherwise_are_asked_again(tmp_path: Path) -> None:
    def newer(request: dict[str, Any]) -> Answer:
        if "max_tokens" in request:
            return trouble(400, "Unsupported parameter: use 'max_completion_tokens' instead.")
        return counting(request)

    with serving(newer) as fake:
        assert play(fake, tmp_path, "--task", "count/test/1", "--max-tokens", "7") == 0
    assert [request.get("max_completion_tokens") for request in fake.asked] == [None, 7, 7]
