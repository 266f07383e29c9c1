"""Models behind an endpoint, from the command line to the file."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Message, Reply, TokenUsage, read_episodes
from agentgym_envs.functions import ACT, Call, described
from agentgym_eval.cli import collect, evaluate
from agentgym_eval.endpoint import client
from agentgym_eval.endpoint.messages import reply
from agentgym_eval.endpoint.settings import EndpointSettings
from agentgym_eval.errors import UsageError
from agentgym_eval.tool_calls import native, plain
from agentgym_eval.usage import Usage
from counting_world import ENV
from fake_endpoint import Answer, FakeEndpoint, called, counting, said, serving, trouble
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE

KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def play(fake: FakeEndpoint, out: Path, *more: str) -> int:
    return evaluate(["--env", ENV, *fake.flags, "--out", str(out), *more])


def episodes(out: Path) -> list[Any]:
    return list(read_episodes(out / "episodes.jsonl"))


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
    assert {episode.success for episode in episodes(tmp_path)} == {True}
    assert {episode.policy for episode in episodes(tmp_path)} == {"openai:tiny-1"}
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


def test_a_key_that_is_refused_stops_the_run_and_a_better_one_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fickle(request: dict[str, Any]) -> Answer:
        return counting(request) if len(fake.asked) <= 20 else trouble(401, f"Incorrect key: {KEY}")

    with serving(fickle) as fake:
        assert play(fake, tmp_path, "--slots", "1") == 1
    err = capsys.readouterr().err
    assert "refuses the key (401: Incorrect key: ***). Set OPENAI_API_KEY" in err
    assert "Go on with: uv run evaluate" in err
    assert json.loads((tmp_path / "usage.json").read_text())["requests"] == 20  # of a broken off episode as well
    kept = len(episodes(tmp_path))
    assert 0 < kept < 10
    with serving(counting) as fake:
        assert play(fake, tmp_path, "--slots", "1") == 0
    assert json.loads((tmp_path / "report.json").read_text())["usage"]["requests"] == 20 + len(fake.asked)
    assert len(episodes(tmp_path)) == 10


def test_as_many_requests_are_under_way_as_there_are_slots(tmp_path: Path) -> None:
    all_there = threading.Barrier(4, timeout=PATIENCE)

    def together(request: dict[str, Any]) -> Answer:
        if len(request["messages"]) == 2:
            all_there.wait()
        return said("Action: stop")

    with serving(together) as fake:
        assert play(fake, tmp_path, "--tasks", "4", "--slots", "4") == 0
    assert len(fake.asked) == 4


def test_functions_are_called_natively_and_recorded_neutrally(tmp_path: Path) -> None:
    def calling(request: dict[str, Any]) -> Answer:
        if request.get("tool_choice") == "none":
            return said("I shall add, then stop.")
        done = sum(message["role"] == "tool" for message in request["messages"])
        return called(("act", {"action": "stop" if done == 2 else "add"}), thought=f"{done} of 2")

    with serving(calling) as fake:
        assert play(fake, tmp_path, "--task", "count/test/2", "--agent", "function-call+plan") == 0
    (episode,) = episodes(tmp_path)
    assert episode.success
    assert [turn.action for turn in episode.turns] == [None, "add", "add", "stop"]
    assert episode.turns[1].reply.text == Call("act", {"action": "add"}, "0 of 2").to_json()
    assert all(request["tools"] == [ACT.schema] for request in fake.asked)
    assert ["tool_choice" in request for request in fake.asked] == [True, False, False, False]
    last = fake.asked[-1]["messages"]
    assert [message["role"] for message in last] == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert last[4]["content"] == "0 of 2"
    assert json.loads(last[4]["tool_calls"][0]["function"]["arguments"]) == {"action": "add"}
    assert [message["tool_call_id"] for message in last if message["role"] == "tool"] == [
        message["tool_calls"][0]["id"] for message in last if "tool_calls" in message
    ]


def test_an_endpoint_without_tools_is_told_of_the_functions_in_words(tmp_path: Path) -> None:
    with serving(lambda request: said(Call("act", {"action": "stop"}).to_json())) as fake:
        flags = ["--task", "count/test/0", "--agent", "function-call", "--no-native-tools"]
        assert play(fake, tmp_path, *flags) == 0
    (request,) = fake.asked
    assert "tools" not in request
    assert request["messages"][0]["content"].endswith(described([ACT.schema]))
    assert episodes(tmp_path)[0].success
    assert plain((Message("user", "hello"),), [ACT.schema])[0]["role"] == "system"


def test_several_calls_at_once_are_malformed_as_several_actions_are(tmp_path: Path) -> None:
    twice = called(("act", {"action": "add"}), ("act", {"action": "stop"}))
    with serving(
        lambda request: twice if len(request["messages"]) == 2 else called(("act", {"action": "stop"}))
    ) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0", "--agent", "function-call") == 0
    assert [turn.action for turn in episodes(tmp_path)[0].turns] == [None, "stop"]
    assert "2 function calls" in fake.asked[1]["messages"][-1]["content"]
    assert fake.asked[1]["messages"][-1]["role"] == "user"


@pytest.mark.parametrize(
    "answer",
    [said("Action: ad", finish="length"), said(None, finish="length"), trouble(400, code="context_length_exceeded")],
)
def test_a_reply_that_is_cut_and_a_context_that_is_full_end_the_episode(answer: Answer, tmp_path: Path) -> None:
    with serving(lambda request: answer) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0") == 0
    (episode,) = episodes(tmp_path)
    assert (episode.stop, episode.success) == ("length", False)


def test_half_a_reply_that_a_filter_left_is_not_played(tmp_path: Path) -> None:
    with serving(lambda request: said("Action: stop", finish="content_filter")) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0", "--max-failed", "1") == 0
    (episode,) = episodes(tmp_path)
    assert episode.failed
    assert "cut the reply with its content filter" in episode.error
    assert json.loads((tmp_path / "usage.json").read_text())["requests"] == len(fake.asked)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_the_endpoint_tells_of_a_reply_is_kept_with_its_turn(tmp_path: Path, name: str) -> None:
    with serving(lambda request: said("Action: stop", **{name: "Nothing to \ud800 add."})) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0") == 0
    said_so = episodes(tmp_path)[0].turns[0].reply
    assert (said_so.usage, said_so.finish_reason) == (TokenUsage(10, 3, 4), "stop")
    assert said_so.reasoning == "Nothing to ? add."
    assert said_so.seconds >= 0
    assert "add" not in said_so.text


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
    assert {turn.reply.usage for turn in episodes(tmp_path)[0].turns} == {None}


def test_tokens_that_are_reported_sometimes_are_no_sum() -> None:
    usage = Usage.of(TokenUsage(100, 10)) + Usage.of(None)
    assert usage.sentence((1, 2)) == (
        "2 requests, 1 of them without reported tokens, 100 prompt tokens (0 cached) and 10 completion tokens, "
        "cost unknown"
    )
    assert (usage.to_dict((1, 2))["prompt_tokens"], usage.to_dict((1, 2))["cost"]) == (100, None)


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
    assert [episode.task_id for episode in episodes(tmp_path) if episode.failed] == ["count/test/3"]
    (failed,) = [episode for episode in episodes(tmp_path) if episode.failed]
    assert "did not answer a request in 4 attempts" in failed.error


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
        assert f"What was played is kept in {tmp_path}. Go on with: " in err
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


def test_a_refusal_is_a_reply_without_an_action(tmp_path: Path) -> None:
    with serving(lambda request: said(None, refusal="I can't help with that.")) as fake:
        assert play(fake, tmp_path, "--task", "count/test/0", "--horizon", "2") == 0
    turns = episodes(tmp_path)[0].turns
    assert [(turn.reply.text, turn.valid) for turn in turns] == [("I can't help with that.", False)] * 2


def test_a_conversation_that_is_filtered_is_a_failed_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def filtering(request: dict[str, Any]) -> Answer:
        bad = "Goal: 3." in str(request["messages"])
        return trouble(400, "The prompt was filtered.", code="content_filter") if bad else counting(request)

    with serving(filtering) as fake:
        assert play(fake, tmp_path, "--max-failed", "0.2") == 0
    failed = [episode for episode in episodes(tmp_path) if episode.failed]
    assert [episode.task_id for episode in failed] == ["count/test/3"]
    assert "refuses the conversation (400 content_filter: The prompt was filtered.)" in failed[0].error
    assert "refuses the conversation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (trouble(404, "no such model"), 2, "no model 'tiny-1' (404: no such model). Did you mean tiny-1? Its models"),
        (trouble(400, "temperature must be 1"), 1, "refuses the first request (400: temperature must be 1)"),
        (trouble(400, "no tool parser"), 1, "(400: no tool parser). Where an endpoint has no tools, --no-native-tools"),
        (trouble(402, "no credit"), 1, "wants to be paid (402: no credit)"),
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


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"price": (1.0,)}, "two or three numbers"),
        ({"price": (1.0, -2.0)}, "none below 0"),
        ({"rate": 0.0}, "--rate is above 0"),
        ({"body": ("model=x",)}, "model in --body"),
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(st.characters(categories=["Ll"]), min_size=1, max_size=6)


@settings(max_examples=50)
@given(NAMES, st.dictionaries(NAMES, JSON, max_size=3), st.text())
def test_a_call_is_the_same_there_and_back(name: str, arguments: dict[str, Any], thought: str) -> None:
    text = Call(name, arguments, thought.strip()).to_json()
    conversation = (Message("user", "now?"), Message("assistant", text), Message("user", "done"))
    there = native(conversation, write=json.dumps)
    assert there[1]["role"] == "assistant"
    assert there[2] == {"role": "tool", "tool_call_id": there[1]["tool_calls"][0]["id"], "content": "done"}
    answer = {"choices": [{"message": there[1], "finish_reason": "tool_calls"}]}
    assert reply(answer) == Reply(text, finish_reason="tool_calls")


def test_arguments_that_are_none_keep_the_thought_beside_them() -> None:
    function = {"name": "act", "arguments": '{"action": "st'}
    message = {"content": "Enough.", "tool_calls": [{"function": function}]}
    text = reply({"choices": [{"message": message}]}).text
    assert json.loads(text) == {"thought": "Enough.", "function_name": "act", "arguments": '{"action": "st'}


@settings(max_examples=50)
@given(st.lists(st.text(), max_size=6))
def test_what_is_no_call_is_text(texts: list[str]) -> None:
    conversation = tuple(Message("assistant" if i % 2 else "user", f"said: {text}") for i, text in enumerate(texts))
    assert native(conversation, write=json.dumps) == [
        {"role": message.role, "content": message.content} for message in conversation
    ]


@given(JSON, st.sampled_from(["content", "refusal", "tool_calls", "parts", "function"]))
def test_whatever_an_endpoint_answers_is_a_reply_or_not_of_the_protocol(value: Any, where: str) -> None:
    message: dict[str, Any] = {"content": "said", where: value}
    if where == "parts":
        message = {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": value}]}
    if where == "function":
        message = {"tool_calls": [{"function": {"name": "act", "arguments": value}}]}
    try:
        text = reply({"choices": [{"message": message}]}).text
    except (LookupError, TypeError, ValueError, AttributeError):
        return
    text.encode()
