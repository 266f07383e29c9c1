"""Tests of the usage of models behind an endpoint: counting, prices and budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import TokenUsage
from agentgym_eval.cli.main import collect
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.policies.endpoint.settings import EndpointSettings
from agentgym_eval.util.errors import UsageError
from counting_world import ENV
from fake_endpoint import KEY, Answer, count_to_goal, read_run, run_evaluate, serve_endpoint

pytestmark = pytest.mark.usefixtures("api_key")


def test_usage_of_an_evaluation_is_counted_and_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--temperature", "0.5", "--max-tokens", "64", "--price", "2", "10", "0.5"]
    body = ["--body", "reasoning_effort=low", "top_k=5"]
    with serve_endpoint(count_to_goal) as fake:
        assert run_evaluate(fake, tmp_path, *flags, *body) == 0
        request_count = len(fake.requests)
        assert run_evaluate(fake, tmp_path, *flags, *body) == 0  # nothing is left to play
    assert len(fake.requests) == request_count == sum(range(1, 11))
    assert {episode.success for episode in read_run(tmp_path)} == {True}
    assert {episode.policy for episode in read_run(tmp_path)} == {"openai:tiny-1"}
    first = fake.requests[0]
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert {name: value for name, value in first.items() if name != "messages"} == {
        "model": "tiny-1", "temperature": 0.5, "max_tokens": 64, "reasoning_effort": "low", "top_k": 5,
    }  # fmt: skip
    assert set(fake.keys) == {f"Bearer {KEY}"}
    cost = request_count * (6 * 2 + 3 * 10 + 4 * 0.5) / 1e6
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["usage"] == {
        "requests": request_count, "prompt_tokens": 10 * request_count, "cached_tokens": 4 * request_count,
        "completion_tokens": 3 * request_count,
        "uncounted": 0, "cost": pytest.approx(cost),
    }  # fmt: skip
    out, err = capsys.readouterr()
    assert err.count(f"55 requests, 550 prompt tokens (220 cached) and 165 completion tokens, cost {cost:.4f}") == 2
    written = "".join(path.read_text(errors="replace") for path in tmp_path.iterdir())
    assert KEY not in written + out + err


def test_collect_writes_usage_and_cost_into_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "data.jsonl"
    with serve_endpoint(count_to_goal) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        arguments = ["--env", ENV, "--policy", "openai:tiny-1", "--tasks", "2", "--out", str(out)]
        assert collect([*arguments, "--price", "1", "2"]) == 0
    card = json.loads((tmp_path / "data.card.json").read_text())
    request_count = len(fake.requests)
    assert card["usage"]["requests"] == request_count > 0
    assert card["usage"]["cost"] == pytest.approx(request_count * 16 / 1e6)
    assert f'"requests": {request_count}' in (tmp_path / "data.card.md").read_text()


NO_USAGE = [None, {}, 3, {"prompt_tokens": 5}, {"prompt_tokens": float("inf"), "completion_tokens": "3"}]


@pytest.mark.parametrize("usage", NO_USAGE)
def test_unreported_tokens_are_unknown(usage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer_without_usage(request: dict[str, Any]) -> Answer:
        answer = count_to_goal(request)
        answer.body["usage"] = usage
        return answer

    with serve_endpoint(answer_without_usage) as fake:
        assert run_evaluate(fake, tmp_path, "--task", "count/test/2", "--price", "1", "2") == 0
    assert "3 requests, tokens unknown (the endpoint doesn't report them), cost unknown" in capsys.readouterr().err
    unknown = {"requests": 3, "uncounted": 3} | dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "completion_tokens", "cost")
    )
    assert json.loads((tmp_path / "usage.json").read_text()) == unknown | {"price": [1, 2]}
    assert json.loads((tmp_path / "report.json").read_text())["usage"] == unknown
    assert {turn.reply.usage for turn in read_run(tmp_path)[0].turns} == {None}


def test_partially_reported_tokens_have_no_cost() -> None:
    usage = Usage.of(TokenUsage(100, 10)) + Usage.of(None)
    assert usage.sentence((1, 2)) == (
        "2 requests, 1 of them without reported tokens, 100 prompt tokens (0 cached) and 10 completion tokens, "
        "cost unknown"
    )
    assert (usage.to_dict((1, 2))["prompt_tokens"], usage.to_dict((1, 2))["cost"]) == (100, None)


@pytest.mark.long
@pytest.mark.parametrize("budget", ["requests=20", "tokens=250", "cost=0.00025"])
def test_budget_stops_the_run_and_a_larger_one_resumes_it(
    budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens are counted after the response, so pending requests are completed and no new ones are sent."""
    with serve_endpoint(count_to_goal) as fake:
        flags = ["--slots", "4", "--price", "1", "1"]
        assert run_evaluate(fake, tmp_path, *flags, "--budget", budget) == 3
        err = capsys.readouterr().err
        assert f"The --budget of {'0.00025' if 'cost' in budget else budget.partition('=')[2]}" in err
        assert f"The episodes so far are kept in {tmp_path}. Resume with: " in err
        request_count = len(fake.requests)
        assert request_count == 20 if "requests" in budget else 20 <= request_count <= 23
        assert json.loads((tmp_path / "usage.json").read_text())["requests"] == request_count
        assert run_evaluate(fake, tmp_path, *flags, "--budget", budget) == 3  # earlier usage counts towards the budget
        assert len(fake.requests) == request_count
        assert run_evaluate(fake, tmp_path, *flags, "--budget", "requests=55") == 0
    assert len(fake.requests) == 55


def test_token_budget_needs_reported_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer_without_usage(request: dict[str, Any]) -> Answer:
        return Answer(count_to_goal(request).body | {"usage": None})

    with serve_endpoint(answer_without_usage) as fake:
        assert run_evaluate(fake, tmp_path, "--slots", "1", "--budget", "tokens=1e6") == 1
    assert "limit the requests with --budget requests=N" in capsys.readouterr().err
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"price": (1.0,)}, "two or three numbers"),
        ({"price": (1.0, -2.0)}, "numbers of at least 0"),
        ({"price": (1.0, float("nan"))}, "numbers of at least 0"),
        ({"price": (1.0, float("inf"))}, "numbers of at least 0"),
        ({"rate": 0.0}, "--rate must be above 0"),
        ({"rate": float("nan")}, "--rate must be above 0"),
        ({"body": ("model=x",)}, "--body can't set model"),
        ({"body": ("effort",)}, "KEY=VALUE"),
        ({"budget": ("euros=5",)}, "--budget takes requests, tokens, cost, each =NUMBER above 0, not 'euros=5'"),
        ({"budget": ("tokens=many",)}, "above 0, not 'tokens=many'"),
        ({"budget": ("requests=0",)}, "above 0"),
        ({"budget": ("requests",)}, "=NUMBER"),
        ({"budget": ("cost=5",)}, "give --price as well"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        EndpointSettings(**settings)


def test_cost_is_unknown_without_a_price() -> None:
    usage = Usage(1, 2_000_000, 1_000_000, 500_000)
    assert usage.cost(()) is None
    assert usage.sentence(()).endswith("500,000 completion tokens")
    assert usage.cost((1, 2)) == pytest.approx(3)
    assert usage.cost((1, 2, 0.1)) == pytest.approx(2.1)
