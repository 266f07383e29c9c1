"""Tests of `evaluate` with harnesses: agents of other programs, with local models and with models behind endpoints."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode, Policy, read_episodes
from agentgym_eval.cli.main import evaluate
from agentgym_eval.policies import harness as harness_module
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import RunStopped, UsageError
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.policies import LocalModel
from agentgym_trainer.tokens.chat import Chat
from coin_world import ENV, FLIPS
from dev_packages import require_packages

require_packages("openai")
from chat_templates import make_chat
from coin_rollouts import RecordingEngine
from gateways import UNLIMITED, begin, open_gateway, scripted

LOOP = "harness_examples:loop"
PROGRAM = Path(__file__).parent / "harness_command.py"
TASKS = 4


def guessing(chat: Chat) -> ScriptedEngine:
    """Return an engine whose replies depend on the context alone."""
    return scripted(chat, lambda ids: chat.reply_ids(("heads", "tails")[sum(ids) % 2]))


def settings(**changes: Any) -> PlaySettings:
    harness = HarnessSettings(harness=changes.pop("harness", LOOP))
    given: dict[str, Any] = {"policy": "hf:mine", "samples": 2, "slots": 2, "max_tokens": 8}
    return PlaySettings(env=ENV, harness=harness, **given | changes)


def played(folder: Path, engine: Any, chat: Chat, count: int | None = None, **changes: Any) -> list[Episode]:
    """Play at most `count` more episodes, and return those of the run in their order."""

    def make_policy(**_: Any) -> Policy:
        return LocalModel(engine, chat, name="hf:mine", temperature=1.0, max_tokens=8)

    with open_run(settings(**changes), folder, make_policy) as run:
        assert all(episode.task_id for episode in islice(run.play(), count))
        return run.episodes


def texts(episodes: list[Episode]) -> list[tuple[str, int, list[str], float | None]]:
    return [(e.task_id, e.sample, [turn.reply.text for turn in e.turns], e.score) for e in episodes]


def test_episodes_have_tokens_and_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path: Path, chat: Chat) -> None:
    whole = played(tmp_path / "whole", guessing(chat), chat)
    assert len(whole) == 2 * TASKS
    for episode in whole:
        assert (episode.stop, len(episode.turns), episode.policy) == ("terminated", FLIPS, "hf:mine")
        samples = [turn.reply.sample for turn in episode.turns]
        assert [sample.fresh for sample in samples if sample] == [True] + [False] * (FLIPS - 1)
        assert episode.score == sum(turn.reward for turn in episode.turns)
    for count in (3, 1):
        played(tmp_path / "parts", guessing(chat), chat, count, slots=1)
    assert texts(played(tmp_path / "parts", guessing(chat), chat)) == texts(whole)
    about = json.loads((tmp_path / "whole/run.json").read_text())
    assert (about["settings"]["harness"], about["resolved"]["agent"]) == (LOOP, LOOP)
    with pytest.raises(UsageError, match="harness"):
        played(tmp_path / "whole", guessing(chat), chat, harness="harness_examples:asynchronous")


def test_a_horizon_limits_the_environment_and_the_requests(tmp_path: Path, chat: Chat) -> None:
    episodes = played(tmp_path, guessing(chat), chat, horizon=2, samples=1)
    assert {(episode.stop, len(episode.turns)) for episode in episodes} == {("truncated", 2)}


@pytest.mark.long
def test_an_engine_that_is_gone_ends_the_run_and_keeps_episodes(tmp_path: Path, chat: Chat) -> None:
    engine, left = guessing(chat), iter(range(FLIPS * 3))
    generate = engine.generate

    async def dying(ids: Any, sampling: Any) -> Any:
        if next(left, None) is None:
            raise EngineGone("The engine died again.")
        return await generate(ids, sampling)

    engine.generate = dying  # type: ignore[method-assign]
    with pytest.raises(RunStopped, match="died again"):
        played(tmp_path, engine, chat, slots=1)
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == 3


@pytest.fixture(scope="module")
def model_folder(new_model: Callable[..., Any], chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    new_model().save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.long
def test_a_command_is_evaluated_with_a_model_of_a_folder(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = shlex.join([sys.executable, str(PROGRAM), "0.5"])
    flags = ["--env", ENV, "--policy", f"hf:{model_folder}", "--harness-command", program, "--max-tokens", "4"]
    assert evaluate([*flags, "--tasks", "2", "--samples", "2", "--k", "2", "--out", str(tmp_path / "run")]) == 0
    assert f"in {program}" in capsys.readouterr().out
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["settings"]["harness_command"] == program
    assert "2" in report["overall"]["pass_at"]
    assert report["overall"]["score"]["mean"] == 0.5
    assert report["overall"]["tokens"]["mean"] > 0


@contextmanager
def endpoint(engine: Any, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """Serve an endpoint, a gateway in which all requests are of one episode, and yield this episode."""
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway, UNLIMITED)
        monkeypatch.setenv("OPENAI_BASE_URL", gateway.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", opened.api_key)
        yield opened


def run(out: Path, harness: str, *flags: str) -> int:
    return evaluate(["--env", ENV, "--policy", "openai:tiny", "--harness", harness, "--out", str(out), *flags])


@pytest.mark.parametrize(
    ("harness", "timeout", "words"),
    [
        ("harness_examples:endless", "0.5", "did not end within 0.5 seconds"),
        ("harness_examples:lost", "60", "no tools"),
    ],
)
def test_failed_episodes_end_the_command_with_1(
    harness: str,
    timeout: str,
    words: str,
    tmp_path: Path,
    chat: Chat,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with endpoint(guessing(chat), chat, monkeypatch):
        assert run(tmp_path, harness, "--harness-timeout", timeout) == 1
        assert "the harness failed, not the policy" in capsys.readouterr().err
        assert run(tmp_path, harness, "--harness-timeout", timeout, "--max-failed", "1") == 0
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [(episode.stop, episode.score) for episode in episodes] == [("failed", None)] * TASKS
    assert all(words in str(episode.error) for episode in episodes)


@pytest.mark.long
def test_an_endpoint_is_asked_once_however_often_the_run_is_interrupted(
    tmp_path: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = RecordingEngine(guessing(chat))
    with endpoint(engine, chat, monkeypatch):
        assert run(tmp_path, LOOP, "--slots", "1", "--budget", "requests=4") == 3
        assert "budget of 4 requests" in capsys.readouterr().err
        assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == 1  # and a request of the second episode
        assert run(tmp_path, LOOP, "--slots", "1") == 0
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [len(episode.turns) for episode in episodes] == [FLIPS] * TASKS
    assert len(engine.calls) == FLIPS * TASKS
    usage = json.loads((tmp_path / "usage.json").read_text())
    assert usage["requests"] == FLIPS * TASKS
    used = [turn.reply.usage for episode in episodes for turn in episode.turns]
    assert usage["completion_tokens"] == sum(counted.completion_tokens for counted in used if counted)
    assert {episode.policy for episode in episodes} == {"openai:tiny"}


def test_requests_reach_an_endpoint_as_the_harness_sends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = make_chat("qwen2.5")
    call = '<tool_call>\n{"name": "go", "arguments": {"where": "home"}}\n</tool_call>'
    engine = RecordingEngine(scripted(chat, lambda _: chat.reply_ids(f"I go.\n{call}")))
    with endpoint(engine, chat, monkeypatch) as opened:
        assert run(tmp_path, "harness_examples:calling", "--tasks", "1", "--max-tokens", "300") == 0
    (episode,) = read_episodes(tmp_path / "episodes.jsonl")
    assert (episode.stop, episode.score, len(episode.turns)) == ("terminated", 1.0, 2)
    assert episode.tools[0]["function"]["name"] == "go"
    assert episode.turns[1].observation == "You are at home."
    assert engine.budgets == [300, 200]  # that of the command, and the lower one of the second request
    (segment,) = opened.record.segments()
    assert len(segment) == 2  # the endpoint has understood its own call in the second request


def test_a_request_that_the_endpoint_refuses_is_the_business_of_the_harness(
    tmp_path: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    with endpoint(guessing(chat), chat, monkeypatch):
        assert run(tmp_path, "harness_examples:refused", "--tasks", "1") == 0
    (episode,) = read_episodes(tmp_path / "episodes.jsonl")
    assert (episode.score, len(episode.turns)) == (0.25, 1)


def test_a_conversation_beyond_the_context_of_an_endpoint_ends_the_episode(
    tmp_path: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = guessing(chat)
    engine.max_context = 60
    with endpoint(engine, chat, monkeypatch):
        assert run(tmp_path, LOOP, "--tasks", "1", "--max-tokens", "8") == 0
    (episode,) = read_episodes(tmp_path / "episodes.jsonl")
    assert (episode.stop, episode.success) == ("length", False)
    assert 0 < len(episode.turns) < FLIPS


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--policy", "oracle", "--harness", LOOP], "oracle has no model"),
        (["--policy", "hf:x", "--harness", LOOP, "--agent", "bare"], "--agent"),
        (["--policy", "hf:x", "--harness", LOOP, "--no-instructions"], "--no-instructions"),
        (["--policy", "hf:x", "--harness", LOOP, "--harness-command", "true"], "not both"),
        (["--policy", "hf:x", "--harness", LOOP, "--harness-timeout", "0"], "above 0"),
        (["--policy", "hf:x", "--harness", "harness_examples:loops"], "Did you mean loop"),
        (["--policy", "hf:x", "--harness", "nothing"], "MODULE:NAME"),
    ],
)
def test_wrong_usage_is_found_before_anything_is_loaded(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = evaluate(["--env", ENV, *flags, "--out", str(tmp_path / "run")])
    except SystemExit as end:  # from the parser of flags
        code = int(end.code or 0)
    assert code == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_policies_without_a_model_are_refused(tmp_path: Path) -> None:
    class Silent(Policy):
        name = "silent"

        async def reply(self, context: Any) -> Any:
            raise NotImplementedError

    with (
        open_run(settings(), tmp_path, lambda **_: Silent()) as opened,
        pytest.raises(UsageError, match="silent has no model"),
    ):
        list(opened.play())


def test_without_the_trainer_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness_module, "entry_points", lambda **_: ())
    with pytest.raises(UsageError, match="agentgym-trainer"):
        harness_module.find_player(HarnessSettings(harness=LOOP))
