"""Tests of `Judge`: verdicts, requests, and faults of the endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.evaluation.judge import Judge, missing_judge_message, needs_judge
from pages_server import Page, PagesServer

PATH = "/v1/chat/completions"


def completion(text: str | None) -> Page:
    return Page(json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}))


@pytest.fixture
def judge(server: PagesServer) -> Judge:
    return Judge(f"http://{server.address}/v1/", "a-model", "a-key", pauses=(0.0, 0.0))


def correct(judge: Judge) -> bool:
    return asyncio.run(judge.correct("How many?", "two", "a pair"))


def same_reason(judge: Judge) -> bool:
    return asyncio.run(judge.same_reason("Buy it", "sold out", "none left"))


@pytest.mark.parametrize(
    ("ask", "text", "verdict"),
    [
        (correct, "correct", True),
        (correct, "A pair is two.\n\n**Correct.**", True),
        (correct, "It isn't incorrect to say so.\nVerdict: correct", True),
        (correct, "incorrect", False),
        (correct, "Partially correct", False),
        (correct, "It is right.\nMy final verdict is: **correct**.\n:-)", True),
        (correct, "partially-correct", False),
        (same_reason, "[same]", True),
        (same_reason, "different", False),
    ],
)
def test_replies_are_parsed_as_verdicts(
    server: PagesServer, judge: Judge, ask: Callable[[Judge], bool], text: str, verdict: bool
) -> None:
    server.pages[PATH] = completion(text)
    assert ask(judge) is verdict


def test_a_judge_that_gives_no_verdict_is_asked_for_it_once_more(server: PagesServer, judge: Judge) -> None:
    server.pages[PATH] = completion("That isn't quite the same.")
    with pytest.raises(EnvFault, match=r"no verdict \(same, different\)"):
        same_reason(judge)
    messages = [json.loads(request.body)["messages"] for request in server.requests]
    assert [len(each) for each in messages] == [1, 3]
    assert messages[1][1]["content"] == "That isn't quite the same."
    assert messages[1][2]["content"].endswith("same or different.")


def test_request_has_model_key_and_question(server: PagesServer, judge: Judge) -> None:
    server.pages[PATH] = completion("correct")
    correct(judge)
    (request,) = server.requests
    body = json.loads(request.body)
    assert (request.method, request.headers["authorization"]) == ("POST", "Bearer a-key")
    assert (body["model"], body["temperature"]) == ("a-model", 0)
    assert all(part in body["messages"][0]["content"] for part in ("How many?", "two", "a pair"))
    assert "a-key" not in repr(judge)


@pytest.mark.parametrize("status", [429, 500])
def test_busy_endpoint_is_retried(server: PagesServer, judge: Judge, status: int) -> None:
    server.pages[PATH] = Page("busy", status=status)
    with pytest.raises(EnvFault, match=f"a-model at .* failed: status {status}: busy"):
        correct(judge)
    assert len(server.requests) == 3


def test_invalid_request_is_not_retried(server: PagesServer, judge: Judge) -> None:
    server.pages[PATH] = Page("no such model", status=404)
    with pytest.raises(EnvFault, match="no such model"):
        correct(judge)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (completion("Hard to tell."), "gave no verdict"),
        (completion("The answer is wrong. A correct answer would say two."), "gave no verdict"),
        (completion("mostly correct"), "gave no verdict"),
        (completion("Verdict: not correct"), "gave no verdict"),
        (completion("correct\nBut see above."), "gave no verdict"),
        (completion(None), "gave no verdict"),
        (Page("<html>"), "is not in OpenAI's format"),
        (Page('{"choices": []}'), "is not in OpenAI's format"),
    ],
)
def test_reply_without_a_verdict_is_a_fault(server: PagesServer, judge: Judge, response: Page, message: str) -> None:
    server.pages[PATH] = response
    with pytest.raises(EnvFault, match=message):
        correct(judge)


def test_unreachable_endpoint_is_a_fault() -> None:
    with pytest.raises(EnvFault, match="ConnectError"):
        correct(Judge("http://127.0.0.1:1/v1", "m", pauses=()))


@pytest.mark.parametrize(
    ("evaluation", "needed"),
    [
        ({"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["x"]}}, True),
        ({"eval_types": ["string_match"], "reference_answers": {"must_include": ["x"], "fuzzy_match": "N/A"}}, True),
        ({"eval_types": ["string_match"], "reference_answers": {"exact_match": "x"}}, False),
        ({"eval_types": ["program_html"], "reference_answers": None}, False),
        ({"eval_types": ["url_match"]}, False),
    ],
)
def test_only_fuzzy_matches_need_a_judge(evaluation: dict[str, object], needed: bool) -> None:
    assert needs_judge({"eval": evaluation}) is needed


def test_missing_judge_message_explains_the_option() -> None:
    assert "webarena/webarena/3" in missing_judge_message("webarena/webarena/3")
    assert "Judge(base_url=" in missing_judge_message("x")
