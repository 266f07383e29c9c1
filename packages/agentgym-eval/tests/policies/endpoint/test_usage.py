"""What models behind an endpoint use is counted, priced and kept within a budget."""

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
from fake_endpoint import KEY, Answer, counting, play, played, serving

pytestmark = pytest.mark.usefixtures("key")


def test_a_model_is_evaluated_and_what_it_uses_is_counted_and_priced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--temperature", "0.5", "--max-tokens", "64", "--price", "2", "10", "0.5"]
    body = ["--body", "reasoning_effort=low", "top_k=5"]
    with serving(counting) as fake:
        assert play(fake, tmp_path, *flags, *body) == 0
        asked = len(fake.asked)
        assert play(fake, tmp_path, *flags, *body) == 0  # all is played
    assert len(fake.asked) == asked == sum(range(1, 11))
    assert {episode.success for episode in played(tmp_path)} == {True}
    assert {episode.policy for episode in played(tmp_path)} == {"openai:tiny-1"}
    first = fake.asked[0]
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert {name: value for name, value in first.items() if name != "messages"} == {
        "model": "tiny-1", "temperature": 0.5, "max_tokens": 64, "reasoning_effort": "low", "top_k": 5,
    }  # fmt: skip
    assert set(fake.keys) == {f"Bearer {KEY}"}
    cost = asked * (6 * 2 + 3 * 10 + 4 * 0.5) / 1e6
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["usage"] == {
        "requests": asked, "prompt_tokens": 10 * asked, "cached_tokens": 4 * asked, "completion_tokens": 3 * asked,
        "uncounted": 0, "cost": pytest.approx(cost),
    }  # fmt: skip
    out, err = capsys.readouterr()
    assert err.count(f"55 requests, 550 prompt tokens (220 cached) and 165 completion tokens, cost {cost:.4f}") == 2
    written = "".join(path.read_text(errors="replace") for path in tmp_path.iterdir())
    assert KEY not in written + out + err


def test_collect_writes_what_it_cost_into_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "data.jsonl"
    with serving(counting) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        arguments = ["--env", ENV, "--policy", "openai:tiny-1", "--tasks", "2", "--out", str(out)]
        assert collect([*arguments, "--price", "1", "2"]) == 0
    card = json.loads((tmp_path / "data.card.json").read_text())
    asked = len(fake.asked)
    assert card["usage"]["requests"] == asked > 0
    assert card["usage"]["cost"] == pytest.approx(asked * 16 / 1e6)
    assert f'"requests": {asked}' in (tmp_path / "data.card.md").read_text()


NO_USAGE = [None, {}, 3, {"prompt_tokens": 5}, {"prompt_tokens": float("inf"), "completion_tokens": "3"}]


@pytest.mark.parametrize("counted", NO_USAGE)
def test_tokens_that_the_endpoint_does_not_report_are_unknown(
    counted: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(request: dict[str, Any]) -> Answer:
        answer = counting(request)
        answer.body["usage"] = counted
        return answer

    with serving(silent) as fake:
        assert play(fake, tmp_path, "--task", "count/test/2", "--price", "1", "2") == 0
    assert "3 requests, tokens unknown (the endpoint doesn't report them), cost unknown" in capsys.readouterr().err
    unknown = {"requests": 3, "uncounted": 3} | dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "completion_tokens", "cost")
    )
    assert json.loads((tmp_path / "usage.json").read_text()) == unknown
    assert json.loads((tmp_path / "report.json").read_text())["usage"] == unknown
    assert {turn.reply.usage for turn in played(tmp_path)[0].turns} == {None}


def test_tokens_that_are_reported_sometimes_are_no_sum() -> None:
    usage = Usage.of(TokenUsage(100, 10)) + Usage.of(None)
    assert usage.sentence((1, 2)) == (
        "2 requests, 1 of them without reported tokens, 100 prompt tokens (0 cached) and 10 completion tokens, "
        "cost unknown"
    )
    assert (usage.to_dict((1, 2))["prompt_tokens"], usage.to_dict((1, 2))["cost"]) == (100, None)


@pytest.mark.parametrize("budget", ["requests=20", "tokens=250", "cost=0.00025"])
def test_a_budget_ends_the_run_and_a_larger_one_goes_on(
    budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens are known when they are used up: what is under way then is kept, and no more is asked for."""
    with serving(counting) as fake:
        flags = ["--slots", "4", "--price", "1", "1"]
        assert play(fake, tmp_path, *flags, "--budget", budget) == 3
        err = capsys.readouterr().err
        assert f"The --budget of {'0.00025' if 'cost' in budget else budget.partition('=')[2]}" in err
        assert f"The episodes so far are kept in {tmp_path}. Resume with: " in err
        first = len(fake.asked)
        assert first == 20 if "requests" in budget else 20 <= first <= 23
        assert json.loads((tmp_path / "usage.json").read_text())["requests"] == first
        assert play(fake, tmp_path, *flags, "--budget", budget) == 3  # it counts earlier sittings
        assert len(fake.asked) == first
        assert play(fake, tmp_path, *flags, "--budget", "requests=55") == 0
    assert len(fake.asked) == 55


def test_a_budget_of_tokens_needs_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def silent(request: dict[str, Any]) -> Answer:
        return Answer(counting(request).body | {"usage": None})

    with serving(silent) as fake:
        assert play(fake, tmp_path, "--slots", "1", "--budget", "tokens=1e6") == 1
    assert "limit the requests with --budget requests=N" in capsys.readouterr().err
    assert len(fake.asked) == 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"price": (1.0,)}, "two or three numbers"),
        ({"price": (1.0, -2.0)}, "numbers of at least 0"),
        ({"rate": 0.0}, "--rate must be above 0"),
        ({"body": ("model=x",)}, "--body can't set model"),
        ({"body": ("effort",)}, "KEY=VALUE"),
        ({"budget": ("euros=5",)}, "--budget takes requests, tokens, cost, each =NUMBER above 0, not 'euros=5'"),
        ({"budget": ("tokens=many",)}, "above 0, not 'tokens=many'"),
        ({"budget": ("requests=0",)}, "above 0"),
        ({"budget": ("requests",)}, "=NUMBER"),
        ({"budget": ("cost=5",)}, "give --price as well"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        EndpointSettings(**wrong)


def test_without_a_price_nobody_knows_the_cost() -> None:
    usage = Usage(1, 2_000_000, 1_000_000, 500_000)
    assert usage.cost(()) is None
    assert usage.sentence(()).endswith("500,000 completion tokens")
    assert usage.cost((1, 2)) == pytest.approx(3)
    assert usage.cost((1, 2, 0.1)) == pytest.approx(2.1)
